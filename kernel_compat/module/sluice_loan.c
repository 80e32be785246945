// SPDX-License-Identifier: GPL-2.0
/* Frames that carry a process's pinned pages instead of a copy. A page goes with its frame: each
 * fragment has a reference of its own, and the pin, which RLIMIT_MEMLOCK counts, lasts as long, so
 * that the process may unmap it, end, or close the socket, and nobody else gets the page before the
 * frame is gone. What the process writes to it meanwhile goes out as it is then: it harms its own
 * message, whose payload no checksum of ours covers.
 *
 * Frames that stay on this machine (veth, tap, a packet socket that listens) are copied by the
 * kernel before somebody else sees them (skb_orphan_frags_rx()), which it tells, and which is
 * counted; macvtap does not in 6.1, whose reader has the pages themselves. A copy made there costs
 * more than one made here, so that the frames that follow are copied here, but for one in
 * SLUICE_FRAMES_COPIED, which asks again.
 *
 * A loan keeps its socket, and through it namespace and module: a device may orphan a frame, and
 * hold its pages for as long as it likes. */
#include <linux/rcupdate.h>

#include "sluice_sock.h"

/* Since the module was loaded. */
static bool any_lent;

void sluice_loan_put(struct sluice_loan *loan)
{
	struct sluice_sock *ss = loan->owner;
	struct sluice_pins *pins = loan->pins;

	if (!refcount_dec_and_test(&loan->ubuf.refcnt))
		return;
	kfree(loan);
	sluice_pins_put_later(pins, ss);
}

/* A frame is gone, or (`as_it_was` is false) has got pages of its own. In whatever context frames are
 * freed, with whatever locks: it takes none. */
static void returned(struct sk_buff *skb, struct ubuf_info *ubuf, bool as_it_was)
{
	struct sluice_loan *loan = container_of(ubuf, struct sluice_loan, ubuf);
	struct sluice_sock *ss = loan->owner;

	if (READ_ONCE(ss->stuck))
		WRITE_ONCE(ss->stuck, false);
	if (as_it_was) {
		/* Or it was dropped, or copied by somebody who does not tell: the next one that is copied says so. */
		if (READ_ONCE(ss->trying)) {
			WRITE_ONCE(ss->trying, false);
			WRITE_ONCE(ss->lending, true);
		}
	} else {
		WRITE_ONCE(ss->trying, false);
		WRITE_ONCE(ss->lending, false);
		WRITE_ONCE(ss->frames_to_copy, SLUICE_FRAMES_COPIED);
		/* One that was made linear has no fragments any more; then its header is counted, too. */
		if (skb) {
			atomic64_add(skb->data_len ?: skb->len, &ss->copied_out);
			sluice_add(sluice_sock_net(ss), SLUICE_BYTES_COPIED_OUT, skb->data_len ?: skb->len);
		}
	}
	sluice_loan_put(loan);
}

SLUICE_UBUF_DONE(kReturned, returned);

struct sluice_loan *sluice_loan_new(struct sluice_sock *ss)
{
	struct sluice_loan *loan = kzalloc(sizeof(*loan), GFP_KERNEL_ACCOUNT);

	if (!loan)
		return NULL;
	sluice_ubuf_init(&loan->ubuf, kReturned);
	/* Shared by clones, which count; not so by who receives on this machine. */
	loan->ubuf.flags = SKBFL_ZEROCOPY_FRAG | SKBFL_DONT_ORPHAN;
	refcount_set(&loan->ubuf.refcnt, 1);
	sock_hold(&ss->sk);
	loan->owner = ss;
	return loan;
}

/* The span has one reference, and those who wait have theirs. */
bool sluice_loan_is_out(const struct sluice_loan *loan)
{
	return refcount_read(&loan->ubuf.refcnt) > 1 + loan->waiters;
}

bool sluice_loan_wanted(struct sluice_sock *ss, const struct net_device *dev)
{
	u32 left;

	if (!(dev->features & NETIF_F_SG))
		return false;
	if (READ_ONCE(ss->lending))
		return true;
	left = READ_ONCE(ss->frames_to_copy);
	WRITE_ONCE(ss->frames_to_copy, left ? left - 1 : SLUICE_FRAMES_COPIED);
	if (left == 0)
		WRITE_ONCE(ss->trying, true);
	return left == 0;
}

bool sluice_lend(struct sk_buff *skb, const struct sluice_span *span, u64 offset, u32 bytes)
{
	const struct sluice_region *region = span->region;
	u64 at = region->first + span->offset + offset;
	u32 left = bytes;
	int i;

	if (!span->loan->pins->may_lend || DIV_ROUND_UP(offset_in_page(at) + bytes, PAGE_SIZE) > MAX_SKB_FRAGS)
		return false;
	/* As in sluice_region.c: here a mistake would send another's page. */
	if (WARN_ON_ONCE(span->offset + offset > region->length || bytes > region->length - span->offset - offset))
		return false;
	for (i = 0; left > 0; ++i) {
		struct page *page = region->pages[at >> PAGE_SHIFT];
		u32 here = offset_in_page(at), step = min_t(u32, left, PAGE_SIZE - here);

		get_page(page);
		skb_fill_page_desc(skb, i, page, here, step);
		at += step;
		left -= step;
	}
	skb->len += bytes;
	skb->data_len += bytes;
	/* They count in the socket's share as if they were copies. */
	skb->truesize += bytes;
	skb_zcopy_set(skb, &span->loan->ubuf, NULL);
	WRITE_ONCE(any_lent, true);
	sluice_add(sluice_sock_net(span->loan->owner), SLUICE_BYTES_LENT, bytes);
	return true;
}

/* Each loan kept the module until its socket was freed by RCU; who was interrupted between the last line of
 * returned() and its caller's is waited for here, too. */
void sluice_loans_end(void)
{
	if (READ_ONCE(any_lent))
		synchronize_rcu_tasks();
}
