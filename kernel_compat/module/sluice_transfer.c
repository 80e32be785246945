// SPDX-License-Identifier: GPL-2.0
/* One-sided access: what a process asks for by ioctl. It opens memory to its peers, pulls and pushes. How that ends is
 * sluice_span.c's; the bytes go between frames and pinned pages, in sluice_pages.c. */
#include <linux/nospec.h>
#include <linux/uaccess.h>

#include "sluice_sock.h"

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
			sluice_span_free(span);
		else if (slp_open_handle_at(peer->session, (unsigned long)span, request->base, span->length, request->rights,
					    &span->handle))
			request->handle = span->handle;
		else {
			sluice_span_forget(ss, span);
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
			return sluice_span_await(span);
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
		loan = sluice_span_await(span);
		sluice_span_end(ss, span, SLP_OK); /* first: the session may fail, and then takes its spans with it */
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
	sluice_span_wait(loan);
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
	sluice_span_unlink(span);
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
			sluice_span_free(span);
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
		loan = sluice_span_await(span);
		if (span->over) { /* as if it had been told: it is when this returns */
			if (!loan)
				sluice_span_finish(ss, span);
			break;
		}
		ss->now = ktime_get_ns();
		slp_cancel(peer->session, (unsigned long)span);
		sluice_span_end(ss, span, SLP_CANCELLED);
		sluice_peer_pump(peer, &out);
		error = 0;
		break;
	}
	spin_unlock_bh(&ss->lock);
	sluice_frames_send(&out);
	rcu_read_unlock();
	sluice_span_wait(loan);
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
