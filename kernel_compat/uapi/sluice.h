/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR Apache-2.0 */
/* The kernel module's sockets as user space sees them: addresses, options, requests.
 * Knows neither the module's insides nor the library's. kernel_compat/README.md explains. */
#ifndef SLUICE_UAPI_SLUICE_H_
#define SLUICE_UAPI_SLUICE_H_

#include <linux/ioctl.h>
#include <linux/types.h>

/* socket(SLUICE_FAMILY, SOCK_RDM, 0). The number is free in every kernel since Econet went
 * (Linux 3.5); the module's parameter `family` sets another, told by
 * /sys/module/sluice/parameters/family. */
#define SLUICE_FAMILY 19

/* A port of an interface. bind(): `mac` zero or the interface's own, `port` 0 for any that is
 * free from 32768 on. Ports under 1024 need CAP_NET_BIND_SERVICE. */
struct sockaddr_sluice {
	__u16 family;
	__u16 port; /* of this machine's byte order */
	__u32 ifindex;
	__u8 mac[6];
	__u8 zero[2];
};

/* Bytes of the largest message: SLP_MAX_MESSAGE. */
#define SLUICE_MAX_MESSAGE 5632
/* Peers of one socket at a time. */
#define SLUICE_MAX_PEERS 256

/* getsockopt() and setsockopt() at this level, each an int unless it says otherwise. */
#define SOL_SLUICE 0x534c
#define SLUICE_SPIN_US 1 /* recvmsg() polls so long before it sleeps: 0 (default) to 1000000 */
#define SLUICE_PEERS 2	 /* as many peers at most, 1 to SLUICE_MAX_PEERS (default 64) */
#define SLUICE_DEAD_MS 3 /* silence that ends a session made after this: 100 to 3600000 (default 3000) */
#define SLUICE_STATUS 4	 /* get only: struct sluice_status of the connected peer */

struct sluice_status {
	__u32 state; /* enum slp_state */
	__u32 why;   /* enum slp_status */
	__u64 frames_sent, frames_received, bytes_sent, bytes_received;
	__u64 resent, probes, dropped;
	__u64 rtt_ns, window_bytes;
	__u32 mtu;
	__u32 zero;
};

#endif /* SLUICE_UAPI_SLUICE_H_ */
