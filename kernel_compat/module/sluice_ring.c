// SPDX-License-Identifier: GPL-2.0
/* The completion ring that a process maps. What it writes there decides only what it gets to
 * see: the kernel keeps its own head and mask, and takes the tail as a claim. */
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/vmalloc.h>

#include "sluice_sock.h"

static size_t ring_bytes(u32 entries)
{
	return PAGE_ALIGN(sizeof(struct sluice_ring) + entries * sizeof(struct sluice_completion));
}

int sluice_ring_make(struct sluice_sock *ss, u32 entries)
{
	struct sluice_ring *ring;
	int error = 0;

	if (!entries || entries > SLUICE_MAX_RING || !is_power_of_2(entries))
		return -EINVAL;
	/* Counted in the process's cgroup, as vmalloc_user() does not: each descriptor may have one. */
	ring = __vmalloc(ring_bytes(entries), GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!ring)
		return -ENOMEM;
	ring->mask = entries - 1;
	ring->entries_at = sizeof(*ring);
	spin_lock_bh(&ss->lock);
	if (ss->ring) {
		error = -EBUSY;
	} else {
		ss->ring_mask = entries - 1;
		ss->ring = ring;
	}
	spin_unlock_bh(&ss->lock);
	if (error)
		vfree(ring);
	return error;
}

void sluice_ring_free(struct sluice_sock *ss)
{
	vfree(ss->ring);
	ss->ring = NULL;
}

/* The mapping holds the file, and the file the socket. */
int sluice_ring_mmap(struct file *file, struct socket *sock, struct vm_area_struct *vma)
{
	struct sluice_sock *ss = sluice_sk(sock->sk);
	struct sluice_ring *ring;
	unsigned long at;
	int error = 0;
	u32 mask;

	spin_lock_bh(&ss->lock);
	ring = ss->ring; /* once there, it stays until the last close */
	mask = ss->ring_mask;
	spin_unlock_bh(&ss->lock);
	if (!ring)
		return -ENXIO;
	if (vma->vm_pgoff || vma->vm_end - vma->vm_start != ring_bytes(mask + 1))
		return -EINVAL;
	/* As remap_vmalloc_range() does it, which takes only what vmalloc_user() made. */
	for (at = 0; at < ring_bytes(mask + 1) && !error; at += PAGE_SIZE)
		error = vm_insert_page(vma, vma->vm_start + at, vmalloc_to_page((u8 *)ring + at));
	return error;
}

/* A tail that makes no sense is a full ring. */
static u32 used(const struct sluice_sock *ss)
{
	return min(ss->ring_head - READ_ONCE(ss->ring->tail), ss->ring_mask + 1);
}

bool sluice_ring_room(const struct sluice_sock *ss, u32 more)
{
	return ss->ring && used(ss) + more <= ss->ring_mask + 1;
}

bool sluice_ring_put(struct sluice_sock *ss, const struct sluice_completion *entry)
{
	struct sluice_completion *entries;

	if (!sluice_ring_room(ss, 1))
		return false;
	entries = (struct sluice_completion *)(ss->ring + 1);
	entries[ss->ring_head & ss->ring_mask] = *entry;
	++ss->ring_head;
	/* Pairs with the reader's acquire: the entry is whole before it is counted. */
	smp_store_release(&ss->ring->head, ss->ring_head);
	return true;
}

bool sluice_ring_pending(const struct sluice_sock *ss)
{
	return ss->ring && used(ss) > 0;
}
