/* SPDX-License-Identifier: GPL-2.0 */
/* A network namespace: its counts, ports and settings; and what one user or peer may have. */
#ifndef SLUICE_MODULE_SLUICE_NET_H_
#define SLUICE_MODULE_SLUICE_NET_H_

#include "sluice.h"

struct sluice_sock;

#define SLUICE_PORT_BUCKETS 256

enum sluice_count {
	SLUICE_FRAMES_IN,
	SLUICE_FRAMES_OUT,
	SLUICE_FRAMES_DROPPED,	 /* the core or this module refused them */
	SLUICE_FRAMES_OF_NOBODY, /* for a port that nobody has here */
	SLUICE_FRAMES_NOT_SENT,	 /* no memory, no device, or the device's queue was full */
	SLUICE_REFUSALS,	 /* answers to frames of no session */
	SLUICE_REFUSALS_HELD_BACK,
	SLUICE_MESSAGES_IN,
	SLUICE_MESSAGES_OUT,
	SLUICE_BYTES_COPIED_IN,	 /* out of frames and on to the reader, each time */
	SLUICE_BYTES_COPIED_OUT, /* also by others in the kernel, of pages that a frame was to carry */
	SLUICE_BYTES_LENT,	 /* left in the process's own pages; some are copied nevertheless, further on */
	SLUICE_SESSIONS_BEGUN,
	SLUICE_SESSIONS_ENDED,
	SLUICE_SESSIONS_REFUSED, /* a limit was met */
	SLUICE_CALLERS_REFUSED,	 /* of these, that of one MAC address */
	SLUICE_MESSAGES_HELD_BACK, /* one MAC address had its part of a receive queue */
	SLUICE_PULLS_STALLED,	 /* a peer did not bring what it was asked for, and others got its budget */
	SLUICE_ACCESSES_REFUSED, /* peers asked for memory that they may not reach */
	SLUICE_REGIONS_DOUBTED,	 /* their process changed its map, and they were looked at */
	SLUICE_REGIONS_GONE,	 /* of these, those that it had unmapped */
	SLUICE_SPAN_TURNS,	 /* holds of the lock that it took to end what used these */
	SLUICE_FRAMES_HELD_BACK, /* came for memory in doubt, or would have been made of it */
	SLUICE_COUNTS,
};

struct sluice_counters {
	u64 count[SLUICE_COUNTS];
};

struct sluice_net {
	/* net.sluice.unprivileged: who has no CAP_NET_RAW may open sockets, too. */
	u8 unprivileged;
	struct ctl_table *sysctls;
	struct ctl_table_header *sysctl_header;
	spinlock_t lock; /* writers of `ports` */
	struct hlist_head ports[SLUICE_PORT_BUCKETS];
	struct sluice_counters __percpu *counters;
	/* Answers to nobody's frames are rationed: more would help whoever floods. */
	atomic_t refusals;
	unsigned long refusals_since;
};

extern unsigned int sluice_net_id;

static inline struct sluice_net *sluice_net_of(const struct net *net)
{
	return net_generic(net, sluice_net_id);
}

static inline void sluice_add(const struct net *net, enum sluice_count which, u64 by)
{
	this_cpu_add(sluice_net_of(net)->counters->count[which], by);
}

static inline void sluice_count(const struct net *net, enum sluice_count which)
{
	sluice_add(net, which, 1);
}

int sluice_proc_init(struct net *net);
void sluice_proc_exit(struct net *net);

/* ---- sluice_sysctl.c: net.sluice.* of a network namespace */

int sluice_sysctl_init(struct net *net);
void sluice_sysctl_exit(struct net *net);
/* Whether the calling process may open sockets in the namespace; said here and nowhere else. */
bool sluice_may_open(const struct net *net);

/* ---- sluice_quota.c */

extern unsigned int sluice_max_sessions, sluice_max_sessions_per_user, sluice_max_sessions_per_peer;
/* `net` and `mac`: of who called; null: the user did. Blocks: for memory. */
bool sluice_quota_take(kuid_t uid, const struct net *net, const u8 *mac);
void sluice_quota_give_back(kuid_t uid, const struct net *net, const u8 *mac);
/* Of one MAC address may use one more of `most`: not if it has all that one may have, and of the last quarter only if it has next to nothing.
 * The rule of PeerLimit in transport/api/peer_limits.h. */
static inline bool sluice_crowded(u32 used, u32 most, u32 of_one, u32 most_of_one)
{
	return used >= most || of_one >= most_of_one || (used >= most - most / 4 && of_one > most / 64);
}

/* ---- ports: sluice_net.c */

int sluice_port_take(struct sluice_sock *ss, u32 ifindex, u16 port);
void sluice_port_give_back(struct sluice_sock *ss);
/* The interface's MTU as it is now is that of new sessions. Under ss->lock and RCU. */
void sluice_port_look(struct sluice_sock *ss);
/* Under RCU. */
struct sluice_sock *sluice_port_find(struct net *net, u32 ifindex, u16 port);
bool sluice_may_refuse(struct net *net);

#endif /* SLUICE_MODULE_SLUICE_NET_H_ */
