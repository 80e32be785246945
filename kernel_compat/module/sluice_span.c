// SPDX-License-Identifier: GPL-2.0
/* Spans: parts of regions that sessions use. How they end, and who waits for the frames of their pages. */
#include <linux/sched/signal.h>

#include "sluice_sock.h"

/* When frames of a span that is over are looked for again: the later, the longer it has been. */
#define SLUICE_LOOK_NS (100 * NSEC_PER_USEC)
#define SLUICE_LAST_LOOK_NS (20 * NSEC_PER_MSEC)

static void tell(struct sluice_sock *ss, const struct sluice_span *span, u32 kind, u32 status, u32 notice)
{
	struct sluice_completion entry = {
		.user_data = span->user_data,
		.length = span->length,
		.kind = kind,
		.status = status,
		.notice = notice,
		.port = span->port,
	};
	bool ours = kind == span->kind; /* it has its entry reserved; the others leave it alone */

	ether_addr_copy(entry.mac, span->mac);
	if (ours || sluice_ring_room(ss, ss->transfers + 1))
		sluice_ring_put(ss, &entry);
	else if (kind == SLUICE_PUSH_NOTICE)
		span->peer->doomed = true;
	sluice_sock_wake(&ss->sk, EPOLLIN);
}

/* Of a span that no list has. */
void sluice_span_free(struct sluice_span *span)
{
	sluice_loan_put(span->loan);
	kfree(span);
}

/* Nobody reaches it any more. */
void sluice_span_unlink(struct sluice_span *span)
{
	list_del_init(&span->of_region);
	list_del_init(&span->of_peer);
}

void sluice_span_forget(struct sluice_sock *ss, struct sluice_span *span)
{
	sluice_span_unlink(span);
	list_del(&span->list);
	--span->region->uses;
	if (span->over) {
		--span->region->lent;
		--ss->lent;
	}
	if (span->kind)
		--ss->transfers;
	span->loan->done = true;
	sluice_span_free(span);
}

void sluice_span_finish(struct sluice_sock *ss, struct sluice_span *span)
{
	if (span->kind)
		tell(ss, span, span->kind, span->status, 0);
	else if (span->status == SLUICE_MEMORY_GONE)
		tell(ss, span, SLUICE_HANDLE_GONE, span->status, span->handle);
	sluice_span_forget(ss, span);
}

/* No more frames are made of it. Who is told, or finds the handle closed, may write to the memory, and
 * what is under way would carry that: so this waits for it. */
void sluice_span_end(struct sluice_sock *ss, struct sluice_span *span, u32 status)
{
	span->status = status;
	sluice_span_unlink(span);
	if (!sluice_loan_is_out(span->loan) || READ_ONCE(ss->stuck)) {
		sluice_span_finish(ss, span);
		return;
	}
	span->over = true;
	span->peer = NULL;
	span->since = ktime_get_ns();
	span->overdue = span->since + SLUICE_LOAN_MS * NSEC_PER_MSEC;
	list_move(&span->list, &ss->spans);
	++span->region->lent;
	++ss->lent;
	sluice_sock_arm(ss, ss->now + SLUICE_LOOK_NS);
}

/* Whoever is told that the memory is his may write to it, and frames that a device still has would carry that: their session ends, in
 * which the peer would have taken them. By the next turn of the timer. */
static void doom_session_of(struct sluice_sock *ss, const struct sluice_span *span)
{
	u32 i;

	for (i = 0; i < ss->peers_end; ++i)
		if (sluice_peer_is_at(ss->peers[i], span->mac, span->port) && !ss->peers[i]->over)
			ss->peers[i]->doomed = true;
	sluice_sock_arm(ss, ktime_get_ns());
}

void sluice_spans_reap(struct sluice_sock *ss)
{
	struct sluice_span *span, *next;
	u64 now = ktime_get_ns(), wait = SLUICE_LAST_LOOK_NS;

	list_for_each_entry_safe(span, next, &ss->spans, list) {
		if (!span->over)
			break;
		if (sluice_loan_is_out(span->loan) && now < span->overdue) {
			wait = clamp_t(u64, (now - span->since) / 8, SLUICE_LOOK_NS, wait);
			continue;
		}
		/* A device that keeps its frames is no place for pages. */
		if (sluice_loan_is_out(span->loan)) {
			doom_session_of(ss, span);
			WRITE_ONCE(ss->stuck, true);
			WRITE_ONCE(ss->lending, false);
			WRITE_ONCE(ss->frames_to_copy, SLUICE_FRAMES_COPIED);
		}
		sluice_span_finish(ss, span);
	}
	if (ss->lent)
		sluice_sock_arm(ss, now + wait);
}

void sluice_spans_drop(struct sluice_sock *ss)
{
	struct sluice_span *span, *next;

	spin_lock_bh(&ss->lock);
	list_for_each_entry_safe(span, next, &ss->spans, list)
		if (!WARN_ON_ONCE(!span->over))
			sluice_span_forget(ss, span);
	spin_unlock_bh(&ss->lock);
}

void sluice_span_written(struct sluice_sock *ss, struct sluice_span *span, u32 notice)
{
	tell(ss, span, SLUICE_PUSH_NOTICE, SLP_OK, notice);
}

void sluice_spans_close(struct sluice_sock *ss, const struct sluice_peer *peer)
{
	struct sluice_span *span, *next;

	list_for_each_entry_safe(span, next, &peer->spans, of_peer)
		if (!span->kind)
			sluice_span_end(ss, span, SLP_OK);
}

/* ---- waiting. Without ss->lock but for the first */

struct sluice_loan *sluice_span_await(struct sluice_span *span)
{
	struct sluice_loan *loan = span->loan;

	if (!sluice_loan_is_out(loan))
		return NULL;
	++loan->waiters;
	refcount_inc(&loan->ubuf.refcnt);
	return loan;
}

void sluice_span_wait(struct sluice_loan *loan)
{
	struct sluice_sock *ss;
	bool done = false;

	if (!loan)
		return;
	ss = loan->owner;
	while (!done) {
		spin_lock_bh(&ss->lock);
		sluice_spans_reap(ss);
		done = loan->done;
		spin_unlock_bh(&ss->lock);
		if (!done)
			schedule_timeout_killable(1);
		done = done || fatal_signal_pending(current);
	}
	spin_lock_bh(&ss->lock);
	--loan->waiters;
	spin_unlock_bh(&ss->lock);
	sluice_loan_put(loan);
}
