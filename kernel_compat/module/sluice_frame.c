// SPDX-License-Identifier: GPL-2.0
/* Frames that a session has made, to the device. */
#include <linux/moduleparam.h>
#include <linux/netdevice.h>

#include "sluice_sock.h"

unsigned short sluice_ethertype_number = SLP_ETHERTYPE;
module_param_named(ethertype, sluice_ethertype_number, ushort, 0444);
MODULE_PARM_DESC(ethertype, "EtherType of the frames (default 0x88b5)");

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
