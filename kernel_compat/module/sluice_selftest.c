// SPDX-License-Identifier: GPL-2.0
/* What a debug build asks of itself when it is loaded with selftest=1: what neither the core's tests in user space nor
 * programs can see. Results are in the kernel's log (KTAP) and in the parameters selftest_passed and
 * selftest_failed. Compiled only with SLUICE_SELFTEST; a failure does not keep the module from loading. */
#include <linux/kthread.h>
#include <linux/mman.h>
#include <linux/module.h>
#include <linux/rtnetlink.h>

#include "sluice_main.h"
#include "sluice_sock.h"

static bool wanted;
module_param_named(selftest, wanted, bool, 0444);
MODULE_PARM_DESC(selftest, "try what only the module itself can see, now");

static unsigned int passed, failed;
module_param_named(selftest_passed, passed, uint, 0444);
module_param_named(selftest_failed, failed, uint, 0444);

/* Loading, one step of which is refused. */
static unsigned int refused_step, steps;
module_param(refused_step, uint, 0444);
MODULE_PARM_DESC(refused_step, "the how-many-th step of loading fails: 1 to 7; 0: none");

int sluice_selftest_refuses(void)
{
	return ++steps == refused_step ? -ENOMEM : 0;
}

static bool good;

static void expect(bool condition, const char *what, int line)
{
	if (condition)
		return;
	good = false;
	pr_err("sluice: # line %d: not so: %s\n", line, what);
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)

/* ---- an interface of our own, whose frames are kept */

static struct net_device *interface;
static struct sk_buff_head frames;
static DECLARE_WAIT_QUEUE_HEAD(frame_came);

static netdev_tx_t keep_frame(struct sk_buff *skb, struct net_device *dev)
{
	if (skb->protocol != htons(sluice_ethertype())) { /* IPv6 finds its address */
		kfree_skb(skb);
		return NETDEV_TX_OK;
	}
	skb_orphan(skb);
	skb_queue_tail(&frames, skb);
	wake_up_all(&frame_came);
	return NETDEV_TX_OK;
}

static const struct net_device_ops kInterfaceOps = {.ndo_start_xmit = keep_frame};

static int make_interface(void)
{
	int error;

	skb_queue_head_init(&frames);
	interface = alloc_etherdev(0);
	if (!interface)
		return -ENOMEM;
	interface->netdev_ops = &kInterfaceOps;
	strscpy(interface->name, "slptest%d", IFNAMSIZ);
	eth_hw_addr_random(interface);
	dev_net_set(interface, current->nsproxy->net_ns);
	error = register_netdev(interface);
	if (error) {
		free_netdev(interface);
		return error;
	}
	rtnl_lock();
	error = dev_open(interface, NULL);
	rtnl_unlock();
	return error;
}

static void remove_interface(void)
{
	unregister_netdev(interface);
	skb_queue_purge(&frames);
	free_netdev(interface);
}

/* A frame that is here, or comes while we wait; a hang is ended. */
static struct sk_buff *next_frame(void)
{
	wait_event_timeout(frame_came, !skb_queue_empty(&frames), 20 * HZ);
	return skb_dequeue(&frames);
}

/* ---- sockets */

static struct sluice_sock *open_socket(struct socket **sock)
{
	if (sock_create(sluice_family, SOCK_RDM, 0, sock))
		return NULL;
	return sluice_sk((*sock)->sk);
}

/* Closes it, looks at what is left, and lets go. */
static void close_socket(struct socket *sock, struct sluice_sock *ss)
{
	sock_hold(&ss->sk);
	sock_release(sock);
	EXPECT(ss->closed && ss->peer_count == 0 && ss->peers_end == 0);
	EXPECT(!hrtimer_active(&ss->timer));
	EXPECT(!work_pending(&ss->work) && !delayed_work_pending(&ss->leaving_work) && !delayed_work_pending(&ss->memory_work));
	EXPECT(hlist_unhashed(&ss->port_node));
	EXPECT(ss->doubts == 0 && ss->transfers == 0 && list_empty(&ss->spans));
	sock_put(&ss->sk);
}

/* ---- limits */

static void shares_of_users(void)
{
	const kuid_t user = KUIDT_INIT(4242), other = KUIDT_INIT(4243);
	unsigned int had = sluice_max_sessions_per_user, taken = 0;

	sluice_max_sessions_per_user = 3;
	while (taken < 10 && sluice_quota_take(user, NULL, NULL))
		++taken;
	EXPECT(taken == 3);
	EXPECT(sluice_quota_take(other, NULL, NULL));
	sluice_quota_give_back(other, NULL, NULL);
	sluice_quota_give_back(user, NULL, NULL);
	EXPECT(sluice_quota_take(user, NULL, NULL));
	while (taken--)
		sluice_quota_give_back(user, NULL, NULL);
	EXPECT(sluice_quota_take(user, NULL, NULL));
	sluice_quota_give_back(user, NULL, NULL);
	sluice_max_sessions_per_user = had;
}

/* Who calls from one address takes neither all of the machine's sessions nor all of a user's; the last quarter is for others. */
static void shares_of_callers(void)
{
	static const u8 loud[ETH_ALEN] = {2, 0, 0, 0, 0, 7}, quiet[ETH_ALEN] = {2, 0, 0, 0, 0, 8};
	const struct net *net = current->nsproxy->net_ns;
	const kuid_t user = KUIDT_INIT(4242);
	unsigned int had = sluice_max_sessions, had_of_user = sluice_max_sessions_per_user, had_of_one = sluice_max_sessions_per_peer, taken = 0;

	sluice_max_sessions = 400;
	sluice_max_sessions_per_user = 128;
	sluice_max_sessions_per_peer = 50;
	while (taken < 400 && sluice_quota_take(user, net, loud))
		++taken;
	EXPECT(taken == 50);
	EXPECT(sluice_quota_take(user, net, quiet) && sluice_quota_take(user, NULL, NULL));
	sluice_quota_give_back(user, NULL, NULL);
	sluice_quota_give_back(user, net, quiet);
	sluice_max_sessions_per_peer = 400;
	while (taken < 400 && sluice_quota_take(user, net, loud))
		++taken;
	EXPECT(taken == 96); /* three quarters of the user's */
	EXPECT(sluice_quota_take(user, net, quiet));
	sluice_quota_give_back(user, net, quiet);
	while (taken--)
		sluice_quota_give_back(user, net, loud);
	EXPECT(sluice_quota_take(user, net, loud));
	sluice_quota_give_back(user, net, loud);
	sluice_max_sessions = had;
	sluice_max_sessions_per_user = had_of_user;
	sluice_max_sessions_per_peer = had_of_one;
}

/* ---- ports */

#define PORTS 64

static bool found(u16 port, const struct sluice_sock *ss)
{
	bool is;

	rcu_read_lock();
	is = sluice_port_find(current->nsproxy->net_ns, interface->ifindex, port) == ss;
	rcu_read_unlock();
	return is;
}

/* More ports than fit without two in a bucket. */
static void ports_are_found(void)
{
	struct socket *sock[PORTS], *late;
	struct sluice_sock *ss[PORTS], *other;
	int i, opened;

	for (opened = 0; opened < PORTS && (ss[opened] = open_socket(&sock[opened])); ++opened)
		EXPECT(sluice_port_take(ss[opened], interface->ifindex, 7000 + 256 * (opened % 4) + opened) == 0);
	EXPECT(opened == PORTS);
	other = open_socket(&late);
	EXPECT(other && sluice_port_take(other, interface->ifindex, 7000) == -EADDRINUSE);
	for (i = 0; i < opened; i += 2)
		sluice_port_give_back(ss[i]);
	for (i = 0; i < opened; ++i)
		EXPECT(found(7000 + 256 * (i % 4) + i, i % 2 ? ss[i] : NULL));
	EXPECT(other && sluice_port_take(other, interface->ifindex, 7000) == 0 && found(7000, other));
	for (i = 0; other && i < 100; ++i) {
		sluice_port_give_back(other);
		EXPECT(sluice_port_take(other, interface->ifindex, 0) == 0 && other->port >= 32768);
	}
	EXPECT(other && sluice_port_take(other, 0x7fffffff, 1) == -ENODEV);
	if (other)
		close_socket(late, other);
	while (opened--)
		close_socket(sock[opened], ss[opened]);
}

/* ---- sessions, and the timer */

static const struct sluice_place kNobody = {.mac = {2, 0, 0, 0, 0, 1}, .port = 9};

static void an_old_number_names_no_session(void)
{
	struct socket *sock;
	struct sluice_sock *ss = open_socket(&sock);
	struct sockaddr_sluice name = {.family = sluice_family, .port = kNobody.port};
	struct sluice_peer *peer;
	u32 number, old = 0, set = 0, clear = 0;
	int i;

	if (!ss)
		return EXPECT(ss);
	ether_addr_copy(name.mac, kNobody.mac);
	EXPECT(sluice_port_take(ss, interface->ifindex, 0) == 0);
	/* Each bit is there in some and not in others, but once in 2^34. */
	for (i = 0; i < 40; ++i) {
		peer = sluice_peer_of(ss, &kNobody);
		if (IS_ERR(peer))
			break;
		spin_lock_bh(&ss->lock);
		number = sluice_peer_number(peer);
		EXPECT(sluice_peer_numbered(ss, number) == peer && !sluice_peer_numbered(ss, old));
		EXPECT(!sluice_peer_numbered(ss, number ^ 1) && !sluice_peer_numbered(ss, number ^ 1u << 31) && !sluice_peer_numbered(ss, 0));
		spin_unlock_bh(&ss->lock);
		set |= number;
		clear |= ~number;
		old = number;
		sluice_peer_put(peer);
		EXPECT(sluice_peer_hang_up(ss, &name) == 0);
	}
	EXPECT(i == 40 && set == U32_MAX && clear == U32_MAX);
	flush_work(&ss->work);
	EXPECT(list_empty(&ss->machines));
	close_socket(sock, ss);
}

static void the_timer_alone_goes_on(void)
{
	struct socket *sock;
	struct sluice_sock *ss = open_socket(&sock);
	struct sluice_peer *peer;
	int i;

	if (!ss)
		return EXPECT(ss);
	skb_queue_purge(&frames);
	EXPECT(sluice_port_take(ss, interface->ifindex, 0) == 0);
	peer = sluice_peer_of(ss, &kNobody);
	EXPECT(!IS_ERR(peer));
	for (i = 0; i < 3 && !IS_ERR(peer); ++i) {
		struct sk_buff *skb = next_frame(); /* HELLO, by the call; then again and again, by the timer */

		EXPECT(skb);
		kfree_skb(skb);
		spin_lock_bh(&ss->lock);
		EXPECT(hrtimer_active(&ss->timer) && ss->timer_at <= slp_next_timeout(peer->session));
		spin_unlock_bh(&ss->lock);
	}
	if (!IS_ERR(peer))
		sluice_peer_put(peer);
	close_socket(sock, ss);
}

/* ---- memory */

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

static void what_is_pinned_is_counted_and_comes_back(void)
{
	struct socket *sock;
	struct sluice_sock *ss = open_socket(&sock);
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
	close_socket(sock, ss);
	EXPECT(pinned() == before);
	vm_munmap(at, PAGES * PAGE_SIZE);
}

/* While the work queue is kept from looking. */
static void memory_in_doubt_is_not_touched(void)
{
	struct socket *sock;
	struct sluice_sock *ss = open_socket(&sock);
	unsigned long at = map_pages();
	const u64 before = pinned();
	struct sluice_region *region;
	struct sluice_span span = {};
	struct slp_tx tx = {.from_memory = true, .cookie = (unsigned long)&span, .bytes = 1000};
	struct sk_buff *skb;
	int i;

	if (!ss || IS_ERR_VALUE(at))
		return EXPECT(ss && !IS_ERR_VALUE(at));
	EXPECT(sluice_port_take(ss, interface->ifindex, 0) == 0);
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
	skb = sluice_frame_from(ss, kNobody.mac, &tx);
	EXPECT(skb && skb->len == ETH_HLEN + 1000);
	for (i = 0; skb && i < 1000; ++i)
		good = good && skb->data[ETH_HLEN + i] == (u8)(i * 7);
	kfree_skb(skb);
	rcu_read_unlock();

	mutex_lock(&ss->memory);
	EXPECT(vm_munmap(at + 3 * PAGE_SIZE, PAGE_SIZE) == 0);
	spin_lock_bh(&ss->lock);
	EXPECT(region->state == SLUICE_REGION_DOUBTED && ss->doubts == 1);
	EXPECT(region->doubt_first == 3 && region->doubt_end == 4);
	EXPECT(!sluice_frame_from(ss, kNobody.mac, &tx));
	spin_unlock_bh(&ss->lock);
	EXPECT(vm_munmap(at + 9 * PAGE_SIZE, PAGE_SIZE) == 0);
	EXPECT(ss->doubts == 1 && region->doubt_first == 3 && region->doubt_end == 10);
	EXPECT(pinned() == before + PAGES);
	mutex_unlock(&ss->memory);

	flush_delayed_work(&ss->memory_work);
	EXPECT(region->state == SLUICE_REGION_GONE && !region->pages && ss->doubts == 0);
	EXPECT(pinned() == before);
	EXPECT(sluice_region_remove(ss, 0) == 0);
	close_socket(sock, ss);
	vm_munmap(at, PAGES * PAGE_SIZE);
}

/* Removed, or left to close, while somebody looks at it. */
static void memory_goes_while_it_is_doubted(void)
{
	const u64 before = pinned();
	int i;

	for (i = 0; i < 40; ++i) {
		struct socket *sock;
		struct sluice_sock *ss = open_socket(&sock);
		unsigned long at = map_pages();

		if (!ss || IS_ERR_VALUE(at))
			return EXPECT(ss && !IS_ERR_VALUE(at));
		EXPECT(add(ss, at, PAGES * PAGE_SIZE) == 0);
		vm_munmap(at, PAGES * PAGE_SIZE);
		if (i % 2)
			EXPECT(sluice_region_remove(ss, 0) == 0);
		close_socket(sock, ss);
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
	struct sockaddr_sluice name = {.family = sluice_family, .port = kNobody.port};
	struct sluice_peer *peer = sluice_peer_of(ss, &kNobody);

	ether_addr_copy(name.mac, kNobody.mac);
	if (IS_ERR(peer))
		return false;
	sluice_peer_put(peer);
	if (sluice_peer_hang_up(ss, &name))
		return false;
	peer = sluice_peer_of(ss, &kNobody);
	if (IS_ERR(peer))
		return false;
	sluice_peer_put(peer);
	return true;
}

/* While another keeps the map of the process whose memory it is. */
static void a_locked_map_holds_up_no_session(void)
{
	struct socket *sock;
	struct sluice_sock *ss = open_socket(&sock);
	unsigned long at = map_pages();
	struct holder holder = {.mm = current->mm};
	struct task_struct *task;
	int tries;

	if (!ss || IS_ERR_VALUE(at))
		return EXPECT(ss && !IS_ERR_VALUE(at));
	EXPECT(sluice_port_take(ss, interface->ifindex, 0) == 0);
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
	close_socket(sock, ss);
	vm_munmap(at, PAGES * PAGE_SIZE);
}

static const struct {
	const char *name;
	void (*run)(void);
} kTests[] = {
	{"shares of users", shares_of_users},
	{"shares of callers", shares_of_callers},
	{"ports are found", ports_are_found},
	{"an old number names no session", an_old_number_names_no_session},
	{"the timer alone goes on", the_timer_alone_goes_on},
	{"what is pinned is counted and comes back", what_is_pinned_is_counted_and_comes_back},
	{"memory in doubt is not touched", memory_in_doubt_is_not_touched},
	{"memory goes while it is doubted", memory_goes_while_it_is_doubted},
	{"a locked map holds up no session", a_locked_map_holds_up_no_session},
};

/* By whoever loads the module; everything else is there. */
void sluice_selftest(void)
{
	unsigned int i;

	if (!wanted)
		return;
	if (!current->mm || make_interface()) {
		pr_err("sluice: # no process, or no interface, to try with\n");
		failed = ARRAY_SIZE(kTests);
		return;
	}
	pr_info("KTAP version 1\n1..%zu\n", ARRAY_SIZE(kTests));
	for (i = 0; i < ARRAY_SIZE(kTests); ++i) {
		good = true;
		kTests[i].run();
		pr_info("%s %u %s\n", good ? "ok" : "not ok", i + 1, kTests[i].name);
		if (good)
			++passed;
		else
			++failed;
	}
	remove_interface();
	/* Sockets are freed a grace period after the last look at them. */
	rcu_barrier();
}
