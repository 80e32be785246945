// SPDX-License-Identifier: GPL-2.0
/* What the whole module uses of a socket: it wakes the process, sets the timer, queues the work, and finds a session. Begins no
 * session and drives none. */
#include <linux/errno.h>

#include "sluice_sock.h"

/* A timer that is due again at once leaves others this much. */
#define SLUICE_LEAST_NAP_NS (20 * NSEC_PER_USEC)

struct workqueue_struct *sluice_workqueue, *sluice_memory_workqueue;

int sluice_errno(enum slp_status why)
{
	switch (why) {
	case SLP_NO_LISTENER:
	case SLP_REFUSED:
		return -ECONNREFUSED;
	case SLP_SILENT:
		return -ETIMEDOUT;
	case SLP_BAD_VERSION:
		return -EPROTONOSUPPORT;
	case SLP_NOT_AUTHENTIC:
		return -EKEYREJECTED;
	case SLP_BROKEN:
		return -EPROTO;
	case SLP_CLOSED:
		return -EPIPE;
	case SLP_LOCAL:
		return -ECONNABORTED;
	default:
		return -ECONNRESET;
	}
}

void sluice_sock_wake(struct sock *sk, __poll_t what)
{
	struct socket_wq *wq;

	rcu_read_lock();
	wq = rcu_dereference(sk->sk_wq);
	if (skwq_has_sleeper(wq))
		wake_up_interruptible_all(&wq->wait);
	sk_wake_async(sk, what & EPOLLIN ? SOCK_WAKE_WAITD : SOCK_WAKE_SPACE, what & EPOLLIN ? POLL_IN : POLL_OUT);
	rcu_read_unlock();
}

/* ---- coming back */

void sluice_sock_arm(struct sluice_sock *ss, u64 at)
{
	if (ss->closed || at >= ss->timer_at)
		return;
	ss->timer_at = at;
	hrtimer_start(&ss->timer, ns_to_ktime(max(at, ss->now + SLUICE_LEAST_NAP_NS)), HRTIMER_MODE_ABS_SOFT);
}

/* Under ss->lock. The work holds a reference to the socket, and through it to the module. */
void sluice_sock_later(struct sluice_sock *ss)
{
	if (ss->closed)
		return;
	sock_hold(&ss->sk);
	if (!queue_work(sluice_workqueue, &ss->work))
		__sock_put(&ss->sk);
}

/* Under ss->lock. The work holds a reference to the socket, and through it to the module. */
void sluice_sock_look_later(struct sluice_sock *ss, unsigned long delay)
{
	if (ss->closed)
		return;
	sock_hold(&ss->sk);
	if (!queue_delayed_work(sluice_memory_workqueue, &ss->memory_work, delay))
		__sock_put(&ss->sk);
}

/* ---- sessions. Under ss->lock */

bool sluice_peer_is_at(const struct sluice_peer *peer, const u8 *mac, u16 port)
{
	return peer && peer->port == port && ether_addr_equal(peer->mac, mac);
}

struct sluice_peer *sluice_peer_calling(struct sluice_sock *ss, const u8 *mac, u16 port)
{
	u32 i;

	for (i = 0; i < ss->peers_end; ++i)
		if (sluice_peer_is_at(ss->peers[i], mac, port) && ss->peers[i]->peer_nonce && !ss->peers[i]->over)
			return ss->peers[i];
	return NULL;
}

struct sluice_peer *sluice_peer_numbered(struct sluice_sock *ss, u32 number)
{
	u16 at = ss->numbered[number % SLUICE_MAX_PEERS];
	struct sluice_peer *peer = at ? ss->peers[at - 1] : NULL;

	return peer && peer->number == number ? peer : NULL;
}

bool sluice_sock_drained(struct sluice_sock *ss)
{
	u32 i;

	for (i = 0; i < ss->peers_end; ++i)
		if (ss->peers[i] && !ss->peers[i]->over && !slp_drained(ss->peers[i]->session))
			return false;
	return true;
}
