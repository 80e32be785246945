/* SPDX-License-Identifier: GPL-2.0 */
/* The module's insides. A socket owns a port of an interface and its sessions with peers; the
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

#define SLUICE_PORT_BUCKETS 256
/* HELLOs that passed the cookie and wait for memory, which softirq does not wait for. */
#define SLUICE_MEETINGS 16
/* Of these, of one MAC address. */
#define SLUICE_MEETINGS_OF_ONE 4
/* Counts of bytes that wait to be read, by MAC address; those that meet in one share it. */
#define SLUICE_QUEUES 64
/* Bytes asked of all peers of a socket at once and not yet here. */
#define SLUICE_PULL_BUDGET (1 << 20)
/* So long a closed socket goes on sending what was sent. */
#define SLUICE_LEAVING_MS 1000
/* So long an acknowledgement waits for a message to ride on: a timer that was set is not set
 * again for one, since programming and taking an interrupt costs more than the message. A reader
 * that goes to sleep sends it sooner, and so do messages of this many bytes: a stream that is full
 * waits for it. */
#define SLUICE_ACK_DELAY_NS (1 * NSEC_PER_MSEC)
#define SLUICE_ACK_BYTES (SLP_STREAM_BYTES / 4)
/* A device that holds frames of a process's pages longer than this is not waited for: twice the time after which
 * drivers are called stuck (dev->watchdog_timeo), and more than queues hold. */
#define SLUICE_LOAN_MS 10000
/* Frames that are copied here after one that was copied on its way: then pages are tried again. */
#define SLUICE_FRAMES_COPIED 1024
/* Spans of a region that has gone which one hold of the lock ends, each with the frames that tell its peer: a
 * socket has up to 256 sessions with 96 spans each. */
#define SLUICE_SPANS_AT_ONCE 16
/* ---- per network namespace: sluice_net.c, sluice_proc.c */

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

/* ---- a session with a peer: sluice_peer.c, sluice_drive.c */

struct sluice_sock;

/* What sessions of a socket with one MAC address share. */
struct sluice_machine {
	struct list_head list; /* sluice_sock.machines */
	u8 mac[ETH_ALEN];
	bool told;    /* that it has all that it may have */
	u32 sessions; /* 0: not in the list */
	u32 callers;  /* of these, those that it began */
	struct slp_share share; /* of the socket's pull budget */
};

struct sluice_peer {
	refcount_t references;
	kuid_t uid; /* in whose share it counts */
	struct net *net; /* with `mac` whose, too, if it called us; null: we did */
	struct sluice_machine *machine; /* of the socket while the session is in its table */
	u32 number; /* which frames to us name: random, and another one in each of its first bytes */
	struct sluice_sock *owner;
	u8 mac[ETH_ALEN];
	u16 port;
	u16 index;	/* in owner->peers */
	u32 heard;	/* bytes of messages since an acknowledgement left */
	u64 peer_nonce; /* of who called; 0: we did */
	bool up;
	bool over;	/* ended; `why` says how */
	bool told;	/* and the user has been told, or need not be */
	bool want_room; /* somebody waits for room in the stream */
	bool doomed;	/* it gave a notice that found no room */
	enum slp_status why;
	u64 refused, stalled; /* of the session's counts, what is in the namespace's */
	struct list_head spans; /* that are not over */
	struct slp_session *session;
	u64 memory[]; /* of the session */
};

enum sluice_region_state {
	SLUICE_REGION_GOOD,
	SLUICE_REGION_DOUBTED, /* the process is changing its map: not touched until it was looked at */
	SLUICE_REGION_GONE,    /* the process has other pages there, or none: nothing is pinned any more */
};

/* Pages that are pinned, and counted, as long as the region or a frame that carries some of them lives. */
struct sluice_pins {
	refcount_t references; /* of the region and of loans */
	struct page **pages;
	unsigned long pinned, counted;
	struct mm_struct *mm; /* whose pinned_vm they are counted in */
	/* A process ends, and frames of its pages need not: they count as the user's, too, as those of MSG_ZEROCOPY do. Beyond
	 * that limit none are lent. */
	struct mmpin user;
	bool may_lend;
	bool used; /* by a region: peers may have written to them */
	struct sluice_sock *owner; /* of `work`, while it waits */
	struct work_struct work;
};

/* Memory of a process, registered. */
struct sluice_region {
	struct mmu_interval_notifier notifier; /* tells of changes to the process's map */
	struct sluice_sock *owner;
	struct mm_struct *mm; /* held */
	struct sluice_pins *pins; /* null: gone */
	struct page **pages;	  /* the pins' */
	unsigned long address; /* of the first page */
	unsigned long count;
	u64 length;
	u32 first; /* byte of the first page where it begins */
	/* Under the socket's lock: */
	u32 uses; /* spans */
	struct list_head spans; /* of these, those that are not over */
	u32 lent; /* of these, spans that are over but for frames that devices hold */
	bool listed; /* in the socket's table */
	enum sluice_region_state state;
	unsigned long doubt_first, doubt_end; /* pages of SLUICE_REGION_DOUBTED */
};

/* Pages of a span in frames that are under way. Outlives the span, and keeps the socket. */
struct sluice_loan {
	struct ubuf_info ubuf; /* its count: the span, each frame, who waits */
	struct sluice_sock *owner;
	struct sluice_pins *pins; /* null: of no region yet */
	/* Under the socket's lock: */
	u32 waiters;
	bool done; /* the span is gone */
};

/* Part of a region that a session uses: what the core calls a cookie points to one. */
struct sluice_span {
	struct list_head list; /* sluice_sock.spans: those that are over first */
	struct list_head of_region, of_peer; /* while it is not over */
	struct sluice_peer *peer; /* null if it is over */
	struct sluice_region *region;
	struct sluice_loan *loan;
	u8 mac[ETH_ALEN]; /* of the peer */
	u16 port;
	bool over; /* waits for frames; then `status` is told */
	u32 status;
	u64 since, overdue; /* when it was over, and when that is told all the same */
	u64 user_data;
	u64 offset, length;
	u32 kind;   /* SLUICE_PULL, SLUICE_PUSH; 0: the peer may reach it by `handle` */
	u32 handle;
};

struct sluice_meeting {
	struct slp_hello hello;
	u8 mac[ETH_ALEN];
	u16 port;
};

struct sluice_sock {
	struct sock sk; /* first */
	struct hlist_node port_node; /* in sluice_net.ports; sluice_net.lock */
	u32 ifindex; /* of the bound port; 0: not bound. Set once, before port_node is seen */
	u16 port;
	bool bound;

	spinlock_t lock; /* all that follows */
	bool closed;	 /* no more frames, timers, work */
	bool leaving;	 /* the user has closed it; what he sent is still going out */
	bool gone;	 /* its interface is */
	u64 now;	 /* ktime_get_ns() of the call of the core that runs */
	u64 timer_at;	 /* when `timer` fires */
	struct hrtimer timer;
	struct slp_node node;
	struct slp_listener listener;
	struct sluice_peer *connected;
	struct sluice_peer *peers[SLUICE_MAX_PEERS];
	u16 numbered[SLUICE_MAX_PEERS]; /* index in `peers` and one, by the number's first byte; 0: nobody */
	struct list_head machines;
	u32 peers_end; /* slots in use lie before it */
	u32 peer_count, peer_limit;
	u32 callers_of_one; /* most that one MAC address may begin; 0: half of peer_limit */
	u32 hash_seed;
	atomic_t queued[SLUICE_QUEUES]; /* bytes of memory of messages that wait, by hash of the MAC address */
	u32 dead_ms;
	u32 spin_us;
	bool checksums; /* sessions made from now on ask their peers for checksums of payloads */
	bool stalled; /* messages wait in sessions: the receive queue was full */
	u32 owing;    /* connection of the last session that owes an acknowledgement; 0: none */
	struct sluice_meeting meetings[SLUICE_MEETINGS];
	u32 meeting_count;
	struct sluice_region *regions[SLUICE_MAX_REGIONS];
	u32 doubts;	  /* listed regions that are doubted, or gone and still used by spans */
	u32 looks_in_vain; /* in a row: the process's map was locked */
	struct mutex memory; /* not under `lock`: a listed region is not freed while it is held */
	struct list_head spans;
	u32 transfers; /* of spans: an entry of the ring is reserved for each */
	u32 lent;      /* of spans: over, but for frames */
	atomic64_t copied_out; /* bytes of memory */
	/* Written without the lock, too: a frame more or less that is copied does no harm. */
	bool lending;	    /* pages were sent as they are, last time */
	bool trying;	    /* one is under way that will tell */
	bool stuck;	    /* some were kept for too long, and none has come back since: nobody waits for more */
	u32 frames_to_copy; /* before it is tried again */
	struct sluice_ring *ring;
	u32 ring_mask, ring_head; /* the ring's own are in the process's hands */
	struct work_struct work;	  /* meetings, sessions that are over: waits for nobody's map */
	struct delayed_work memory_work;  /* regions in doubt */
	struct mem_cgroup *memcg;	  /* of who made it: sessions that others begin count there. Held; null: none are */
	struct delayed_work leaving_work; /* the end of leaving */
};

static inline struct sluice_sock *sluice_sk(struct sock *sk)
{
	return container_of(sk, struct sluice_sock, sk);
}

static inline struct net *sluice_sock_net(const struct sluice_sock *ss)
{
	return sock_net(&ss->sk);
}

/* Half of the receive queue is free: enough to go on with messages that found no room. */
static inline bool sluice_sock_roomy(const struct sluice_sock *ss)
{
	return sk_rmem_alloc_get(&ss->sk) <= READ_ONCE(ss->sk.sk_rcvbuf) / 2;
}

/* What an skb of the receive queue came with. */
struct sluice_received {
	u8 mac[ETH_ALEN];
	u16 port;
	u8 queue;
};

static inline struct sluice_received *sluice_cb(struct sk_buff *skb)
{
	return (struct sluice_received *)skb->cb;
}

struct sluice_place {
	u8 mac[ETH_ALEN];
	u16 port;
};

extern const struct slp_ops sluice_peer_ops;

/* The connection number that the peer's frames name. Under ss->lock. */
static inline u32 sluice_peer_number(const struct sluice_peer *peer)
{
	return peer->number;
}

/* A reference to the session with that place, begun if there is none. Blocks: for memory. */
struct sluice_peer *sluice_peer_of(struct sluice_sock *ss, const struct sluice_place *place);
/* The same of what a process names; zero: the connected one. */
struct sluice_peer *sluice_peer_named(struct sluice_sock *ss, const struct sockaddr_sluice *name);
void sluice_peer_put(struct sluice_peer *peer);
/* Ends the sessions with that place. */
int sluice_peer_hang_up(struct sluice_sock *ss, const struct sockaddr_sluice *name);
/* Under ss->lock, as the next ones. */
bool sluice_peer_is_at(const struct sluice_peer *peer, const u8 *mac, u16 port);
/* The session that was asked for from there. */
struct sluice_peer *sluice_peer_calling(struct sluice_sock *ss, const u8 *mac, u16 port);
struct sluice_peer *sluice_peer_numbered(struct sluice_sock *ss, u32 number);
/* Another session that this address begins would be too much, which is counted, and logged once. */
bool sluice_callers_enough(struct sluice_sock *ss, const u8 *mac);
void sluice_machines_free(struct sluice_sock *ss);
/* What the session has to send goes into `out`; the timer is set. */
void sluice_peer_pump(struct sluice_peer *peer, struct sk_buff_head *out);
void sluice_peer_abort(struct sluice_peer *peer, enum slp_status why, struct sk_buff_head *out);
bool sluice_sock_drained(struct sluice_sock *ss);
/* What is owed leaves: nothing of ours will follow soon. */
void sluice_sock_settle(struct sluice_sock *ss);
/* Messages that found no room come again. */
void sluice_sock_resume(struct sluice_sock *ss, struct sk_buff_head *out);
void sluice_sock_later(struct sluice_sock *ss);
/* The same for regions in doubt, after so many jiffies. */
void sluice_sock_look_later(struct sluice_sock *ss, unsigned long delay);
/* Without ss->lock. */
/* The timer fires at `at` or before. Under ss->lock. */
void sluice_sock_arm(struct sluice_sock *ss, u64 at);
enum hrtimer_restart sluice_sock_timer(struct hrtimer *timer);
void sluice_sock_work(struct work_struct *work);
void sluice_sock_wake(struct sock *sk, __poll_t what);
int sluice_errno(enum slp_status why);

/* ---- sluice_door.c */

int sluice_door_open(void);
void sluice_door_close(void);

/* ---- sluice_selftest.c, in debug builds */

#ifdef SLUICE_SELFTEST
int sluice_selftest_refuses(void);
bool sluice_selftest_starves(void);
void sluice_selftest(void);
#else
static inline int sluice_selftest_refuses(void)
{
	return 0;
}
static inline bool sluice_selftest_starves(void)
{
	return false;
}
static inline void sluice_selftest(void)
{
}
#endif
/* A step of loading, which a debug build may be told to refuse. */
#define SLUICE_STEP(call) (sluice_selftest_refuses() ?: (call))

/* ---- sluice_quota.c */

/* `net` and `mac`: of who called; null: the user did. Blocks: for memory. */
bool sluice_quota_take(kuid_t uid, const struct net *net, const u8 *mac);
void sluice_quota_give_back(kuid_t uid, const struct net *net, const u8 *mac);
/* Of one MAC address may use one more of `most`: not if it has all that one may have, and of the last quarter only if it has next to nothing.
 * The rule of PeerLimit in transport/api/peer_limits.h. */
static inline bool sluice_crowded(u32 used, u32 most, u32 of_one, u32 most_of_one)
{
	return used >= most || of_one >= most_of_one || (used >= most - most / 4 && of_one > most / 64);
}

/* ---- memory: sluice_region.c, sluice_watch.c, sluice_transfer.c, sluice_loan.c, sluice_ring.c */

int sluice_region_add(struct sluice_sock *ss, struct sluice_register *request);
int sluice_region_remove(struct sluice_sock *ss, u32 index);
void sluice_regions_free(struct sluice_sock *ss);
/* In any context; takes over a reference to `ss`, which lasts until the pages are the system's again, if they are now. */
void sluice_pins_put_later(struct sluice_pins *pins, struct sluice_sock *ss);
/* Its pages are the system's again; what is left of it is its place in the table. Blocks. */
void sluice_region_release(struct sluice_region *region);
/* `at`: of the frame, which may be in several pieces. */
void sluice_region_write(struct sluice_region *region, u64 offset, const struct sk_buff *skb, u32 at, u32 bytes);
void sluice_region_read(struct sluice_region *region, u64 offset, u8 *to, u32 bytes);
u32 sluice_region_crc(const struct sluice_region *region, u64 offset, u32 bytes);

/* From here on changes to the process's map are noticed; before a page is pinned. Blocks. */
int sluice_region_watch(struct sluice_region *region);
void sluice_region_unwatch(struct sluice_region *region);
/* Decides about a region in doubt. It is nobody else's to free. Blocks, but for no other process's map. False: that
 * is locked, and it is still in doubt. */
bool sluice_region_settle(struct sluice_region *region);
void sluice_memory_work(struct work_struct *work);

long sluice_memory_ioctl(struct sluice_sock *ss, unsigned int command, void __user *argument);
/* Under ss->lock, as the next ones: what the core says of spans. */
void sluice_span_ended(struct sluice_sock *ss, struct sluice_span *span, enum slp_status status);
void sluice_span_written(struct sluice_sock *ss, struct sluice_span *span, u32 notice);
/* SLUICE_SPANS_AT_ONCE of what uses the region end; what its peers are told goes into `out`. True: nothing is left. */
bool sluice_spans_lose(struct sluice_sock *ss, struct sluice_region *region, struct sk_buff_head *out);
/* The session is over, and with it what its peer could reach. */
void sluice_spans_close(struct sluice_sock *ss, const struct sluice_peer *peer);
/* Spans that were over, and whose frames are gone, or that have waited long enough. */
void sluice_spans_reap(struct sluice_sock *ss);
/* Of a socket that is closed: frames that are under way have their pages, and need nothing else. */
void sluice_spans_drop(struct sluice_sock *ss);

/* ---- sluice_loan.c */

struct sluice_loan *sluice_loan_new(struct sluice_sock *ss);
void sluice_loan_put(struct sluice_loan *loan);
/* Frames have pages of it. Under ss->lock. */
bool sluice_loan_is_out(const struct sluice_loan *loan);
/* Whether frames of this device are better made of pages; and one that has its header is given some, which it then has in common with
 * the process. False: too many pages. Under ss->lock. */
bool sluice_loan_wanted(struct sluice_sock *ss, const struct net_device *dev);
bool sluice_lend(struct sk_buff *skb, const struct sluice_span *span, u64 offset, u32 bytes);
/* Until nothing of it is under way, SLUICE_LOAN_MS at most, or the process is killed. Takes the reference that was
 * taken with sluice_loan_await() under ss->lock; null: nothing to wait for. */
struct sluice_loan *sluice_loan_await(struct sluice_span *span);
void sluice_loan_wait(struct sluice_loan *loan);
/* What has been lent may still be in the last lines of its return. */
void sluice_loans_end(void);

int sluice_ring_make(struct sluice_sock *ss, u32 entries);
void sluice_ring_free(struct sluice_sock *ss);
int sluice_ring_mmap(struct file *file, struct socket *sock, struct vm_area_struct *vma);
/* Under ss->lock. */
bool sluice_ring_room(const struct sluice_sock *ss, u32 more);
bool sluice_ring_put(struct sluice_sock *ss, const struct sluice_completion *entry);
bool sluice_ring_pending(const struct sluice_sock *ss);

/* ---- frames: sluice_frame.c */

int sluice_receive(struct sk_buff *skb, struct net_device *dev, struct packet_type *type, struct net_device *original);
struct sk_buff *sluice_frame_from(struct sluice_sock *ss, const u8 *mac, const struct slp_tx *tx);
void sluice_frames_send(struct sk_buff_head *frames);

/* ---- ports: sluice_net.c */

int sluice_port_take(struct sluice_sock *ss, u32 ifindex, u16 port);
void sluice_port_give_back(struct sluice_sock *ss);
/* Under RCU. */
struct sluice_sock *sluice_port_find(struct net *net, u32 ifindex, u16 port);
bool sluice_may_refuse(struct net *net);

/* The interface is gone, or has another address: sockets of its ports are told. */
void sluice_ports_cut(struct net *net, u32 ifindex, bool gone);

/* ---- sockets: sluice_socket.c, sluice_message.c, sluice_options.c */

extern struct proto sluice_proto;
extern struct net_proto_family sluice_family_ops;
/* For sessions; for looking at memory, which takes long where there is much of it. */
extern struct workqueue_struct *sluice_workqueue, *sluice_memory_workqueue;
extern unsigned int sluice_max_sessions, sluice_max_sessions_per_user, sluice_max_sessions_per_peer;
extern unsigned short sluice_ethertype_number;
static inline u16 sluice_ethertype(void)
{
	return sluice_ethertype_number;
}
/* Every session of the socket ends. Under sluice_net.lock. */
void sluice_sock_cut(struct sluice_sock *ss, bool gone);
/* A process's address, checked; -EINVAL, -EAFNOSUPPORT. */
int sluice_address_read(const struct sockaddr *address, int length, struct sockaddr_sluice *out);
void sluice_address_fill(struct sluice_sock *ss, struct sockaddr_sluice *out, const u8 *mac, u16 port);
/* Where it is, seen from the socket, which takes a port if it has none. */
int sluice_aim(struct sluice_sock *ss, const struct sockaddr_sluice *at, struct sluice_place *place);
int sluice_sendmsg(struct socket *sock, struct msghdr *message, size_t bytes);
int sluice_recvmsg(struct socket *sock, struct msghdr *message, size_t room, int flags);
__poll_t sluice_poll(struct file *file, struct socket *sock, poll_table *wait);
int sluice_setsockopt(struct socket *sock, int level, int name, sockptr_t value, unsigned int length);
int sluice_getsockopt(struct socket *sock, int level, int name, char __user *value, int __user *length);
int sluice_ioctl(struct socket *sock, unsigned int command, unsigned long argument);

#endif /* SLUICE_MODULE_SLUICE_H_ */
