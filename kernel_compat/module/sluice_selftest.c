// SPDX-License-Identifier: GPL-2.0
/* What a debug build asks of itself when it is loaded with selftest=1: what neither the core's tests in user space nor
 * programs can see. Results are in the kernel's log (KTAP) and in the parameters selftest_passed and
 * selftest_failed. Compiled only with SLUICE_SELFTEST; a failure does not keep the module from loading. */
#include <linux/module.h>

#include "sluice_main.h"
#include "sluice_selftest_stage.h"

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
	is = sluice_port_find(current->nsproxy->net_ns, sluice_selftest_interface->ifindex, port) == ss;
	rcu_read_unlock();
	return is;
}

/* More ports than fit without two in a bucket. */
static void ports_are_found(void)
{
	struct socket *sock[PORTS], *late;
	struct sluice_sock *ss[PORTS], *other;
	int i, opened;

	for (opened = 0; opened < PORTS && (ss[opened] = sluice_selftest_open(&sock[opened])); ++opened)
		EXPECT(sluice_port_take(ss[opened], sluice_selftest_interface->ifindex, 7000 + 256 * (opened % 4) + opened) == 0);
	EXPECT(opened == PORTS);
	other = sluice_selftest_open(&late);
	EXPECT(other && sluice_port_take(other, sluice_selftest_interface->ifindex, 7000) == -EADDRINUSE);
	for (i = 0; i < opened; i += 2)
		sluice_port_give_back(ss[i]);
	for (i = 0; i < opened; ++i)
		EXPECT(found(7000 + 256 * (i % 4) + i, i % 2 ? ss[i] : NULL));
	EXPECT(other && sluice_port_take(other, sluice_selftest_interface->ifindex, 7000) == 0 && found(7000, other));
	for (i = 0; other && i < 100; ++i) {
		sluice_port_give_back(other);
		EXPECT(sluice_port_take(other, sluice_selftest_interface->ifindex, 0) == 0 && other->port >= 32768);
	}
	EXPECT(other && sluice_port_take(other, 0x7fffffff, 1) == -ENODEV);
	if (other)
		sluice_selftest_close(late, other);
	while (opened--)
		sluice_selftest_close(sock[opened], ss[opened]);
}

/* ---- sessions, and the timer */

static void an_old_number_names_no_session(void)
{
	struct socket *sock;
	struct sluice_sock *ss = sluice_selftest_open(&sock);
	struct sockaddr_sluice name = {.family = sluice_family, .port = sluice_selftest_nobody.port};
	struct sluice_peer *peer;
	u32 number, old = 0, set = 0, clear = 0;
	int i;

	if (!ss)
		return EXPECT(ss);
	ether_addr_copy(name.mac, sluice_selftest_nobody.mac);
	EXPECT(sluice_port_take(ss, sluice_selftest_interface->ifindex, 0) == 0);
	/* Each bit is there in some and not in others, but once in 2^34. */
	for (i = 0; i < 40; ++i) {
		peer = sluice_peer_of(ss, &sluice_selftest_nobody);
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
	sluice_selftest_close(sock, ss);
}

static void the_timer_alone_goes_on(void)
{
	struct socket *sock;
	struct sluice_sock *ss = sluice_selftest_open(&sock);
	struct sluice_peer *peer;
	int i;

	if (!ss)
		return EXPECT(ss);
	sluice_selftest_drop_frames();
	EXPECT(sluice_port_take(ss, sluice_selftest_interface->ifindex, 0) == 0);
	peer = sluice_peer_of(ss, &sluice_selftest_nobody);
	EXPECT(!IS_ERR(peer));
	for (i = 0; i < 3 && !IS_ERR(peer); ++i) {
		struct sk_buff *skb = sluice_selftest_frame(); /* HELLO, by the call; then again and again, by the timer */

		EXPECT(skb);
		kfree_skb(skb);
		spin_lock_bh(&ss->lock);
		EXPECT(hrtimer_active(&ss->timer) && ss->timer_at <= slp_next_timeout(peer->session));
		spin_unlock_bh(&ss->lock);
	}
	if (!IS_ERR(peer))
		sluice_peer_put(peer);
	sluice_selftest_close(sock, ss);
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
	{"what is pinned is counted and comes back", sluice_selftest_pinned_memory},
	{"memory in doubt is not touched", sluice_selftest_doubted_memory},
	{"memory goes while it is doubted", sluice_selftest_leaving_memory},
	{"a locked map holds up no session", sluice_selftest_locked_map},
};

/* By whoever loads the module; everything else is there. */
void sluice_selftest(void)
{
	unsigned int i;

	if (!wanted)
		return;
	if (!current->mm || sluice_selftest_begin()) {
		pr_err("sluice: # no process, or no interface, to try with\n");
		failed = ARRAY_SIZE(kTests);
		return;
	}
	pr_info("KTAP version 1\n1..%zu\n", ARRAY_SIZE(kTests));
	for (i = 0; i < ARRAY_SIZE(kTests); ++i) {
		sluice_selftest_good = true;
		kTests[i].run();
		pr_info("%s %u %s\n", sluice_selftest_good ? "ok" : "not ok", i + 1, kTests[i].name);
		if (sluice_selftest_good)
			++passed;
		else
			++failed;
	}
	sluice_selftest_end();
	/* Sockets are freed a grace period after the last look at them. */
	rcu_barrier();
}
