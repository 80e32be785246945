/* SPDX-License-Identifier: GPL-2.0 */
/* A socket: its port, sessions, memory and queues. */
#ifndef SLUICE_MODULE_SLUICE_SOCK_H_
#define SLUICE_MODULE_SLUICE_SOCK_H_

#include "sluice_net.h"
#include "sluice_peer.h"

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
	u32 turn; /* of `peers`: who is first where many wait for the same room; another one each time */
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

/* ---- sluice_sock.c. Under ss->lock, but for the waking */

void sluice_sock_wake(struct sock *sk, __poll_t what);
/* The timer fires at `at` or before. */
void sluice_sock_arm(struct sluice_sock *ss, u64 at);
/* Its sessions that are over, and its meetings, are looked at where sleeping is allowed. */
void sluice_sock_later(struct sluice_sock *ss);
/* The same for regions in doubt, after so many jiffies. */
void sluice_sock_look_later(struct sluice_sock *ss, unsigned long delay);
bool sluice_sock_drained(struct sluice_sock *ss);

/* ---- driven by frames and timers: sluice_drive.c. Under sluice_sock.lock. */

/* What is owed leaves: nothing of ours will follow soon. */
void sluice_sock_settle(struct sluice_sock *ss);
/* Messages that found no room come again. */
void sluice_sock_resume(struct sluice_sock *ss, struct sk_buff_head *out);
/* Without ss->lock. */
enum hrtimer_restart sluice_sock_timer(struct hrtimer *timer);
/* sluice_peer.c: sessions begin and go. */
void sluice_sock_work(struct work_struct *work);
/* ---- sockets: sluice_socket.c, sluice_address.c, sluice_message.c, sluice_options.c */

extern struct proto sluice_proto;
extern struct net_proto_family sluice_family_ops;
/* For sessions; for looking at memory, which takes long where there is much of it. */
extern struct workqueue_struct *sluice_workqueue, *sluice_memory_workqueue;
extern unsigned short sluice_ethertype_number;
static inline u16 sluice_ethertype(void)
{
	return sluice_ethertype_number;
}
extern int sluice_family; /* number of the socket family */
/* The interface is gone, or has another address: sockets of its ports are told. */
void sluice_ports_cut(struct net *net, u32 ifindex, bool gone);
/* A process's address, checked; -EINVAL, -EAFNOSUPPORT. */
int sluice_address_read(const struct sockaddr *address, int length, struct sockaddr_sluice *out);
void sluice_address_fill(struct sluice_sock *ss, struct sockaddr_sluice *out, const u8 *mac, u16 port);
/* Port 0: any that is free. Under lock_sock(). */
int sluice_bind(struct sluice_sock *ss, u32 ifindex, u16 port);
/* Where it is, seen from the socket, which takes a port if it has none. */
int sluice_aim(struct sluice_sock *ss, const struct sockaddr_sluice *at, struct sluice_place *place);
int sluice_sendmsg(struct socket *sock, struct msghdr *message, size_t bytes);
int sluice_recvmsg(struct socket *sock, struct msghdr *message, size_t room, int flags);
__poll_t sluice_poll(struct file *file, struct socket *sock, poll_table *wait);
int sluice_setsockopt(struct socket *sock, int level, int name, sockptr_t value, unsigned int length);
int sluice_getsockopt(struct socket *sock, int level, int name, char __user *value, int __user *length);
int sluice_ioctl(struct socket *sock, unsigned int command, unsigned long argument);

#endif /* SLUICE_MODULE_SLUICE_SOCK_H_ */
