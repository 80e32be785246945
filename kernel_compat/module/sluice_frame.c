// SPDX-License-Identifier: GPL-2.0
/* Frames: those of our EtherType that come, to the session that they are for; those that a
 * session has made, to the device. Knows no system call. */
#include <linux/if_arp.h>
#include <net/busy_poll.h>

#include "sluice_sock.h"

/* ---- out */

/* `bytes` of it in one piece; more may be lent to it. It is nobody's yet. */
static struct sk_buff *new_frame(struct sluice_sock *ss, struct net_device *dev, const u8 *mac, u32 bytes)
{
	u32 room = LL_RESERVED_SPACE(dev);
	struct sk_buff *skb = alloc_skb(room + bytes + dev->needed_tailroom, GFP_ATOMIC | __GFP_NOWARN);

	if (!skb)
		return NULL;
	skb_reserve(skb, room);
	skb_reset_network_header(skb);
	skb->dev = dev;
	skb->protocol = htons(sluice_ethertype());
	skb->priority = READ_ONCE(ss->sk.sk_priority);
	skb->mark = READ_ONCE(ss->sk.sk_mark);
	skb_put(skb, bytes);
	if (dev_hard_header(skb, dev, sluice_ethertype(), mac, dev->dev_addr, bytes) < 0) {
		kfree_skb(skb);
		return NULL;
	}
	return skb;
}

static const struct sluice_span *span_of(const struct slp_tx *tx)
{
	return (const struct sluice_span *)(unsigned long)tx->cookie;
}

static void fill(struct sk_buff *skb, const struct slp_tx *tx)
{
	u8 *at = skb_network_header(skb) + tx->header_bytes;

	if (tx->from_memory) {
		const struct sluice_span *span = span_of(tx);

		sluice_region_read(span->region, span->offset + tx->offset, at, tx->bytes);
	} else {
		memcpy(at, tx->piece[0], tx->piece_bytes[0]);
		memcpy(at + tx->piece_bytes[0], tx->piece[1], tx->piece_bytes[1]);
	}
}

/* With the process's pages. */
static struct sk_buff *frame_of_pages(struct sluice_sock *ss, struct net_device *dev, const u8 *mac, const struct slp_tx *tx)
{
	struct sk_buff *skb = new_frame(ss, dev, mac, tx->header_bytes);

	if (skb && !sluice_lend(skb, span_of(tx), tx->offset, tx->bytes)) {
		kfree_skb(skb);
		skb = NULL;
	}
	return skb;
}

static struct sk_buff *frame_of_copies(struct sluice_sock *ss, struct net_device *dev, const u8 *mac, const struct slp_tx *tx)
{
	u32 payload = tx->from_memory ? tx->bytes : tx->piece_bytes[0] + tx->piece_bytes[1];
	struct sk_buff *skb = new_frame(ss, dev, mac, tx->header_bytes + payload);

	if (!skb)
		return NULL;
	fill(skb, tx);
	if (tx->from_memory)
		atomic64_add(payload, &ss->copied_out);
	sluice_add(sluice_sock_net(ss), SLUICE_BYTES_COPIED_OUT, payload);
	return skb;
}

/* Null: it is as if it was lost on the wire. Called under RCU, within which the frame is
 * sent: its device has no other reference. */
struct sk_buff *sluice_frame_from(struct sluice_sock *ss, const u8 *mac, const struct slp_tx *tx)
{
	struct net_device *dev = dev_get_by_index_rcu(sluice_sock_net(ss), ss->ifindex);
	u32 bytes = tx->header_bytes + (tx->from_memory ? tx->bytes : tx->piece_bytes[0] + tx->piece_bytes[1]);
	struct sk_buff *skb = NULL;

	if (tx->from_memory && span_of(tx)->region->state != SLUICE_REGION_GOOD) {
		sluice_count(sluice_sock_net(ss), SLUICE_FRAMES_HELD_BACK);
		return NULL;
	}
	/* The core learns from large frames that vanish. */
	if (dev && (dev->flags & IFF_UP) && bytes <= dev->mtu) {
		/* A checksum is of the bytes as they were: pages would go as they are when they leave. */
		if (tx->from_memory && !(tx->header[1] & SLP_FLAG_PCRC) && sluice_loan_wanted(ss, dev))
			skb = frame_of_pages(ss, dev, mac, tx);
		if (!skb)
			skb = frame_of_copies(ss, dev, mac, tx);
	}
	if (!skb) {
		sluice_count(sluice_sock_net(ss), SLUICE_FRAMES_NOT_SENT);
		return NULL;
	}
	memcpy(skb_network_header(skb), tx->header, tx->header_bytes);
	skb_set_owner_w(skb, &ss->sk);
	return skb;
}

void sluice_frames_send(struct sk_buff_head *frames)
{
	struct sk_buff *skb;

	while ((skb = __skb_dequeue(frames))) {
		struct net *net = dev_net(skb->dev);
		int code = dev_queue_xmit(skb);

		if (net_xmit_eval(code) == 0)
			sluice_count(net, SLUICE_FRAMES_OUT);
		else
			sluice_count(net, SLUICE_FRAMES_NOT_SENT);
	}
}

static void reply(struct sluice_sock *ss, const u8 *mac, const u8 *bytes, u32 count, struct sk_buff_head *out)
{
	struct slp_tx tx;
	struct sk_buff *skb;

	memcpy(tx.header, bytes, count);
	tx.header_bytes = count;
	tx.piece[0] = tx.piece[1] = tx.header;
	tx.piece_bytes[0] = tx.piece_bytes[1] = 0;
	tx.from_memory = false;
	skb = sluice_frame_from(ss, mac, &tx);
	if (skb)
		__skb_queue_tail(out, skb);
}

/* ---- in */

static void refuse(struct sluice_sock *ss, const u8 *mac, const struct slp_frame *frame, struct sk_buff_head *out)
{
	struct net *net = sluice_sock_net(ss);
	u8 bytes[SLP_MAX_HEADER];
	u32 count = slp_no_session(frame, bytes);

	if (count == 0)
		return;
	if (!sluice_may_refuse(net)) {
		sluice_count(net, SLUICE_REFUSALS_HELD_BACK);
		return;
	}
	sluice_count(net, SLUICE_REFUSALS);
	reply(ss, mac, bytes, count, out);
}

/* Room for its session is found by sluice_sock_work(). Who finds none asks again. */
static void remember_meeting(struct sluice_sock *ss, const u8 *mac, const struct slp_meeting *met)
{
	struct sluice_meeting *meeting = &ss->meetings[ss->meeting_count];
	u32 i, of_one = 0;

	for (i = 0; i < ss->meeting_count; ++i) {
		if (!ether_addr_equal(ss->meetings[i].mac, mac))
			continue;
		if (ss->meetings[i].port == met->peer_port)
			return;
		++of_one;
	}
	if (sluice_callers_enough(ss, mac))
		return;
	if (ss->meeting_count == SLUICE_MEETINGS || of_one == SLUICE_MEETINGS_OF_ONE) {
		sluice_count(sluice_sock_net(ss), SLUICE_SESSIONS_REFUSED);
		return;
	}
	meeting->hello = met->hello;
	ether_addr_copy(meeting->mac, mac);
	meeting->port = met->peer_port;
	++ss->meeting_count;
	sluice_sock_later(ss);
}

static void take_hello(struct sluice_sock *ss, const u8 *mac, const struct slp_base *base,
		       const struct slp_frame *frame, struct sk_buff_head *out)
{
	struct sluice_peer *known = sluice_peer_calling(ss, mac, base->source_port);
	struct slp_meeting met;
	struct slp_hello hello;

	slp_decode_hello(frame->data + SLP_BASE_BYTES, &hello);
	if (known && known->peer_nonce == hello.nonce) { /* our answer was lost */
		slp_on_decoded_frame(known->session, ss->now, frame, base);
		sluice_peer_pump(known, out);
		return;
	}
	if (ss->connected || ss->leaving) {
		refuse(ss, mac, frame, out);
		return;
	}
	switch (slp_listen(&ss->listener, ss->now, mac, ETH_ALEN, frame, &met)) {
	case SLP_LISTEN_DROP:
		sluice_count(sluice_sock_net(ss), SLUICE_FRAMES_DROPPED);
		return;
	case SLP_LISTEN_REPLY:
		reply(ss, mac, met.reply, met.reply_bytes, out);
		return;
	case SLP_LISTEN_ACCEPT:
		break;
	}
	if (known) {
		slp_restarted(known->session);
		sluice_peer_pump(known, out);
	}
	remember_meeting(ss, mac, &met);
}

static enum slp_drop give(struct sluice_peer *peer, const struct slp_frame *frame, const struct slp_base *base,
			  struct sk_buff_head *out)
{
	struct sluice_sock *ss = peer->owner;
	enum slp_drop drop = slp_on_decoded_frame(peer->session, ss->now, frame, base);

	if (drop != SLP_TAKEN)
		sluice_count(sluice_sock_net(ss), SLUICE_FRAMES_DROPPED);
	sluice_peer_pump(peer, out);
	return drop;
}

/* A NACK to a numbered frame names the connection of the one who sends it: each session with
 * that place looks whether it is meant. */
static void take_nack(struct sluice_sock *ss, const u8 *mac, const struct slp_base *base,
		      const struct slp_frame *frame, struct sk_buff_head *out)
{
	u32 i;

	for (i = 0; i < ss->peers_end; ++i)
		if (sluice_peer_is_at(ss->peers[i], mac, base->source_port) && !ss->peers[i]->over)
			give(ss->peers[i], frame, base, out);
}

static void take(struct sluice_sock *ss, const u8 *mac, const struct slp_base *base, const struct slp_frame *frame,
		 struct sk_buff_head *out)
{
	struct sluice_peer *peer;

	if (base->type == SLP_HELLO) {
		take_hello(ss, mac, base, frame, out);
		return;
	}
	if (base->type == SLP_NACK && base->connection == 0) {
		take_nack(ss, mac, base, frame, out);
		return;
	}
	/* It would be placed. Not acknowledged, it comes again; no doubt lasts long. */
	if (base->type == SLP_DATA && ss->doubts) {
		sluice_count(sluice_sock_net(ss), SLUICE_FRAMES_HELD_BACK);
		return;
	}
	peer = sluice_peer_numbered(ss, base->connection);
	if (peer && !peer->over && ether_addr_equal(peer->mac, mac) && give(peer, frame, base, out) != SLP_DROP_SESSION)
		return;
	sluice_count(sluice_sock_net(ss), SLUICE_FRAMES_OF_NOBODY);
	refuse(ss, mac, frame, out);
}

static void take_for_port(struct sluice_sock *ss, struct sk_buff *skb, const struct slp_base *base)
{
	const u8 *mac = eth_hdr(skb)->h_source;
	struct slp_frame frame = {.data = skb->data, .present = skb_headlen(skb), .bytes = skb->len, .context = skb};
	struct sk_buff_head out;

	__skb_queue_head_init(&out);
	spin_lock(&ss->lock);
	if (!ss->closed) {
		ss->now = ktime_get_ns();
		take(ss, mac, base, &frame, &out);
	}
	spin_unlock(&ss->lock);
	sk_mark_napi_id(&ss->sk, skb);
	sluice_frames_send(&out);
}

/* All that is not placed has to be in one piece. A checksum of the payload is one, too. */
static bool whole_enough(struct net *net, struct sk_buff *skb, struct slp_base *base)
{
	if (!skb_is_nonlinear(skb) || (base->type == SLP_DATA && !(base->flags & (SLP_FLAG_PCRC | SLP_FLAG_SEALED))))
		return true;
	sluice_add(net, SLUICE_BYTES_COPIED_IN, skb->data_len);
	return skb_linearize(skb) == 0;
}

/* Softirq, under RCU. */
int sluice_receive(struct sk_buff *skb, struct net_device *dev, struct packet_type *type, struct net_device *original)
{
	struct net *net = dev_net(dev);
	struct sluice_sock *ss;
	struct slp_base base;

	if (skb->pkt_type != PACKET_HOST || dev->type != ARPHRD_ETHER || !is_valid_ether_addr(eth_hdr(skb)->h_source))
		goto drop;
	skb = skb_share_check(skb, GFP_ATOMIC);
	if (!skb)
		return NET_RX_DROP;
	sluice_count(net, SLUICE_FRAMES_IN);
	/* The core reads what is in one piece, and has the rest placed. */
	if (!pskb_may_pull(skb, min_t(u32, skb->len, SLP_MAX_HEADER)) ||
	    slp_decode_base(skb->data, skb_headlen(skb), skb->len, &base) != SLP_TAKEN || !whole_enough(net, skb, &base)) {
		sluice_count(net, SLUICE_FRAMES_DROPPED);
		goto drop;
	}
	ss = sluice_port_find(net, dev->ifindex, base.destination_port);
	if (!ss) {
		/* It may be a packet socket's, so that it is not refused. */
		sluice_count(net, SLUICE_FRAMES_OF_NOBODY);
		goto drop;
	}
	take_for_port(ss, skb, &base);
	consume_skb(skb);
	return NET_RX_SUCCESS;
drop:
	kfree_skb(skb);
	return NET_RX_DROP;
}
