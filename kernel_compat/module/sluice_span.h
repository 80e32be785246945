/* SPDX-License-Identifier: GPL-2.0 */
/* What sessions use of regions: transfers, handles, pages lent to frames, and the ring that tells of their ends. */
#ifndef SLUICE_MODULE_SLUICE_SPAN_H_
#define SLUICE_MODULE_SLUICE_SPAN_H_

#include "sluice_region.h"

struct sluice_peer;

/* A device that holds frames of a process's pages longer than this is not waited for: twice the time after which
 * drivers are called stuck (dev->watchdog_timeo), and more than queues hold. */
#define SLUICE_LOAN_MS 10000
/* Frames that are copied here after one that was copied on its way: then pages are tried again. */
#define SLUICE_FRAMES_COPIED 1024
/* Spans of a region that has gone which one hold of the lock ends, each with the frames that tell its peer: a
 * socket has up to 256 sessions with 96 spans each. */
#define SLUICE_SPANS_AT_ONCE 16

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

/* ---- sluice_transfer.c */

long sluice_memory_ioctl(struct sluice_sock *ss, unsigned int command, void __user *argument);

/* ---- sluice_span.c. Under ss->lock */

/* `status`: of the core, or SLUICE_MEMORY_GONE. */
void sluice_span_end(struct sluice_sock *ss, struct sluice_span *span, u32 status);
/* Who asked is told now. */
void sluice_span_finish(struct sluice_sock *ss, struct sluice_span *span);
/* Nobody is told. */
void sluice_span_forget(struct sluice_sock *ss, struct sluice_span *span);
/* Nobody reaches it any more. */
void sluice_span_unlink(struct sluice_span *span);
/* Of a span that no list has. */
void sluice_span_free(struct sluice_span *span);
void sluice_span_written(struct sluice_sock *ss, struct sluice_span *span, u32 notice);
/* The session is over, and with it what its peer could reach. */
void sluice_spans_close(struct sluice_sock *ss, const struct sluice_peer *peer);
/* Spans that were over, and whose frames are gone, or that have waited long enough. */
void sluice_spans_reap(struct sluice_sock *ss);
/* Until nothing of its pages is under way, SLUICE_LOAN_MS at most, or the process is killed. The first takes a reference,
 * null: nothing to wait for; the second, without ss->lock, gives it back. */
struct sluice_loan *sluice_span_await(struct sluice_span *span);
void sluice_span_wait(struct sluice_loan *loan);
/* Of a socket that is closed: frames that are under way have their pages, and need nothing else. Without ss->lock. */
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
/* What has been lent may still be in the last lines of its return. */
void sluice_loans_end(void);

/* ---- sluice_ring.c */

int sluice_ring_make(struct sluice_sock *ss, u32 entries);
void sluice_ring_free(struct sluice_sock *ss);
int sluice_ring_mmap(struct file *file, struct socket *sock, struct vm_area_struct *vma);
/* Under ss->lock. */
bool sluice_ring_room(const struct sluice_sock *ss, u32 more);
bool sluice_ring_put(struct sluice_sock *ss, const struct sluice_completion *entry);
bool sluice_ring_pending(const struct sluice_sock *ss);

#endif /* SLUICE_MODULE_SLUICE_SPAN_H_ */
