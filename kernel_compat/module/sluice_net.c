// SPDX-License-Identifier: GPL-2.0
/* What the module has in each network namespace: the table of bound ports, counters, and a
 * ration of refusals. Ports are found under RCU; a socket is freed a grace period after its
 * port is given back (SOCK_RCU_FREE). */
#include <linux/hash.h>
#include <linux/if_arp.h>
#include <linux/jiffies.h>
#include <linux/random.h>
#include <linux/rculist.h>

#include "sluice_sock.h"

#define SLUICE_FIRST_FREE_PORT 32768
#define SLUICE_PORT_TRIES 64
#define SLUICE_REFUSALS_PER_SPAN 10
#define SLUICE_REFUSAL_SPAN (HZ / 100 ? HZ / 100 : 1)

unsigned int sluice_net_id;

static struct hlist_head *bucket_of(struct sluice_net *sn, u32 ifindex, u16 port)
{
	return &sn->ports[hash_32(ifindex << 16 ^ port, ilog2(SLUICE_PORT_BUCKETS))];
}

struct sluice_sock *sluice_port_find(struct net *net, u32 ifindex, u16 port)
{
	struct sluice_sock *ss;

	hlist_for_each_entry_rcu(ss, bucket_of(sluice_net_of(net), ifindex, port), port_node)
		if (ss->port == port && ss->ifindex == ifindex)
			return ss;
	return NULL;
}

/* Under sn->lock: the list does not change. */
static bool try_port(struct sluice_net *sn, struct sluice_sock *ss, u16 port)
{
	struct hlist_head *bucket = bucket_of(sn, ss->ifindex, port);
	struct sluice_sock *other;

	hlist_for_each_entry(other, bucket, port_node)
		if (other->port == port && other->ifindex == ss->ifindex)
			return false;
	ss->port = ss->listener.port = port;
	hlist_add_head_rcu(&ss->port_node, bucket);
	return true;
}

void sluice_port_look(struct sluice_sock *ss)
{
	struct net_device *dev = dev_get_by_index_rcu(sluice_sock_net(ss), ss->ifindex);

	if (dev)
		ss->listener.mtu = min_t(u32, dev->mtu, U16_MAX);
}

/* The interface that a port may be of; its mtu. */
static int look_at_interface(struct sluice_sock *ss, u32 ifindex)
{
	struct net_device *dev;
	int error = 0;

	rcu_read_lock();
	dev = dev_get_by_index_rcu(sluice_sock_net(ss), ifindex);
	if (!dev)
		error = -ENODEV;
	else if (dev->type != ARPHRD_ETHER || dev->mtu < SLP_LEAST_FRAME)
		error = -EPFNOSUPPORT;
	else
		ss->listener.mtu = min_t(u32, dev->mtu, U16_MAX);
	rcu_read_unlock();
	return error;
}

/* Port 0: any that is free. Under lock_sock(). */
int sluice_port_take(struct sluice_sock *ss, u32 ifindex, u16 port)
{
	struct sluice_net *sn = sluice_net_of(sluice_sock_net(ss));
	int error = look_at_interface(ss, ifindex), tries = port ? 1 : SLUICE_PORT_TRIES;
	bool taken = false;

	if (error)
		return error;
	get_random_bytes(ss->listener.secret, sizeof(ss->listener.secret));
	spin_lock_bh(&sn->lock);
	ss->ifindex = ifindex;
	while (!taken && tries-- > 0)
		taken = try_port(sn, ss, port ? port : SLUICE_FIRST_FREE_PORT + get_random_u32() % (U16_MAX - SLUICE_FIRST_FREE_PORT));
	spin_unlock_bh(&sn->lock);
	return taken ? 0 : -EADDRINUSE;
}

void sluice_port_give_back(struct sluice_sock *ss)
{
	struct sluice_net *sn = sluice_net_of(sluice_sock_net(ss));

	spin_lock_bh(&sn->lock);
	if (!hlist_unhashed(&ss->port_node))
		hlist_del_init_rcu(&ss->port_node);
	spin_unlock_bh(&sn->lock);
}

/* Approximate: two CPUs may begin a span at once. */
bool sluice_may_refuse(struct net *net)
{
	struct sluice_net *sn = sluice_net_of(net);
	unsigned long since = READ_ONCE(sn->refusals_since);

	if (time_after(jiffies, since + SLUICE_REFUSAL_SPAN)) {
		WRITE_ONCE(sn->refusals_since, jiffies);
		atomic_set(&sn->refusals, 0);
	}
	return atomic_inc_return(&sn->refusals) <= SLUICE_REFUSALS_PER_SPAN;
}
