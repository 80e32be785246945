// SPDX-License-Identifier: GPL-2.0
/* A session driven by frames, calls and time: what the core asks for, what it has to send, and
 * when it is called again. Softirq and processes meet here, under sluice_sock.lock. Begins no
 * session and frees none. */
#include <linux/errno.h>
#include <linux/jhash.h>
#include <linux/moduleparam.h>

#include "sluice_sock.h"

/* Frames that one call makes; the timer goes on from there. */
#define SLUICE_FRAMES_AT_ONCE 64
/* When a device that holds all of our frames is asked again. */
#define SLUICE_STARVED_NS (200 * NSEC_PER_USEC)
/* When memory for a message that found none is asked for again. */
#define SLUICE_STALLED_NS (1 * NSEC_PER_MSEC)

#ifdef SLUICE_SELFTEST
/* Softirq finds no memory for so many messages. */
static unsigned int starved_messages;
module_param(starved_messages, uint, 0644);
MODULE_PARM_DESC(starved_messages, "so many messages find no memory when they come");

static bool starves(void)
{
	unsigned int left = READ_ONCE(starved_messages);

	/* Two that come at once may count as one. */
	if (left)
		WRITE_ONCE(starved_messages, left - 1);
	return left;
}
#else
static bool starves(void)
{
	return false;
}
#endif

/* ---- what the core asks for */

/* A message waits in its session, and its reader comes back for it when he has made room. If there
 * is room already, since memory is short or the last of the queue was taken just now, he may sleep:
 * then the timer does. */
static void stall(struct sluice_sock *ss)
{
	WRITE_ONCE(ss->stalled, true);
	/* Pairs with make_room(): he sees that we stalled, or we see his room. */
	smp_mb();
	if (sluice_sock_roomy(ss))
		sluice_sock_arm(ss, ss->now + SLUICE_STALLED_NS);
}

/* Also where the queue is purged, with its socket. */
static void message_gone(struct sk_buff *skb)
{
	atomic_sub(skb->truesize, &sluice_sk(skb->sk)->queued[sluice_cb(skb)->queue]);
	sock_rfree(skb);
}

/* Whether the peer may fill more of the queue: of one that several share, a half is anybody's at most. One message always fits. */
static bool has_room(struct sluice_sock *ss, u8 queue)
{
	int room = READ_ONCE(ss->sk.sk_rcvbuf);

	if (atomic_read(&ss->sk.sk_rmem_alloc) > room)
		return false;
	if (ss->connected || atomic_read(&ss->queued[queue]) <= room / 2)
		return true;
	sluice_count(sluice_sock_net(ss), SLUICE_MESSAGES_HELD_BACK);
	return false;
}

static bool take_message(void *user, const struct slp_rts *rts, const uint8_t *data, uint32_t bytes)
{
	struct sluice_peer *peer = user;
	struct sluice_sock *ss = peer->owner;
	struct sock *sk = &ss->sk;
	u8 queue = jhash(peer->mac, ETH_ALEN, ss->hash_seed) % SLUICE_QUEUES;
	struct sk_buff *skb;

	peer->heard += bytes;
	if (ss->leaving || (sk->sk_shutdown & RCV_SHUTDOWN))
		return true;
	if (!has_room(ss, queue) || starves())
		skb = NULL;
	else
		skb = alloc_skb(bytes, GFP_ATOMIC | __GFP_NOWARN);
	if (!skb) {
		stall(ss);
		return false;
	}
	skb_put_data(skb, data, bytes);
	ether_addr_copy(sluice_cb(skb)->mac, peer->mac);
	sluice_cb(skb)->port = peer->port;
	sluice_cb(skb)->queue = queue;
	skb_set_owner_r(skb, sk);
	skb->destructor = message_gone;
	atomic_add(skb->truesize, &ss->queued[queue]);
	skb_queue_tail(&sk->sk_receive_queue, skb);
	sluice_add(sluice_sock_net(ss), SLUICE_BYTES_COPIED_IN, 2 * bytes); /* frame, stream, here */
	sluice_count(sluice_sock_net(ss), SLUICE_MESSAGES_IN);
	sk->sk_data_ready(sk);
	return true;
}

static void take_state(void *user, enum slp_state state, enum slp_status why)
{
	struct sluice_peer *peer = user;
	struct sluice_sock *ss = peer->owner;
	struct sock *sk = &ss->sk;

	if (state == SLP_UP) {
		peer->up = true;
		sluice_sock_wake(sk, EPOLLOUT);
		return;
	}
	peer->over = true;
	peer->why = why;
	sluice_spans_close(ss, peer);
	sluice_count(sluice_sock_net(ss), SLUICE_SESSIONS_ENDED);
	if (peer == ss->connected) {
		if (why != SLP_CLOSED)
			WRITE_ONCE(sk->sk_err, -sluice_errno(why));
		WRITE_ONCE(sk->sk_shutdown, SHUTDOWN_MASK);
	}
	sluice_sock_wake(sk, EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLERR);
	sluice_sock_later(ss);
}

static struct sluice_span *span_of(uint64_t cookie)
{
	return (struct sluice_span *)(unsigned long)cookie;
}

static void place(void *user, uint64_t cookie, uint64_t offset, const struct slp_frame *frame, uint32_t at,
		  uint32_t bytes)
{
	struct sluice_peer *peer = user;
	struct sluice_span *span = span_of(cookie);

	sluice_region_write(span->region, span->offset + offset, frame->context, at, bytes);
	sluice_add(sluice_sock_net(peer->owner), SLUICE_BYTES_COPIED_IN, bytes);
}

static void take_end(void *user, uint64_t cookie, enum slp_status status)
{
	struct sluice_peer *peer = user;

	sluice_span_end(peer->owner, span_of(cookie), status);
}

static void take_written(void *user, uint64_t cookie, bool noticed, uint32_t notice)
{
	struct sluice_peer *peer = user;

	if (noticed)
		sluice_span_written(peer->owner, span_of(cookie), notice);
}

static void take_wake(void *user)
{
	struct sluice_peer *peer = user;

	sluice_sock_arm(peer->owner, peer->owner->now);
}

/* Of a frame that is about to be made. What the process writes to it between this and that makes a frame that the peer drops,
 * and that is made again. */
static uint32_t source_crc(void *user, uint64_t cookie, uint64_t offset, uint32_t bytes)
{
	struct sluice_span *span = span_of(cookie);

	/* It is held back: sluice_frame_from(). */
	if (span->region->state != SLUICE_REGION_GOOD)
		return 0;
	return sluice_region_crc(span->region, span->offset + offset, bytes);
}

const struct slp_ops sluice_peer_ops = {
	.place = place,
	.message = take_message,
	.ended = take_end,
	.written = take_written,
	.state = take_state,
	.wake = take_wake,
	.source_crc = source_crc, /* frames that come have their payload in one piece: whole_enough() */
};

/* ---- driving */

/* For a reader that goes to sleep: sluice_sock_settle(). */
static void note_owed(struct sluice_peer *peer)
{
	struct sluice_sock *ss = peer->owner;

	if (slp_owes_answer(peer->session)) {
		WRITE_ONCE(ss->owing, sluice_peer_number(peer));
		return;
	}
	peer->heard = 0;
	if (ss->owing == sluice_peer_number(peer))
		WRITE_ONCE(ss->owing, 0);
}

static void note_refused(struct sluice_peer *peer)
{
	u64 refused = slp_counters_of(peer->session)->refused;

	sluice_add(sluice_sock_net(peer->owner), SLUICE_ACCESSES_REFUSED, refused - peer->refused);
	peer->refused = refused;
	sluice_add(sluice_sock_net(peer->owner), SLUICE_PULLS_STALLED, slp_counters_of(peer->session)->pulls_stalled - peer->stalled);
	peer->stalled = slp_counters_of(peer->session)->pulls_stalled;
}

void sluice_peer_pump(struct sluice_peer *peer, struct sk_buff_head *out)
{
	struct sluice_sock *ss = peer->owner;
	struct sk_buff *skb;
	struct slp_tx tx;
	u32 made = 0;

	if (peer->doomed && !peer->over) {
		slp_abort(peer->session);
		take_state(peer, SLP_DOWN, SLP_BROKEN);
	}
	if (peer->heard >= SLUICE_ACK_BYTES)
		slp_answer_now(peer->session);
	while (made < SLUICE_FRAMES_AT_ONCE) {
		/* The end is one frame, and nobody comes back to send it. */
		if (!peer->over && sk_wmem_alloc_get(&ss->sk) / 2 > READ_ONCE(ss->sk.sk_sndbuf))
			break;
		if (!slp_poll_tx(peer->session, ss->now, &tx))
			goto all;
		++made;
		skb = sluice_frame_from(ss, peer->mac, &tx);
		if (skb)
			__skb_queue_tail(out, skb);
	}
	sluice_sock_arm(ss, ss->now + (made < SLUICE_FRAMES_AT_ONCE ? SLUICE_STARVED_NS : 0));
all:
	sluice_sock_arm(ss, slp_next_timeout(peer->session));
	note_owed(peer);
	note_refused(peer);
	if (peer->want_room) {
		peer->want_room = false;
		sluice_sock_wake(&ss->sk, EPOLLOUT);
	}
	if (ss->leaving && !ss->closed && sluice_sock_drained(ss))
		mod_delayed_work(sluice_workqueue, &ss->leaving_work, 0);
}

void sluice_peer_abort(struct sluice_peer *peer, enum slp_status why, struct sk_buff_head *out)
{
	if (peer->over)
		return;
	slp_abort(peer->session); /* its transfers end here */
	take_state(peer, SLP_DOWN, why);
	sluice_peer_pump(peer, out);
}

void sluice_sock_resume(struct sluice_sock *ss, struct sk_buff_head *out)
{
	u32 i, first = ss->turn++;

	WRITE_ONCE(ss->stalled, false);
	for (i = 0; i < ss->peers_end; ++i) {
		struct sluice_peer *peer = ss->peers[(first + i) % ss->peers_end];

		if (!peer || peer->over)
			continue;
		slp_resume(peer->session);
		sluice_peer_pump(peer, out);
	}
}

void sluice_sock_settle(struct sluice_sock *ss)
{
	struct sluice_peer *peer;
	struct sk_buff_head out;

	if (!READ_ONCE(ss->owing))
		return;
	__skb_queue_head_init(&out);
	rcu_read_lock();
	spin_lock_bh(&ss->lock);
	ss->now = ktime_get_ns();
	peer = sluice_peer_numbered(ss, ss->owing);
	ss->owing = 0;
	if (peer && !peer->over && !ss->closed) {
		slp_answer_now(peer->session);
		sluice_peer_pump(peer, &out);
	}
	spin_unlock_bh(&ss->lock);
	sluice_frames_send(&out);
	rcu_read_unlock();
}

enum hrtimer_restart sluice_sock_timer(struct hrtimer *timer)
{
	struct sluice_sock *ss = container_of(timer, struct sluice_sock, timer);
	struct sk_buff_head out;
	u32 i, first;

	__skb_queue_head_init(&out);
	rcu_read_lock();
	spin_lock(&ss->lock);
	ss->now = ktime_get_ns();
	ss->timer_at = SLP_NEVER;
	if (ss->stalled && !ss->closed && sluice_sock_roomy(ss))
		sluice_sock_resume(ss, &out);
	first = ss->turn++;
	for (i = 0; i < ss->peers_end && !ss->closed; ++i) {
		struct sluice_peer *peer = ss->peers[(first + i) % ss->peers_end];

		if (!peer || peer->over)
			continue;
		if (slp_next_timeout(peer->session) <= ss->now)
			slp_on_timer(peer->session, ss->now);
		sluice_peer_pump(peer, &out);
	}
	if (ss->lent && !ss->closed)
		sluice_spans_reap(ss);
	spin_unlock(&ss->lock);
	sluice_frames_send(&out);
	rcu_read_unlock();
	return HRTIMER_NORESTART;
}
