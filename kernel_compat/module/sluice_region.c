// SPDX-License-Identifier: GPL-2.0
/* Memory of a process that the core may read and write at any time: pinned, counted against
 * RLIMIT_MEMLOCK as RDMA's is. What the process does to its map meanwhile is sluice_watch.c's. */
#include <linux/highmem.h>
#include <linux/nospec.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/shmem_fs.h>

#include "sluice_sock.h"

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

/* Blocks. */
static void unpin(struct sluice_pins *pins)
{
	/* Its pages may have been written to by any peer. */
	unpin_user_pages_dirty_lock(pins->pages, pins->pinned, pins->used);
	atomic64_sub(pins->counted, &pins->mm->pinned_vm);
	mm_unaccount_pinned_pages(&pins->user);
	mmdrop(pins->mm);
	kvfree(pins->pages);
	kfree(pins);
}

static void unpin_later(struct work_struct *work)
{
	struct sluice_pins *pins = container_of(work, struct sluice_pins, work);
	struct sluice_sock *ss = pins->owner;

	unpin(pins);
	sock_put(&ss->sk);
}

void sluice_pins_put_later(struct sluice_pins *pins, struct sluice_sock *ss)
{
	if (!pins || !refcount_dec_and_test(&pins->references)) {
		sock_put(&ss->sk);
		return;
	}
	pins->owner = ss;
	INIT_WORK(&pins->work, unpin_later);
	queue_work(sluice_workqueue, &pins->work);
}

static void give_up_pins(struct sluice_region *region)
{
	struct sluice_pins *pins = region->pins;

	region->pins = NULL;
	region->pages = NULL;
	if (refcount_dec_and_test(&pins->references))
		unpin(pins);
}

/* With nothing pinned yet. */
static struct sluice_pins *new_pins(unsigned long count)
{
	struct sluice_pins *pins = kzalloc(sizeof(*pins), GFP_KERNEL_ACCOUNT);

	if (!pins)
		return NULL;
	/* First the limit: the table of pages alone may be large. */
	if (account(current->mm, count)) {
		kfree(pins);
		return NULL;
	}
	pins->pages = kvmalloc_array(count, sizeof(*pins->pages), GFP_KERNEL_ACCOUNT);
	if (!pins->pages) {
		atomic64_sub(count, &current->mm->pinned_vm);
		kfree(pins);
		return NULL;
	}
	refcount_set(&pins->references, 1);
	/* Which adds two for the ends of a range that is none of pages. */
	pins->may_lend = mm_account_pinned_pages(&pins->user, count > 2 ? (count - 2) << PAGE_SHIFT : 1) == 0;
	pins->counted = count;
	pins->mm = current->mm;
	mmgrab(pins->mm);
	return pins;
}

void sluice_region_release(struct sluice_region *region)
{
	sluice_region_unwatch(region);
	give_up_pins(region);
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

/* What may be pinned for as long as a process likes: memory that no file system waits for. A page of a file's cache that is
 * written to behind its file system's back, after that has made it clean, corrupts the file or worse; kernels from 6.4 on refuse such
 * pins themselves. */
static bool may_stay(struct page *page)
{
	struct folio *folio = page_folio(page);
	struct address_space *mapping;
	bool shared;

	if (folio_test_anon(folio) || folio_test_hugetlb(folio))
		return true;
	rcu_read_lock(); /* inodes are freed by it */
	mapping = READ_ONCE(folio->mapping);
	shared = mapping && !((unsigned long)mapping & PAGE_MAPPING_FLAGS) && shmem_mapping(mapping);
	rcu_read_unlock();
	return shared;
}

/* Why pages were not pinned: newer kernels say of files what they say of memory that is not there. */
static bool has_file(unsigned long address, unsigned long end)
{
	struct vm_area_struct *vma;
	bool found = false;

	mmap_read_lock(current->mm);
	while (!found && address < end && (vma = find_vma(current->mm, address)) && vma->vm_start < end) {
		found = (vma->vm_flags & VM_SHARED) && vma->vm_file && !(vma->vm_flags & VM_HUGETLB) &&
			!shmem_mapping(vma->vm_file->f_mapping);
		address = vma->vm_end;
	}
	mmap_read_unlock(current->mm);
	return found;
}

/* For writing, always: a private page that is only read would be replaced when the process
 * writes to it, and the region would name the old one. */
static int pin(struct sluice_pins *pins, unsigned long address)
{
	const unsigned long end = address + (pins->counted << PAGE_SHIFT);
	int i;

	while (pins->pinned < pins->counted) {
		int wanted = min_t(unsigned long, pins->counted - pins->pinned, SLUICE_PAGES_AT_ONCE);
		int got = pin_user_pages_fast(address + (pins->pinned << PAGE_SHIFT), wanted, FOLL_WRITE | FOLL_LONGTERM,
					      pins->pages + pins->pinned);

		if (got <= 0 && got != -EFAULT)
			return got < 0 ? got : -EFAULT;
		if (got < 0)
			return has_file(address, end) ? -EOPNOTSUPP : -EFAULT;
		pins->pinned += got;
		for (i = 0; i < got; ++i)
			if (!may_stay(pins->pages[pins->pinned - got + i]))
				return -EOPNOTSUPP;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
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
	region->pins = new_pins(region->count);
	if (!region->pins) {
		kfree(region);
		return ERR_PTR(-ENOMEM);
	}
	region->mm = region->pins->mm;
	region->pages = region->pins->pages;
	error = sluice_region_watch(region);
	if (error)
		goto err_release;
	error = pin(region->pins, region->address);
	if (error)
		goto err_unwatch;
	region->pins->used = true;
	return region;

err_unwatch:
	sluice_region_unwatch(region);
err_release:
	give_up_pins(region);
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

/* Checks once more what the core has checked: here a mistake would write to another's page. */
static bool outside(const struct sluice_region *region, u64 offset, u32 bytes)
{
	return WARN_ON_ONCE(offset > region->length || bytes > region->length - offset);
}

void sluice_region_write(struct sluice_region *region, u64 offset, const struct sk_buff *skb, u32 from, u32 bytes)
{
	u64 at = region->first + offset;

	if (outside(region, offset, bytes))
		return;
	while (bytes > 0) {
		u32 here = offset_in_page(at), step = min_t(u32, bytes, PAGE_SIZE - here);
		u8 *to = kmap_local_page(region->pages[at >> PAGE_SHIFT]);

		WARN_ON_ONCE(skb_copy_bits(skb, from, to + here, step));
		kunmap_local(to);
		from += step;
		at += step;
		bytes -= step;
	}
}

/* CRC32C, as SLP's frames have it. */
u32 sluice_region_crc(const struct sluice_region *region, u64 offset, u32 bytes)
{
	u64 at = region->first + offset;
	u32 crc = 0;

	if (outside(region, offset, bytes))
		return 0;
	while (bytes > 0) {
		u32 here = offset_in_page(at), step = min_t(u32, bytes, PAGE_SIZE - here);
		u8 *from = kmap_local_page(region->pages[at >> PAGE_SHIFT]);

		crc = slp_crc32c(crc, from + here, step);
		kunmap_local(from);
		at += step;
		bytes -= step;
	}
	return crc;
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
