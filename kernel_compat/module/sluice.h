/* SPDX-License-Identifier: GPL-2.0 */
/* What every file of the module includes. A socket owns a port of an interface and its sessions with peers; the
 * protocol itself is kernel_compat/slp, which knows nothing of the kernel.
 *
 * Locks, outermost first:
 *   lock_sock()	   what a process sets up: bind, connect, options
 *   sluice_sock.memory	   regions that go; the process's mmap_lock is inside
 *   sluice_net.lock	   the table of bound ports, written; read under RCU
 *   sluice_sock.lock	   sessions, timer, all calls of the core; softirq takes it
 *   sk_receive_queue.lock the kernel's own
 * Frames are made under sluice_sock.lock and leave after it. MMU notifiers take it, too, so that
 * nothing under it waits for memory. */
#ifndef SLUICE_MODULE_SLUICE_H_
#define SLUICE_MODULE_SLUICE_H_

#include <linux/etherdevice.h>
#include <linux/hrtimer.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/refcount.h>
#include <linux/skbuff.h>
#include <linux/workqueue.h>
#include <net/net_namespace.h>
#include <net/netns/generic.h>
#include <net/sock.h>

#include "../compat/compat.h"
#include "../slp/slp.h"
#include "../uapi/sluice.h"

#endif /* SLUICE_MODULE_SLUICE_H_ */
