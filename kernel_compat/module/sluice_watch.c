// SPDX-License-Identifier: GPL-2.0
/* What a process does to its map while the core may reach its memory. Pages that are pinned are
 * nobody else's, so that a notifier is not needed to keep peers out of others' memory; it is
 * needed for the process. A pin holds pages, not a map: after munmap(), mremap(), MADV_DONTNEED
 * or exit, peers would go on reading and writing pages that the process does not see, at an
 * address where it may have put something else, and be told that all is well; and the pages
 * would stay locked and counted until the socket goes, which another process may hold.
 *
 * The kernel tells of more than that: pages that it tries in vain to move or to write out, and
 * huge pages that it splits. So a region that it tells of is doubted. In doubt it is not touched:
 * frames for it, and of it, are as if lost. Then a work queue compares what the process has there
 * with what was pinned. It neither faults nor waits for the process's mmap_lock, but comes back: a
 * process that answers its own faults could keep it for ever.
 *
 * A hole that is punched into a file after its pages were looked at is not noticed. */
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>

#include "sluice_sock.h"

/* A page that is not found may be on its way back; a map that goes on changing is not waited for. */
#define SLUICE_LOOKS 8
/* A map that is locked is looked at again after a jiffy, and then after twice as many each time, up to these: who keeps
 * it locked harms his own socket, and nobody waits for him. */
#define SLUICE_LONGEST_PAUSE (HZ / 4)

static bool may_lose_pages(enum mmu_notifier_event event)
{
	return event == MMU_NOTIFY_UNMAP || event == MMU_NOTIFY_CLEAR || event == MMU_NOTIFY_RELEASE;
}

/* In the process, or whoever takes its pages away; with whatever locks of memory management. */
static bool invalidate(struct mmu_interval_notifier *notifier, const struct mmu_notifier_range *range,
		       unsigned long sequence)
{
	struct sluice_region *region = container_of(notifier, struct sluice_region, notifier);
	unsigned long end = region->address + (region->count << PAGE_SHIFT);
	unsigned long first = (max(range->start, region->address) - region->address) >> PAGE_SHIFT;
	unsigned long last = (min(range->end, end) - 1 - region->address) >> PAGE_SHIFT;
	struct sluice_sock *ss = region->owner;

	spin_lock_bh(&ss->lock);
	mmu_interval_set_seq(notifier, sequence);
	if (may_lose_pages(range->event) && region->state == SLUICE_REGION_GOOD) {
		region->state = SLUICE_REGION_DOUBTED;
		region->doubt_first = first;
		region->doubt_end = last + 1;
		sluice_count(sluice_sock_net(ss), SLUICE_REGIONS_DOUBTED);
		if (region->listed) {
			++ss->doubts;
			sluice_sock_look_later(ss, 0);
		}
	} else if (may_lose_pages(range->event)) {
		region->doubt_first = min(region->doubt_first, first);
		region->doubt_end = max(region->doubt_end, last + 1);
	}
	spin_unlock_bh(&ss->lock);
	return true;
}

static const struct mmu_interval_notifier_ops kNotifierOps = {.invalidate = invalidate};

int sluice_region_watch(struct sluice_region *region)
{
	return mmu_interval_notifier_insert(&region->notifier, region->mm, region->address, region->count << PAGE_SHIFT,
					    &kNotifierOps);
}

void sluice_region_unwatch(struct sluice_region *region)
{
	mmu_interval_notifier_remove(&region->notifier);
}

void sluice_region_release(struct sluice_region *region)
{
	sluice_region_unwatch(region);
	sluice_pins_give_up(region);
}

/* ---- looking */

enum verdict { SLUICE_THERE, SLUICE_ELSEWHERE, SLUICE_LOOK_AGAIN, SLUICE_LOCKED };

/* Of a page that is not in the page table. A file's page may be left to the next fault; an
 * anonymous one that is pinned is never. */
static enum verdict look_at_file(const struct vm_area_struct *vma, unsigned long address, struct page *page)
{
	struct folio *folio = page_folio(page);
	unsigned long index = ((address - vma->vm_start) >> PAGE_SHIFT) + vma->vm_pgoff;

	if (!(vma->vm_flags & VM_SHARED) || !vma->vm_file || PageAnon(page))
		return SLUICE_LOOK_AGAIN;
	if (READ_ONCE(folio->mapping) != vma->vm_file->f_mapping)
		return SLUICE_ELSEWHERE;
	if (vma->vm_flags & VM_HUGETLB) /* counts otherwise, and differs from kernel to kernel */
		return SLUICE_THERE;
	return folio->index + folio_page_idx(folio, page) == index ? SLUICE_THERE : SLUICE_ELSEWHERE;
}

/* What the page table has there, only to be compared; NULL: nothing. */
static struct page *mapped_page(struct mm_struct *mm, unsigned long address)
{
	struct page *page;
#if defined(CONFIG_HAVE_FAST_GUP) || defined(CONFIG_HAVE_GUP_FAST)
	/* By force: also what waits for the fault by which NUMA balancing learns. */
	if (get_user_pages_fast_only(address, 1, FOLL_FORCE, &page) != 1)
		return NULL;
	put_page(page);
#else
	/* User-Mode Linux: nobody reads its page tables without their lock, so that the fast look finds nothing. As 6.1 has it. */
	spinlock_t *lock;
	pte_t *entry;

	if (follow_pte(mm, address, &entry, &lock))
		return NULL;
	page = pte_page(*entry);
	pte_unmap_unlock(entry, lock);
#endif
	return page;
}

/* Under the mmap_lock, of the map that is current. */
static enum verdict look_at(struct mm_struct *mm, unsigned long address, struct page *page)
{
	struct vm_area_struct *vma = find_vma(mm, address);
	struct page *now;

	if (!vma || vma->vm_start > address)
		return SLUICE_ELSEWHERE;
	now = mapped_page(mm, address);
	if (!now)
		return look_at_file(vma, address, page);
	return now == page ? SLUICE_THERE : SLUICE_ELSEWHERE;
}

/* Under the mmap_lock. */
static enum verdict look_at_all(struct sluice_region *region, unsigned long first, unsigned long end)
{
	enum verdict verdict = SLUICE_THERE;

	for (; first < end && verdict == SLUICE_THERE; ++first) {
		verdict = look_at(region->mm, region->address + (first << PAGE_SHIFT), region->pages[first]);
		cond_resched();
	}
	return verdict;
}

/* Only who registers waits for his own map. */
static enum verdict look(struct sluice_region *region, unsigned long first, unsigned long end)
{
	enum verdict verdict = SLUICE_LOCKED;

	if (!mmget_not_zero(region->mm))
		return SLUICE_ELSEWHERE; /* the process has ended */
	if (current->mm == region->mm) {
		mmap_read_lock(region->mm);
		verdict = look_at_all(region, first, end);
		mmap_read_unlock(region->mm);
		mmput(region->mm);
		return verdict;
	}
	kthread_use_mm(region->mm);
	if (mmap_read_trylock(region->mm)) {
		verdict = look_at_all(region, first, end);
		mmap_read_unlock(region->mm);
	}
	kthread_unuse_mm(region->mm);
	mmput_async(region->mm); /* its end may take long */
	return verdict;
}

/* ---- deciding */

/* Under ss->lock. */
static void decide(struct sluice_region *region, bool there)
{
	struct sluice_sock *ss = region->owner;

	region->state = there ? SLUICE_REGION_GOOD : SLUICE_REGION_GONE;
	if (!there)
		sluice_count(sluice_sock_net(ss), SLUICE_REGIONS_GONE);
	else if (region->listed)
		--ss->doubts;
}

/* Some of what uses the region ends; what its peers are told goes into `out`. True: nothing is left. Under ss->lock. */
static bool lose_some(struct sluice_sock *ss, struct sluice_region *region, struct sk_buff_head *out)
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
			sluice_span_end(ss, span, SLUICE_MEMORY_GONE);
		} else {
			sluice_span_end(ss, span, SLUICE_MEMORY_GONE);
			slp_close_handle(peer->session, handle);
		}
		sluice_peer_pump(peer, out);
	}
	return true;
}

/* Of a region that is gone: no span is added to it, and until the last has ended it counts as doubted, so that
 * nothing is placed. In turns, between which others have the lock. */
static void lose_spans(struct sluice_region *region)
{
	struct sluice_sock *ss = region->owner;
	struct sk_buff_head out;
	bool all;

	__skb_queue_head_init(&out);
	do {
		rcu_read_lock();
		spin_lock_bh(&ss->lock);
		ss->now = ktime_get_ns();
		all = lose_some(ss, region, &out);
		if (all && region->listed)
			--ss->doubts;
		spin_unlock_bh(&ss->lock);
		sluice_frames_send(&out);
		rcu_read_unlock();
		sluice_count(sluice_sock_net(ss), SLUICE_SPAN_TURNS);
		cond_resched();
	} while (!all);
}

/* What was seen counts only if the map did not change while it was looked at: the sequence is
 * set by invalidate() under ss->lock, and asked for under it. */
bool sluice_region_settle(struct sluice_region *region)
{
	struct sluice_sock *ss = region->owner;
	bool decided = false;
	int looks = 0;

	while (!decided && READ_ONCE(region->state) == SLUICE_REGION_DOUBTED) {
		unsigned long sequence = mmu_interval_read_begin(&region->notifier), first, end;
		enum verdict verdict;
		bool last = ++looks == SLUICE_LOOKS;

		spin_lock_bh(&ss->lock);
		first = region->doubt_first;
		end = region->doubt_end;
		spin_unlock_bh(&ss->lock);
		verdict = look(region, first, end);
		if (verdict == SLUICE_LOCKED)
			return false;
		spin_lock_bh(&ss->lock);
		decided = last || (verdict != SLUICE_LOOK_AGAIN && !mmu_interval_read_retry(&region->notifier, sequence));
		if (decided)
			decide(region, verdict == SLUICE_THERE && !mmu_interval_read_retry(&region->notifier, sequence));
		spin_unlock_bh(&ss->lock);
		/* Whoever walks through the map, as when memory is short, changes it again and again. */
		if (!decided)
			schedule_timeout_uninterruptible(1);
	}
	if (region->state == SLUICE_REGION_GONE && region->pages) {
		lose_spans(region);
		sluice_region_release(region);
	}
	return true;
}

/* False: some are in doubt still. */
static bool settle_all(struct sluice_sock *ss)
{
	bool settled = true;
	u32 i;

	mutex_lock(&ss->memory);
	for (i = 0; i < SLUICE_MAX_REGIONS; ++i) {
		struct sluice_region *region = READ_ONCE(ss->regions[i]);

		if (region)
			settled = sluice_region_settle(region) && settled;
	}
	mutex_unlock(&ss->memory);
	return settled;
}

void sluice_memory_work(struct work_struct *work)
{
	struct sluice_sock *ss = container_of(to_delayed_work(work), struct sluice_sock, memory_work);

	if (settle_all(ss)) {
		ss->looks_in_vain = 0;
	} else {
		unsigned long pause = min_t(unsigned long, 1ul << min(ss->looks_in_vain, 16u), SLUICE_LONGEST_PAUSE);

		++ss->looks_in_vain;
		spin_lock_bh(&ss->lock);
		sluice_sock_look_later(ss, pause);
		spin_unlock_bh(&ss->lock);
	}
	sock_put(&ss->sk);
}
