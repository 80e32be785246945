// SPDX-License-Identifier: GPL-2.0
/* Memory of a process that the core may read and write at any time: pinned, counted against
 * RLIMIT_MEMLOCK as RDMA's is. What the process does to its map meanwhile is sluice_watch.c's. */
#include <linux/highmem.h>
#include <linux/nospec.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>

#include "sluice.h"

/* The pages' table of one region is 128 MiB at most. */
#define SLUICE_MOST_BYTES (64ull << 30)
#define SLUICE_PAGES_AT_ONCE 512

static int account(struct mm_struct *mm, unsigned long count)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;

	if (atomic64_add_return(count, &mm->pinned_vm) <= limit || capable(CAP_IPC_LOCK))
		return 0;
	atomic64_sub(count, &mm->pinned_vm);
	return -ENOMEM;
}

static void unpin(struct sluice_region *region, unsigned long pinned)
{
	/* Its pages may have been written to by any peer. */
	unpin_user_pages_dirty_lock(region->pages, pinned, true);
	atomic64_sub(region->count, &region->mm->pinned_vm);
	mmdrop(region->mm);
	kvfree(region->pages);
	region->pages = NULL;
}

void sluice_region_release(struct sluice_region *region)
{
	sluice_region_unwatch(region);
	unpin(region, region->count);
}

/* Nobody finds it any more. */
static void free_region(struct sluice_region *region)
{
	struct sluice_sock *ss = region->owner;

	if (region->pages)
		sluice_region_release(region);
	spin_lock_bh(&ss->lock);
	if (region->listed && region->state == SLUICE_REGION_DOUBTED)
		--ss->doubts;
	spin_unlock_bh(&ss->lock);
	kfree(region);
}

/* For writing, always: a private page that is only read would be replaced when the process
 * writes to it, and the region would name the old one. */
static int pin(struct sluice_region *region, unsigned long address, unsigned long *pinned)
{
	while (*pinned < region->count) {
		int wanted = min_t(unsigned long, region->count - *pinned, SLUICE_PAGES_AT_ONCE);
		int got = pin_user_pages_fast(address + (*pinned << PAGE_SHIFT), wanted, FOLL_WRITE | FOLL_LONGTERM,
					      region->pages + *pinned);

		if (got <= 0)
			return got < 0 ? got : -EFAULT;
		*pinned += got;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}

static struct sluice_region *new_region(struct sluice_sock *ss, u64 address, u64 length)
{
	struct sluice_region *region;
	unsigned long pinned = 0;
	int error = -ENOMEM;

	if (length == 0 || length > SLUICE_MOST_BYTES || address > U64_MAX - length - PAGE_SIZE)
		return ERR_PTR(-EINVAL);
	region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);
	if (!region)
		return ERR_PTR(-ENOMEM);
	region->owner = ss;
	region->first = offset_in_page(address);
	region->address = address & PAGE_MASK;
	region->length = length;
	region->count = (region->first + length + PAGE_SIZE - 1) >> PAGE_SHIFT;
	error = account(current->mm, region->count);
	if (error) {
		kfree(region);
		return ERR_PTR(error);
	}
	region->mm = current->mm;
	mmgrab(region->mm);
	region->pages = kvmalloc_array(region->count, sizeof(*region->pages), GFP_KERNEL_ACCOUNT);
	if (!region->pages) {
		error = -ENOMEM;
		goto err_release;
	}
	error = sluice_region_watch(region);
	if (error)
		goto err_release;
	error = pin(region, region->address, &pinned);
	if (error)
		goto err_unwatch;
	return region;

err_unwatch:
	sluice_region_unwatch(region);
err_release:
	unpin(region, pinned);
	kfree(region);
	return ERR_PTR(error);
}

int sluice_region_add(struct sluice_sock *ss, struct sluice_register *request)
{
	struct sluice_region *region;
	int error = 0;
	u32 index;

	if (request->zero || !current->mm)
		return -EINVAL;
	region = new_region(ss, request->address, request->length);
	if (IS_ERR(region))
		return PTR_ERR(region);
	/* Pinning itself may have moved pages. */
	sluice_region_settle(region);
	spin_lock_bh(&ss->lock);
	for (index = 0; index < SLUICE_MAX_REGIONS && ss->regions[index]; ++index)
		;
	if (region->state == SLUICE_REGION_GONE) {
		error = -EFAULT;
	} else if (index == SLUICE_MAX_REGIONS) {
		error = -ENOBUFS;
	} else {
		ss->regions[index] = region;
		region->listed = true;
		if (region->state == SLUICE_REGION_DOUBTED) {
			++ss->doubts;
			sluice_sock_later(ss);
		}
	}
	spin_unlock_bh(&ss->lock);
	if (error)
		free_region(region);
	request->region = index;
	return error;
}

int sluice_region_remove(struct sluice_sock *ss, u32 index)
{
	struct sluice_region *region = NULL;
	int error = -EBADSLT;

	if (index >= SLUICE_MAX_REGIONS)
		return -EBADSLT;
	index = array_index_nospec(index, SLUICE_MAX_REGIONS);
	mutex_lock(&ss->memory);
	spin_lock_bh(&ss->lock);
	if (ss->regions[index])
		error = ss->regions[index]->uses ? -EBUSY : 0;
	if (!error)
		swap(region, ss->regions[index]);
	spin_unlock_bh(&ss->lock);
	if (region)
		free_region(region);
	mutex_unlock(&ss->memory);
	return error;
}

/* Of a socket whose sessions are over. */
void sluice_regions_free(struct sluice_sock *ss)
{
	u32 i;

	for (i = 0; i < SLUICE_MAX_REGIONS; ++i) {
		if (!ss->regions[i])
			continue;
		WARN_ON_ONCE(ss->regions[i]->uses);
		free_region(ss->regions[i]);
		ss->regions[i] = NULL;
	}
}

/* Checks once more what the core has checked: here a mistake would write to another's page. */
static bool outside(const struct sluice_region *region, u64 offset, u32 bytes)
{
	return WARN_ON_ONCE(offset > region->length || bytes > region->length - offset);
}

void sluice_region_write(struct sluice_region *region, u64 offset, const u8 *from, u32 bytes)
{
	u64 at = region->first + offset;

	if (outside(region, offset, bytes))
		return;
	while (bytes > 0) {
		u32 here = offset_in_page(at), step = min_t(u32, bytes, PAGE_SIZE - here);

		memcpy_to_page(region->pages[at >> PAGE_SHIFT], here, from, step);
		from += step;
		at += step;
		bytes -= step;
	}
}

void sluice_region_read(struct sluice_region *region, u64 offset, u8 *to, u32 bytes)
{
	u64 at = region->first + offset;

	if (outside(region, offset, bytes))
		return;
	while (bytes > 0) {
		u32 here = offset_in_page(at), step = min_t(u32, bytes, PAGE_SIZE - here);

		memcpy_from_page(to, region->pages[at >> PAGE_SHIFT], here, step);
		to += step;
		at += step;
		bytes -= step;
	}
}
