// SPDX-License-Identifier: GPL-2.0
/* Frames of our EtherType that come, to the session that they are for. Softirq; knows no system call. */
#include <linux/if_arp.h>
#include <net/busy_poll.h>

#include "sluice_sock.h"

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
