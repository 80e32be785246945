// SPDX-License-Identifier: GPL-2.0
/* The module's tests of itself about registered memory: what is pinned is counted, and memory that may be gone is not
 * touched. Compiled only with SLUICE_SELFTEST. */
#include <linux/kthread.h>
#include <linux/mman.h>

#include "sluice_selftest_stage.h"

#define PAGES 16

static u64 pinned(void)
{
	return atomic64_read(&current->mm->pinned_vm);
}

static unsigned long map_pages(void)
{
	return vm_mmap(NULL, 0, PAGES * PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, 0);
}

static int add(struct sluice_sock *ss, unsigned long address, u64 length)
{
	struct sluice_register request = {.address = address, .length = length};

	return sluice_region_add(ss, &request) ?: (int)request.region;
}

void sluice_selftest_pinned_memory(void)
{
	struct socket *sock;
	struct sluice_sock *ss = sluice_selftest_open(&sock);
	unsigned long at = map_pages();
	const u64 before = pinned();
	int i;

	if (!ss || IS_ERR_VALUE(at))
		return EXPECT(ss && !IS_ERR_VALUE(at));
	EXPECT(add(ss, at + 1, PAGE_SIZE) == 0 && pinned() == before + 2); /* across two */
	EXPECT(vm_munmap(at + (PAGES - 1) * PAGE_SIZE, PAGE_SIZE) == 0);
	EXPECT(add(ss, at + 2 * PAGE_SIZE, (PAGES - 2) * PAGE_SIZE) == -EFAULT && pinned() == before + 2);
	for (i = 1; i < SLUICE_MAX_REGIONS; ++i)
		EXPECT(add(ss, at, 1) == i);
	EXPECT(add(ss, at, 1) == -ENOBUFS && pinned() == before + SLUICE_MAX_REGIONS + 1);
	EXPECT(sluice_region_remove(ss, 0) == 0 && pinned() == before + SLUICE_MAX_REGIONS - 1);
	EXPECT(sluice_region_remove(ss, 0) == -EBADSLT && add(ss, at, 1) == 0);
	sluice_selftest_close(sock, ss);
	EXPECT(pinned() == before);
	vm_munmap(at, PAGES * PAGE_SIZE);
}

void sluice_selftest_doubted_memory(void)
{
	struct socket *sock;
	struct sluice_sock *ss = sluice_selftest_open(&sock);
	unsigned long at = map_pages();
	const u64 before = pinned();
	struct sluice_region *region;
	struct sluice_span span = {};
	struct slp_tx tx = {.from_memory = true, .cookie = (unsigned long)&span, .bytes = 1000};
	struct sk_buff *skb;
	int i;

	if (!ss || IS_ERR_VALUE(at))
		return EXPECT(ss && !IS_ERR_VALUE(at));
	EXPECT(sluice_port_take(ss, sluice_selftest_interface->ifindex, 0) == 0);
	EXPECT(add(ss, at, PAGES * PAGE_SIZE) == 0);
	region = span.region = ss->regions[0];
	span.offset = PAGE_SIZE - 500;
	skb = alloc_skb(1000, GFP_KERNEL);
	EXPECT(skb);
	for (i = 0; skb && i < 1000; ++i)
		skb_put_u8(skb, i * 7);
	for (i = 0; skb && i < 1000; i += 10)
		sluice_region_write(region, span.offset + i, skb, i, 10);
	kfree_skb(skb);
	rcu_read_lock();
	skb = sluice_frame_from(ss, sluice_selftest_nobody.mac, &tx);
	EXPECT(skb && skb->len == ETH_HLEN + 1000);
	for (i = 0; skb && i < 1000; ++i)
		sluice_selftest_good = sluice_selftest_good && skb->data[ETH_HLEN + i] == (u8)(i * 7);
	kfree_skb(skb);
	rcu_read_unlock();

	mutex_lock(&ss->memory);
	EXPECT(vm_munmap(at + 3 * PAGE_SIZE, PAGE_SIZE) == 0);
	spin_lock_bh(&ss->lock);
	EXPECT(region->state == SLUICE_REGION_DOUBTED && ss->doubts == 1);
	EXPECT(region->doubt_first == 3 && region->doubt_end == 4);
	EXPECT(!sluice_frame_from(ss, sluice_selftest_nobody.mac, &tx));
	spin_unlock_bh(&ss->lock);
	EXPECT(vm_munmap(at + 9 * PAGE_SIZE, PAGE_SIZE) == 0);
	EXPECT(ss->doubts == 1 && region->doubt_first == 3 && region->doubt_end == 10);
	EXPECT(pinned() == before + PAGES);
	mutex_unlock(&ss->memory);

	flush_delayed_work(&ss->memory_work);
	EXPECT(region->state == SLUICE_REGION_GONE && !region->pages && ss->doubts == 0);
	EXPECT(pinned() == before);
	EXPECT(sluice_region_remove(ss, 0) == 0);
	sluice_selftest_close(sock, ss);
	vm_munmap(at, PAGES * PAGE_SIZE);
}

void sluice_selftest_leaving_memory(void)
{
	const u64 before = pinned();
	int i;

	for (i = 0; i < 40; ++i) {
		struct socket *sock;
		struct sluice_sock *ss = sluice_selftest_open(&sock);
		unsigned long at = map_pages();

		if (!ss || IS_ERR_VALUE(at))
			return EXPECT(ss && !IS_ERR_VALUE(at));
		EXPECT(add(ss, at, PAGES * PAGE_SIZE) == 0);
		vm_munmap(at, PAGES * PAGE_SIZE);
		if (i % 2)
			EXPECT(sluice_region_remove(ss, 0) == 0);
		sluice_selftest_close(sock, ss);
		EXPECT(pinned() == before);
	}
}

/* Somebody who keeps a map to himself, for ten seconds at most. */
struct holder {
	struct mm_struct *mm;
	bool has, in_time;
};

static int hold_map(void *user)
{
	struct holder *holder = user;
	unsigned long until = jiffies + 10 * HZ;

	kthread_use_mm(holder->mm);
	mmap_write_lock(holder->mm);
	WRITE_ONCE(holder->has, true);
	while (!kthread_should_stop() && time_before(jiffies, until))
		schedule_timeout_interruptible(1);
	holder->in_time = kthread_should_stop();
	mmap_write_unlock(holder->mm);
	kthread_unuse_mm(holder->mm);
	while (!kthread_should_stop())
		schedule_timeout_interruptible(1);
	return 0;
}

/* A session with the same peer is begun anew, which waits for the work that takes the old one away. */
static bool call_again(struct sluice_sock *ss)
{
	struct sockaddr_sluice name = {.family = sluice_family, .port = sluice_selftest_nobody.port};
	struct sluice_peer *peer = sluice_peer_of(ss, &sluice_selftest_nobody);

	ether_addr_copy(name.mac, sluice_selftest_nobody.mac);
	if (IS_ERR(peer))
		return false;
	sluice_peer_put(peer);
	if (sluice_peer_hang_up(ss, &name))
		return false;
	peer = sluice_peer_of(ss, &sluice_selftest_nobody);
	if (IS_ERR(peer))
		return false;
	sluice_peer_put(peer);
	return true;
}

void sluice_selftest_locked_map(void)
{
	struct socket *sock;
	struct sluice_sock *ss = sluice_selftest_open(&sock);
	unsigned long at = map_pages();
	struct holder holder = {.mm = current->mm};
	struct task_struct *task;
	int tries;

	if (!ss || IS_ERR_VALUE(at))
		return EXPECT(ss && !IS_ERR_VALUE(at));
	EXPECT(sluice_port_take(ss, sluice_selftest_interface->ifindex, 0) == 0);
	EXPECT(add(ss, at, PAGES * PAGE_SIZE) == 0);
	mutex_lock(&ss->memory);
	EXPECT(vm_munmap(at + PAGE_SIZE, PAGE_SIZE) == 0);
	task = kthread_run(hold_map, &holder, "sluice_holder");
	EXPECT(!IS_ERR(task));
	while (!IS_ERR(task) && !READ_ONCE(holder.has))
		schedule_timeout_uninterruptible(1);
	mutex_unlock(&ss->memory);
	schedule_timeout_uninterruptible(HZ / 10); /* it is being looked at */
	EXPECT(call_again(ss));
	EXPECT(ss->regions[0]->state == SLUICE_REGION_DOUBTED);
	if (!IS_ERR(task))
		kthread_stop(task);
	EXPECT(holder.in_time);
	for (tries = 0; tries < 20 * HZ && READ_ONCE(ss->regions[0]->state) != SLUICE_REGION_GONE; ++tries)
		schedule_timeout_uninterruptible(1);
	EXPECT(ss->regions[0]->state == SLUICE_REGION_GONE);
	sluice_selftest_close(sock, ss);
	vm_munmap(at, PAGES * PAGE_SIZE);
}
