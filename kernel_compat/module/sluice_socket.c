// SPDX-License-Identifier: GPL-2.0
/* The sockets: reliable datagrams (SOCK_RDM). One socket has a port of an interface and talks
 * with as many peers as it likes, or, connected, with one. Knows no message and no memory of a
 * process: sluice_message.c, sluice_transfer.c. */
#include <linux/memcontrol.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/sched/signal.h>

#include "sluice_sock.h"

/* Ports before it are the administrator's to give. */
#define SLUICE_FIRST_OPEN_PORT 1024

static const struct proto_ops kSocketOps;

/* ---- beginning and end */

static void destruct(struct sock *sk)
{
	skb_queue_purge(&sk->sk_receive_queue);
	WARN_ON_ONCE(sluice_sk(sk)->peer_count || !list_empty(&sluice_sk(sk)->spans));
	WARN_ON_ONCE(atomic_read(&sk->sk_rmem_alloc));
	WARN_ON_ONCE(refcount_read(&sk->sk_wmem_alloc));
	mem_cgroup_put(sluice_sk(sk)->memcg);
}

/* The end of a socket, once. After `closed` nothing of it is started; what runs is waited for,
 * so that nobody looks at the sessions when they are freed. Frames of its own that a device
 * still holds keep the socket, not its sessions. */
static void finish(struct sluice_sock *ss)
{
	struct sk_buff_head out;
	u32 i;

	sluice_port_give_back(ss);
	__skb_queue_head_init(&out);
	rcu_read_lock();
	spin_lock_bh(&ss->lock);
	ss->now = ktime_get_ns();
	for (i = 0; i < ss->peers_end; ++i)
		if (ss->peers[i])
			sluice_peer_abort(ss->peers[i], SLP_LOCAL, &out);
	ss->closed = true;
	spin_unlock_bh(&ss->lock);
	sluice_frames_send(&out);
	rcu_read_unlock();
	hrtimer_cancel(&ss->timer);
	cancel_delayed_work(&ss->leaving_work);
	if (cancel_work_sync(&ss->work))
		__sock_put(&ss->sk);
	if (cancel_delayed_work_sync(&ss->memory_work))
		__sock_put(&ss->sk);
	if (ss->connected)
		sluice_peer_put(ss->connected);
	ss->connected = NULL;
	/* A frame that was found its socket before the port was given back, and waited for the
	 * lock, sees `closed`. */
	for (i = 0; i < ss->peers_end; ++i)
		if (ss->peers[i])
			sluice_peer_put(ss->peers[i]);
	ss->peers_end = ss->peer_count = 0;
	sluice_machines_free(ss);
	sluice_spans_drop(ss);
	sluice_regions_free(ss);
	sluice_ring_free(ss);
}

/* Runs once: after `closed` nobody queues it, and finish() takes back a second order. */
static void finish_leaving(struct work_struct *work)
{
	struct sluice_sock *ss = container_of(to_delayed_work(work), struct sluice_sock, leaving_work);

	finish(ss);
	sock_put(&ss->sk);
}

/* What was sent still goes out for a while, also when the process was killed. */
static int release(struct socket *sock)
{
	struct sock *sk = sock->sk;
	struct sluice_sock *ss;
	bool leave;

	if (!sk)
		return 0;
	ss = sluice_sk(sk);
	sock_orphan(sk);
	sock->sk = NULL;
	spin_lock_bh(&ss->lock);
	leave = !sluice_sock_drained(ss) && !(sock_flag(sk, SOCK_LINGER) && !sk->sk_lingertime);
	if (leave) {
		/* From here on whoever sends the last frame may order the end at once. */
		ss->leaving = true;
		sock_hold(sk);
		queue_delayed_work(sluice_workqueue, &ss->leaving_work, msecs_to_jiffies(SLUICE_LEAVING_MS));
	}
	spin_unlock_bh(&ss->lock);
	if (!leave)
		finish(ss);
	sock_put(sk);
	return 0;
}

static int create(struct net *net, struct socket *sock, int protocol, int kern)
{
	struct sluice_sock *ss;
	struct sock *sk;

	if (!sluice_may_open(net))
		return -EPERM;
	if (sock->type != SOCK_RDM)
		return -ESOCKTNOSUPPORT;
	if (protocol != 0)
		return -EPROTONOSUPPORT;
	sk = sk_alloc(net, sluice_family, GFP_KERNEL_ACCOUNT, &sluice_proto, kern);
	if (!sk)
		return -ENOMEM;
	sock->ops = &kSocketOps;
	sock_init_data(sock, sk);
	sock_set_flag(sk, SOCK_RCU_FREE);
	sk->sk_destruct = destruct;
	ss = sluice_sk(sk);
	spin_lock_init(&ss->lock);
	INIT_HLIST_NODE(&ss->port_node);
	INIT_LIST_HEAD(&ss->spans);
	INIT_LIST_HEAD(&ss->machines);
	ss->hash_seed = get_random_u32();
	mutex_init(&ss->memory);
	INIT_WORK(&ss->work, sluice_sock_work);
	INIT_DELAYED_WORK(&ss->memory_work, sluice_memory_work);
	INIT_DELAYED_WORK(&ss->leaving_work, finish_leaving);
	ss->memcg = get_mem_cgroup_from_mm(current->mm);
	hrtimer_init(&ss->timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_SOFT);
	ss->timer.function = sluice_sock_timer;
	ss->timer_at = SLP_NEVER;
	ss->peer_limit = 64;
	ss->dead_ms = 3000;
	ss->lending = true;
	slp_node_init(&ss->node, SLUICE_PULL_BUDGET);
	return 0;
}

struct proto sluice_proto = {
	.name = "SLUICE",
	.owner = THIS_MODULE,
	.obj_size = sizeof(struct sluice_sock),
};

struct net_proto_family sluice_family_ops = {
	.create = create,
	.owner = THIS_MODULE,
};

/* ---- addresses */

static bool own_address(struct sluice_sock *ss, u32 ifindex, u8 *mac)
{
	struct net_device *dev;

	rcu_read_lock();
	dev = dev_get_by_index_rcu(sluice_sock_net(ss), ifindex);
	if (dev && dev->addr_len == ETH_ALEN)
		ether_addr_copy(mac, dev->dev_addr);
	rcu_read_unlock();
	return dev;
}

static int bind(struct socket *sock, struct sockaddr *address, int length)
{
	struct sluice_sock *ss = sluice_sk(sock->sk);
	struct sockaddr_sluice at;
	u8 own[ETH_ALEN] = {0};
	int error = sluice_address_read(address, length, &at);

	if (error)
		return error;
	if (at.port && at.port < SLUICE_FIRST_OPEN_PORT && !ns_capable(sock_net(sock->sk)->user_ns, CAP_NET_BIND_SERVICE))
		return -EACCES;
	if (!own_address(ss, at.ifindex, own))
		return -ENODEV;
	if (!is_zero_ether_addr(at.mac) && !ether_addr_equal(at.mac, own))
		return -EADDRNOTAVAIL;
	lock_sock(sock->sk);
	error = ss->bound ? -EINVAL : sluice_bind(ss, at.ifindex, at.port);
	release_sock(sock->sk);
	return error;
}

static int name_of(struct socket *sock, struct sockaddr *address, int peer)
{
	struct sluice_sock *ss = sluice_sk(sock->sk);
	struct sockaddr_sluice out;
	u8 mac[ETH_ALEN] = {0};
	int error = 0;

	if (peer) {
		spin_lock_bh(&ss->lock);
		if (ss->connected)
			sluice_address_fill(ss, &out, ss->connected->mac, ss->connected->port);
		else
			error = -ENOTCONN;
		spin_unlock_bh(&ss->lock);
	} else {
		if (ss->bound)
			own_address(ss, ss->ifindex, mac);
		sluice_address_fill(ss, &out, mac, ss->port);
	}
	if (error)
		return error;
	memcpy(address, &out, sizeof(out));
	return sizeof(out);
}

/* ---- connecting */

/* From `peer`, if that is still the connected one; null: from whichever it is. */
static void disconnect(struct sluice_sock *ss, struct sluice_peer *peer)
{
	struct sk_buff_head out;

	__skb_queue_head_init(&out);
	rcu_read_lock();
	spin_lock_bh(&ss->lock);
	ss->now = ktime_get_ns();
	peer = !peer || peer == ss->connected ? ss->connected : NULL;
	if (peer) {
		ss->connected = NULL;
		sluice_peer_abort(peer, SLP_LOCAL, &out);
		peer->told = true;
		WRITE_ONCE(ss->sk.sk_shutdown, 0);
		WRITE_ONCE(ss->sk.sk_err, 0);
		sluice_sock_later(ss);
	}
	spin_unlock_bh(&ss->lock);
	sluice_frames_send(&out);
	rcu_read_unlock();
	if (peer)
		sluice_peer_put(peer);
}

/* A connected socket hears nobody else. Takes the reference to `peer` if it succeeds. */
static int attach(struct sluice_sock *ss, struct sluice_peer *peer)
{
	struct sk_buff_head out;
	int error = 0;
	u32 i;

	__skb_queue_head_init(&out);
	rcu_read_lock();
	spin_lock_bh(&ss->lock);
	if (ss->connected) {
		error = ss->connected->up ? -EISCONN : -EALREADY;
	} else {
		ss->connected = peer;
		ss->now = ktime_get_ns();
		for (i = 0; i < ss->peers_end; ++i)
			if (ss->peers[i] && ss->peers[i] != peer) {
				ss->peers[i]->told = true;
				sluice_peer_abort(ss->peers[i], SLP_LOCAL, &out);
			}
		/* It may have ended before it was the connected one. */
		if (peer->over) {
			WRITE_ONCE(ss->sk.sk_err, -sluice_errno(peer->why));
			WRITE_ONCE(ss->sk.sk_shutdown, SHUTDOWN_MASK);
		}
	}
	spin_unlock_bh(&ss->lock);
	sluice_frames_send(&out);
	rcu_read_unlock();
	return error;
}

/* 1: the session has ended before it was up. A signal gives EINTR, also where its handler has
 * SA_RESTART (connect(2)): the call that is made again would find a session that has begun. */
static int await_up(struct sluice_sock *ss, struct sluice_peer *peer, int flags)
{
	long left = sock_sndtimeo(&ss->sk, flags & O_NONBLOCK);
	int error = left ? 0 : -EINPROGRESS;
	DEFINE_WAIT_FUNC(wait, woken_wake_function);

	add_wait_queue(sk_sleep(&ss->sk), &wait);
	while (!READ_ONCE(peer->up) && !READ_ONCE(peer->over) && !error) {
		if (signal_pending(current))
			error = -EINTR;
		else if (!left)
			error = -ETIMEDOUT;
		else
			left = wait_woken(&wait, TASK_INTERRUPTIBLE, left);
	}
	remove_wait_queue(sk_sleep(&ss->sk), &wait);
	if (READ_ONCE(peer->up))
		return 0; /* recvmsg() tells of its end */
	return READ_ONCE(peer->over) ? 1 : error;
}

static int connect(struct socket *sock, struct sockaddr *address, int length, int flags)
{
	struct sluice_sock *ss = sluice_sk(sock->sk);
	struct sockaddr_sluice at;
	struct sluice_place place;
	struct sluice_peer *peer;
	int error;

	if (length >= (int)sizeof(address->sa_family) && address->sa_family == AF_UNSPEC) {
		disconnect(ss, NULL);
		return 0;
	}
	error = sluice_address_read(address, length, &at);
	if (!error)
		error = sluice_aim(ss, &at, &place);
	if (error)
		return error;
	spin_lock_bh(&ss->lock);
	if (ss->connected)
		error = ss->connected->up ? -EISCONN : ss->connected->over ? sluice_errno(ss->connected->why) : -EALREADY;
	spin_unlock_bh(&ss->lock);
	if (error)
		return error;
	peer = sluice_peer_of(ss, &place);
	if (IS_ERR(peer))
		return PTR_ERR(peer);
	refcount_inc(&peer->references);
	error = attach(ss, peer);
	if (error) {
		sluice_peer_put(peer);
		sluice_peer_put(peer);
		return error;
	}
	/* Interrupted: it goes on, as TCP's does, and SO_ERROR tells its end, but for one told here. */
	error = await_up(ss, peer, flags);
	if (error > 0) {
		disconnect(ss, peer); /* whose lock orders `why` behind `over` */
		error = sluice_errno(peer->why);
	}
	sluice_peer_put(peer);
	return error;
}

/* SLP has no half-closed sessions: what was sent goes out, the rest ends with close(). */
static int shutdown(struct socket *sock, int how)
{
	struct sluice_sock *ss = sluice_sk(sock->sk);
	struct sk_buff_head out;
	int error = 0;

	if (how < SHUT_RD || how > SHUT_RDWR)
		return -EINVAL;
	__skb_queue_head_init(&out);
	rcu_read_lock();
	spin_lock_bh(&ss->lock);
	if (ss->connected)
		WRITE_ONCE(sock->sk->sk_shutdown, sock->sk->sk_shutdown | (how + 1));
	else
		error = -ENOTCONN;
	/* Messages that nobody will read do not hold up the sender. */
	ss->now = ktime_get_ns();
	if (!error && ss->stalled)
		sluice_sock_resume(ss, &out);
	spin_unlock_bh(&ss->lock);
	sluice_frames_send(&out);
	rcu_read_unlock();
	if (!error)
		sluice_sock_wake(sock->sk, EPOLLIN | EPOLLOUT | EPOLLHUP);
	return error;
}

/* ---- an interface that goes */

/* Under sluice_net.lock: see the order of locks in sluice.h. */
static void cut(struct sluice_sock *ss, bool gone)
{
	struct sk_buff_head out;
	u32 i;

	__skb_queue_head_init(&out);
	rcu_read_lock();
	spin_lock(&ss->lock);
	if (gone)
		WRITE_ONCE(ss->gone, true);
	ss->now = ktime_get_ns();
	for (i = 0; i < ss->peers_end && !ss->closed; ++i) {
		if (!ss->peers[i])
			continue;
		sluice_peer_abort(ss->peers[i], SLP_LOCAL, &out);
	}
	if (gone || ss->connected)
		WRITE_ONCE(ss->sk.sk_err, gone ? ENODEV : ECONNABORTED);
	sluice_sock_later(ss);
	spin_unlock(&ss->lock);
	/* From another address, or to no device: no peer would take them. */
	__skb_queue_purge(&out);
	rcu_read_unlock();
	sluice_sock_wake(&ss->sk, EPOLLIN | EPOLLOUT | EPOLLERR);
}

void sluice_ports_cut(struct net *net, u32 ifindex, bool gone)
{
	struct sluice_net *sn = sluice_net_of(net);
	struct hlist_node *next;
	struct sluice_sock *ss;
	int i;

	spin_lock_bh(&sn->lock);
	for (i = 0; i < SLUICE_PORT_BUCKETS; ++i) {
		hlist_for_each_entry_safe(ss, next, &sn->ports[i], port_node) {
			if (ss->ifindex != ifindex)
				continue;
			/* Another interface may get this number one day. */
			if (gone)
				hlist_del_init_rcu(&ss->port_node);
			cut(ss, gone);
		}
	}
	spin_unlock_bh(&sn->lock);
}

static const struct proto_ops kSocketOps = {
	.owner = THIS_MODULE,
	.release = release,
	.bind = bind,
	.connect = connect,
	.socketpair = sock_no_socketpair,
	.accept = sock_no_accept,
	.getname = name_of,
	.poll = sluice_poll,
	.ioctl = sluice_ioctl,
	.listen = sock_no_listen,
	.shutdown = shutdown,
	.setsockopt = sluice_setsockopt,
	.getsockopt = sluice_getsockopt,
	.sendmsg = sluice_sendmsg,
	.recvmsg = sluice_recvmsg,
	.mmap = sluice_ring_mmap,
};
