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
 * with what was pinned. It neither faults nor waits for anything but the process's mmap_lock:
 * a process that answers its own faults could keep it for ever.
 *
 * A hole that is punched into a file after its pages were looked at is not noticed. */
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>

#include "sluice.h"

/* A page that is not found may be on its way back; a map that goes on changing is not waited for. */
#define SLUICE_LOOKS 8

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
			sluice_sock_later(ss);
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

/* ---- looking */

enum verdict { SLUICE_THERE, SLUICE_ELSEWHERE, SLUICE_LOOK_AGAIN };

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

static enum verdict look(struct sluice_region *region, unsigned long first, unsigned long end)
{
	enum verdict verdict = SLUICE_THERE;
	bool own = current->mm == region->mm;

	if (!mmget_not_zero(region->mm))
		return SLUICE_ELSEWHERE; /* the process has ended */
	if (!own)
		kthread_use_mm(region->mm);
	mmap_read_lock(region->mm);
	for (; first < end && verdict == SLUICE_THERE; ++first) {
		verdict = look_at(region->mm, region->address + (first << PAGE_SHIFT), region->pages[first]);
		cond_resched();
	}
	mmap_read_unlock(region->mm);
	if (!own)
		kthread_unuse_mm(region->mm);
	mmput(region->mm);
	return verdict;
}

/* ---- deciding */

/* Under ss->lock. */
static void decide(struct sluice_region *region, bool there, struct sk_buff_head *out)
{
	struct sluice_sock *ss = region->owner;

	region->state = there ? SLUICE_REGION_GOOD : SLUICE_REGION_GONE;
	if (region->listed)
		--ss->doubts;
	if (there)
		return;
	sluice_count(sluice_sock_net(ss), SLUICE_REGIONS_GONE);
	ss->now = ktime_get_ns();
	sluice_spans_lose(ss, region, out);
}

/* What was seen counts only if the map did not change while it was looked at: the sequence is
 * set by invalidate() under ss->lock, and asked for under it. */
void sluice_region_settle(struct sluice_region *region)
{
	struct sluice_sock *ss = region->owner;
	struct sk_buff_head out;
	bool decided = false;
	int looks = 0;

	__skb_queue_head_init(&out);
	while (!decided && READ_ONCE(region->state) == SLUICE_REGION_DOUBTED) {
		unsigned long sequence = mmu_interval_read_begin(&region->notifier), first, end;
		enum verdict verdict;
		bool last = ++looks == SLUICE_LOOKS;

		spin_lock_bh(&ss->lock);
		first = region->doubt_first;
		end = region->doubt_end;
		spin_unlock_bh(&ss->lock);
		verdict = look(region, first, end);
		rcu_read_lock();
		spin_lock_bh(&ss->lock);
		decided = last || (verdict != SLUICE_LOOK_AGAIN && !mmu_interval_read_retry(&region->notifier, sequence));
		if (decided)
			decide(region, verdict == SLUICE_THERE && !mmu_interval_read_retry(&region->notifier, sequence), &out);
		spin_unlock_bh(&ss->lock);
		sluice_frames_send(&out);
		rcu_read_unlock();
		/* Whoever walks through the map, as when memory is short, changes it again and again. */
		if (!decided)
			schedule_timeout_uninterruptible(1);
	}
	if (region->state == SLUICE_REGION_GONE && region->pages)
		sluice_region_release(region);
}

void sluice_regions_settle(struct sluice_sock *ss)
{
	u32 i;

	if (!READ_ONCE(ss->doubts))
		return;
	mutex_lock(&ss->memory);
	for (i = 0; i < SLUICE_MAX_REGIONS; ++i) {
		struct sluice_region *region = READ_ONCE(ss->regions[i]);

		if (region)
			sluice_region_settle(region);
	}
	mutex_unlock(&ss->memory);
}
