// SPDX-License-Identifier: GPL-2.0
/* A socket's table of registered memory. The pages are sluice_pages.c's; what the process does to its map meanwhile is
 * sluice_watch.c's. */
#include <linux/mm.h>
#include <linux/nospec.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>

#include "sluice_sock.h"

/* The pages' table of one region is 128 MiB at most. */
#define SLUICE_MOST_BYTES (64ull << 30)

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

static struct sluice_region *new_region(struct sluice_sock *ss, u64 address, u64 length)
{
	struct sluice_region *region;
	int error;

	if (length == 0 || length > SLUICE_MOST_BYTES || address > U64_MAX - length - PAGE_SIZE)
		return ERR_PTR(-EINVAL);
	region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);
	if (!region)
		return ERR_PTR(-ENOMEM);
	region->owner = ss;
	INIT_LIST_HEAD(&region->spans);
	region->first = offset_in_page(address);
	region->address = address & PAGE_MASK;
	region->length = length;
	region->count = (region->first + length + PAGE_SIZE - 1) >> PAGE_SHIFT;
	region->pins = sluice_pins_new(region->count);
	if (!region->pins) {
		kfree(region);
		return ERR_PTR(-ENOMEM);
	}
	region->mm = region->pins->mm;
	region->pages = region->pins->pages;
	error = sluice_region_watch(region);
	if (error)
		goto err_release;
	error = sluice_pins_fill(region->pins, region->address);
	if (error)
		goto err_unwatch;
	region->pins->used = true;
	return region;

err_unwatch:
	sluice_region_unwatch(region);
err_release:
	sluice_pins_give_up(region);
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
	(void)sluice_region_settle(region);
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
			sluice_sock_look_later(ss, 0);
		}
	}
	spin_unlock_bh(&ss->lock);
	if (error)
		free_region(region);
	request->region = index;
	return error;
}

static bool waited_in_vain(void)
{
	schedule_timeout_killable(1);
	return fatal_signal_pending(current);
}

/* Under ss->lock. -EAGAIN: only frames are in the way. */
static int may_remove(const struct sluice_region *region)
{
	if (!region)
		return -EBADSLT;
	if (region->uses > region->lent)
		return -EBUSY;
	return region->lent ? -EAGAIN : 0;
}

int sluice_region_remove(struct sluice_sock *ss, u32 index)
{
	struct sluice_region *region = NULL;
	int error;

	if (index >= SLUICE_MAX_REGIONS)
		return -EBADSLT;
	index = array_index_nospec(index, SLUICE_MAX_REGIONS);
	do {
		mutex_lock(&ss->memory);
		spin_lock_bh(&ss->lock);
		error = may_remove(ss->regions[index]);
		if (!error)
			swap(region, ss->regions[index]);
		spin_unlock_bh(&ss->lock);
		if (region)
			free_region(region);
		mutex_unlock(&ss->memory);
		/* Frames that leave do so without us; the timer ends what does not. */
	} while (error == -EAGAIN && !waited_in_vain());
	return error == -EAGAIN ? -EINTR : error;
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
