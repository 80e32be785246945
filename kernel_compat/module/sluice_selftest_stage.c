// SPDX-License-Identifier: GPL-2.0
/* What the module's tests of itself stand on: an interface whose frames are kept, and sockets that are looked at
 * when they are closed. Compiled only with SLUICE_SELFTEST. */
#include <linux/rtnetlink.h>

#include "sluice_selftest_stage.h"

bool sluice_selftest_good;

void sluice_selftest_expect(bool condition, const char *what, const char *file, int line)
{
	if (condition)
		return;
	sluice_selftest_good = false;
	pr_err("sluice: # %s:%d: not so: %s\n", file, line, what);
}

/* ---- an interface of our own, whose frames are kept */

struct net_device *sluice_selftest_interface;
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

int sluice_selftest_begin(void)
{
	int error;

	skb_queue_head_init(&frames);
	sluice_selftest_interface = alloc_etherdev(0);
	if (!sluice_selftest_interface)
		return -ENOMEM;
	sluice_selftest_interface->netdev_ops = &kInterfaceOps;
	strscpy(sluice_selftest_interface->name, "slptest%d", IFNAMSIZ);
	eth_hw_addr_random(sluice_selftest_interface);
	dev_net_set(sluice_selftest_interface, current->nsproxy->net_ns);
	error = register_netdev(sluice_selftest_interface);
	if (error) {
		free_netdev(sluice_selftest_interface);
		return error;
	}
	rtnl_lock();
	error = dev_open(sluice_selftest_interface, NULL);
	rtnl_unlock();
	return error;
}

void sluice_selftest_end(void)
{
	unregister_netdev(sluice_selftest_interface);
	skb_queue_purge(&frames);
	free_netdev(sluice_selftest_interface);
}

struct sk_buff *sluice_selftest_frame(void)
{
	wait_event_timeout(frame_came, !skb_queue_empty(&frames), 20 * HZ);
	return skb_dequeue(&frames);
}

void sluice_selftest_drop_frames(void)
{
	skb_queue_purge(&frames);
}

/* ---- sockets */

const struct sluice_place sluice_selftest_nobody = {.mac = {2, 0, 0, 0, 0, 1}, .port = 9};

struct sluice_sock *sluice_selftest_open(struct socket **sock)
{
	if (sock_create(sluice_family, SOCK_RDM, 0, sock))
		return NULL;
	return sluice_sk((*sock)->sk);
}

void sluice_selftest_close(struct socket *sock, struct sluice_sock *ss)
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
