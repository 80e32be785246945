// SPDX-License-Identifier: GPL-2.0
/* One-sided access: what a process opens to its peers, pulls and pushes, from the ioctl to the
 * completion. The bytes go between frames and pinned pages, in sluice_region.c. */
#include <linux/nospec.h>
#include <linux/uaccess.h>

#include "sluice_sock.h"

/* When frames of a span that is over are looked for again: the later, the longer it has been. */
#define SLUICE_LOOK_NS (100 * NSEC_PER_USEC)
#define SLUICE_LAST_LOOK_NS (20 * NSEC_PER_MSEC)

/* ---- what the core says: under ss->lock */

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
static void free_span(struct sluice_span *span)
{
	sluice_loan_put(span->loan);
	kfree(span);
}

/* Nobody reaches it any more. */
static void unlink_span(struct sluice_span *span)
{
	list_del_init(&span->of_region);
	list_del_init(&span->of_peer);
}

static void forget(struct sluice_sock *ss, struct sluice_span *span)
{
	unlink_span(span);
	list_del(&span->list);
	--span->region->uses;
	if (span->over) {
		--span->region->lent;
		--ss->lent;
	}
	if (span->kind)
		--ss->transfers;
	span->loan->done = true;
	free_span(span);
}

static void finish(struct sluice_sock *ss, struct sluice_span *span)
{
	if (span->kind)
		tell(ss, span, span->kind, span->status, 0);
	else if (span->status == SLUICE_MEMORY_GONE)
		tell(ss, span, SLUICE_HANDLE_GONE, span->status, span->handle);
	forget(ss, span);
}

/* No more frames are made of it. Who is told, or finds the handle closed, may write to the memory, and
 * what is under way would carry that: so this waits for it. */
static void end_span(struct sluice_sock *ss, struct sluice_span *span, u32 status)
{
	span->status = status;
	unlink_span(span);
	if (!sluice_loan_is_out(span->loan) || READ_ONCE(ss->stuck)) {
		finish(ss, span);
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
		finish(ss, span);
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
			forget(ss, span);
	spin_unlock_bh(&ss->lock);
}

void sluice_span_ended(struct sluice_sock *ss, struct sluice_span *span, enum slp_status status)
{
	end_span(ss, span, status);
}

bool sluice_spans_lose(struct sluice_sock *ss, struct sluice_region *region, struct sk_buff_head *out)
{
	struct sluice_span *span;
	u32 ended;

	/* The first each time: what the core does for one may end others. What the process has left of the region
	 * may be in frames that are under way: those who are told, are so when those have gone. */
	for (ended = 0; !list_empty(&region->spans); ++ended) {
		struct sluice_peer *peer;
		u32 handle;

		if (ended == SLUICE_SPANS_AT_ONCE)
			return false;
		span = list_first_entry(&region->spans, struct sluice_span, of_region);
		peer = span->peer;
		handle = span->handle;

		if (span->kind) {
			slp_cancel(peer->session, (unsigned long)span);
			end_span(ss, span, SLUICE_MEMORY_GONE);
		} else {
			end_span(ss, span, SLUICE_MEMORY_GONE);
			slp_close_handle(peer->session, handle);
		}
		sluice_peer_pump(peer, out);
	}
	return true;
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
			end_span(ss, span, SLP_OK);
}

/* ---- what a process asks for */

static int errno_of_post(enum slp_status status)
{
	switch (status) {
	case SLP_OK:
		return 0;
	case SLP_BUSY:
		return -EAGAIN;
	case SLP_BAD_RANGE:
		return -EINVAL;
	default:
		return sluice_errno(status);
	}
}

/* Under ss->lock. */
static int use_region(struct sluice_sock *ss, struct sluice_span *span, u32 index)
{
	struct sluice_region *region;

	if (index >= SLUICE_MAX_REGIONS)
		return -EBADSLT;
	region = ss->regions[array_index_nospec(index, SLUICE_MAX_REGIONS)];
	if (!region)
		return -EBADSLT;
	if (region->state == SLUICE_REGION_GONE)
		return -EFAULT;
	if (span->length == 0 || span->offset > region->length || span->length > region->length - span->offset)
		return -EINVAL;
	span->region = region;
	span->loan->pins = region->pins;
	refcount_inc(&region->pins->references);
	++region->uses;
	list_add_tail(&span->list, &ss->spans);
	list_add_tail(&span->of_region, &region->spans);
	list_add_tail(&span->of_peer, &span->peer->spans);
	if (span->kind)
		++ss->transfers;
	return 0;
}

static struct sluice_span *new_span(struct sluice_sock *ss, struct sluice_peer *peer, u32 kind, u64 user_data, u64 offset, u64 length)
{
	struct sluice_span *span = kzalloc(sizeof(*span), GFP_KERNEL_ACCOUNT);

	if (!span)
		return NULL;
	span->loan = sluice_loan_new(ss);
	if (!span->loan) {
		kfree(span);
		return NULL;
	}
	INIT_LIST_HEAD(&span->of_region);
	INIT_LIST_HEAD(&span->of_peer);
	span->peer = peer;
	span->port = peer->port;
	ether_addr_copy(span->mac, peer->mac);
	span->kind = kind;
	span->user_data = user_data;
	span->offset = offset;
	span->length = length;
	return span;
}

static int open_handle(struct sluice_sock *ss, struct sluice_open *request)
{
	struct sluice_peer *peer;
	struct sluice_span *span;
	int error;

	if (request->zero || !request->rights || request->rights & ~(SLUICE_MAY_READ | SLUICE_MAY_WRITE) ||
	    request->base > SLUICE_MAX_BASE)
		return -EINVAL;
	peer = sluice_peer_named(ss, &request->peer);
	if (IS_ERR(peer))
		return PTR_ERR(peer);
	span = new_span(ss, peer, 0, request->user_data, request->offset, request->length);
	error = span ? 0 : -ENOMEM;
	if (!error) {
		spin_lock_bh(&ss->lock);
		error = peer->over ? sluice_errno(peer->why) : use_region(ss, span, request->region);
		if (error)
			free_span(span);
		else if (slp_open_handle_at(peer->session, (unsigned long)span, request->base, span->length, request->rights,
					    &span->handle))
			request->handle = span->handle;
		else {
			forget(ss, span);
			error = -ENOBUFS;
		}
		spin_unlock_bh(&ss->lock);
	}
	sluice_peer_put(peer);
	return error;
}

/* Of a handle that has ended already, as with its session. Under ss->lock. */
static struct sluice_loan *await_handle_that_is_over(struct sluice_sock *ss, const struct sluice_peer *peer, u32 handle)
{
	struct sluice_span *span;

	list_for_each_entry(span, &ss->spans, list) {
		if (!span->over)
			break;
		if (!span->kind && span->handle == handle && sluice_peer_is_at(peer, span->mac, span->port))
			return sluice_loan_await(span);
	}
	return NULL;
}

static int close_handle(struct sluice_sock *ss, const struct sluice_close *request)
{
	struct sluice_peer *peer;
	struct sluice_loan *loan = NULL;
	struct sluice_span *span;
	struct sk_buff_head out;
	int error = -EBADSLT;

	if (request->zero)
		return -EINVAL;
	peer = sluice_peer_named(ss, &request->peer);
	if (IS_ERR(peer))
		return PTR_ERR(peer);
	__skb_queue_head_init(&out);
	rcu_read_lock();
	spin_lock_bh(&ss->lock);
	list_for_each_entry(span, &peer->spans, of_peer) {
		if (span->kind || span->handle != request->handle)
			continue;
		ss->now = ktime_get_ns();
		loan = sluice_loan_await(span);
		end_span(ss, span, SLP_OK); /* first: the session may fail, and then takes its spans with it */
		slp_close_handle(peer->session, request->handle);
		sluice_peer_pump(peer, &out);
		error = 0;
		break;
	}
	if (error)
		loan = await_handle_that_is_over(ss, peer, request->handle);
	spin_unlock_bh(&ss->lock);
	sluice_frames_send(&out);
	rcu_read_unlock();
	sluice_loan_wait(loan);
	sluice_peer_put(peer);
	return error;
}

/* Under ss->lock. */
static int post(struct sluice_sock *ss, struct sluice_peer *peer, struct sluice_span *span,
		const struct sluice_transfer *request)
{
	enum slp_status status;
	int error;

	if (peer->over)
		return sluice_errno(peer->why);
	if (!ss->ring)
		return -ENXIO;
	if (!sluice_ring_room(ss, ss->transfers + 1))
		return -EAGAIN;
	error = use_region(ss, span, request->region);
	if (error)
		return error;
	ss->now = ktime_get_ns();
	if (span->kind == SLUICE_PULL)
		status = slp_pull(peer->session, request->handle, request->peer_offset, span->length, (unsigned long)span);
	else
		status = slp_push(peer->session, request->handle, request->peer_offset, span->length, (unsigned long)span,
				  request->kind == SLUICE_PUSH_NOTICE ? &request->notice : NULL);
	if (status == SLP_OK)
		return 0;
	unlink_span(span);
	list_del(&span->list);
	--span->region->uses;
	--ss->transfers;
	return errno_of_post(status);
}

static int transfer(struct sluice_sock *ss, const struct sluice_transfer *request)
{
	u32 kind = request->kind == SLUICE_PULL ? SLUICE_PULL : SLUICE_PUSH;
	struct sluice_peer *peer;
	struct sluice_span *span;
	struct sk_buff_head out;
	int error = -ENOMEM;

	if (request->kind < SLUICE_PULL || request->kind > SLUICE_PUSH_NOTICE)
		return -EINVAL;
	peer = sluice_peer_named(ss, &request->peer);
	if (IS_ERR(peer))
		return PTR_ERR(peer);
	span = new_span(ss, peer, kind, request->user_data, request->offset, request->length);
	if (span) {
		__skb_queue_head_init(&out);
		rcu_read_lock();
		spin_lock_bh(&ss->lock);
		error = post(ss, peer, span, request);
		if (error)
			free_span(span);
		else
			sluice_peer_pump(peer, &out);
		spin_unlock_bh(&ss->lock);
		sluice_frames_send(&out);
		rcu_read_unlock();
	}
	sluice_peer_put(peer);
	return error;
}

static int cancel(struct sluice_sock *ss, u64 user_data)
{
	struct sluice_loan *loan = NULL;
	struct sluice_span *span;
	struct sk_buff_head out;
	int error = -ENOENT;

	__skb_queue_head_init(&out);
	rcu_read_lock();
	spin_lock_bh(&ss->lock);
	list_for_each_entry(span, &ss->spans, list) {
		struct sluice_peer *peer = span->peer;

		if (!span->kind || span->user_data != user_data)
			continue;
		loan = sluice_loan_await(span);
		if (span->over) { /* as if it had been told: it is when this returns */
			if (!loan)
				finish(ss, span);
			break;
		}
		ss->now = ktime_get_ns();
		slp_cancel(peer->session, (unsigned long)span);
		sluice_span_ended(ss, span, SLP_CANCELLED);
		sluice_peer_pump(peer, &out);
		error = 0;
		break;
	}
	spin_unlock_bh(&ss->lock);
	sluice_frames_send(&out);
	rcu_read_unlock();
	sluice_loan_wait(loan);
	return error;
}

union request {
	struct sluice_register region;
	struct sluice_open open;
	struct sluice_close close;
	struct sluice_transfer transfer;
	struct sockaddr_sluice peer;
	__u32 number;
	__u64 user_data;
};

long sluice_memory_ioctl(struct sluice_sock *ss, unsigned int command, void __user *argument)
{
	union request request = {};
	int error;

	if (_IOC_SIZE(command) > sizeof(request) || copy_from_user(&request, argument, _IOC_SIZE(command)))
		return -EFAULT;
	switch (command) {
	case SLUICE_REGISTER:
		error = sluice_region_add(ss, &request.region);
		break;
	case SLUICE_UNREGISTER:
		return sluice_region_remove(ss, request.number);
	case SLUICE_OPEN:
		error = open_handle(ss, &request.open);
		break;
	case SLUICE_CLOSE:
		return close_handle(ss, &request.close);
	case SLUICE_TRANSFER:
		return transfer(ss, &request.transfer);
	case SLUICE_CANCEL:
		return cancel(ss, request.user_data);
	case SLUICE_HANG_UP:
		return sluice_peer_hang_up(ss, &request.peer);
	default:
		return -ENOIOCTLCMD;
	}
	/* What cannot be told goes with the socket. */
	if (!error && copy_to_user(argument, &request, _IOC_SIZE(command)))
		error = -EFAULT;
	return error;
}
