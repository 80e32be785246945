// SPDX-License-Identifier: GPL-2.0
/* Pages of a process that the core may read and write at any time: pinned, counted against
 * RLIMIT_MEMLOCK as RDMA's are. Knows no socket but as what a pin keeps. */
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/shmem_fs.h>

#include "sluice_sock.h"

#define SLUICE_PAGES_AT_ONCE 512

/* ---- pins */

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

void sluice_pins_give_up(struct sluice_region *region)
{
	struct sluice_pins *pins = region->pins;

	region->pins = NULL;
	region->pages = NULL;
	if (refcount_dec_and_test(&pins->references))
		unpin(pins);
}

/* With nothing pinned yet. */
struct sluice_pins *sluice_pins_new(unsigned long count)
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
int sluice_pins_fill(struct sluice_pins *pins, unsigned long address)
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

/* ---- bytes */

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
