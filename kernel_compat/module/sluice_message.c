// SPDX-License-Identifier: GPL-2.0
/* What a process sends and receives by a socket, and how it waits. What it passes is checked
 * here; the core sees only kernel memory. */
#include <linux/sched/signal.h>

#include "sluice_sock.h"

static struct sluice_peer *target(struct sluice_sock *ss, struct msghdr *message)
{
	struct sockaddr_sluice at;
	struct sluice_place place;
	int error;

	if (!message->msg_namelen)
		return sluice_peer_connected(ss);
	if (READ_ONCE(ss->connected))
		return ERR_PTR(-EISCONN);
	error = sluice_address_read(message->msg_name, message->msg_namelen, &at);
	if (!error)
		error = sluice_aim(ss, &at, &place);
	return error ? ERR_PTR(error) : sluice_peer_of(ss, &place);
}

/* -EAGAIN: no room in the stream now; somebody is woken when there is. */
static int send_now(struct sluice_sock *ss, struct sluice_peer *peer, const u8 *data, u32 bytes)
{
	struct sk_buff_head out;
	int error = 0;

	__skb_queue_head_init(&out);
	rcu_read_lock();
	spin_lock_bh(&ss->lock);
	ss->now = ktime_get_ns();
	if (peer->over) {
		error = sluice_errno(peer->why);
		peer->told = true;
		sluice_sock_later(ss);
	} else if (slp_send(peer->session, NULL, data, bytes, NULL, 0)) {
		sluice_peer_pump(peer, &out);
	} else {
		peer->want_room = true;
		error = -EAGAIN;
	}
	spin_unlock_bh(&ss->lock);
	sluice_frames_send(&out);
	rcu_read_unlock();
	return error;
}

static int send_waiting(struct sluice_sock *ss, struct sluice_peer *peer, const u8 *data, u32 bytes, int flags)
{
	long left = sock_sndtimeo(&ss->sk, flags & MSG_DONTWAIT);
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	int error = send_now(ss, peer, data, bytes);

	if (error != -EAGAIN || !left)
		return error;
	add_wait_queue(sk_sleep(&ss->sk), &wait);
	for (;;) {
		error = ss->sk.sk_shutdown & SEND_SHUTDOWN ? -EPIPE : send_now(ss, peer, data, bytes);
		if (error != -EAGAIN || !left)
			break;
		if (signal_pending(current)) {
			error = sock_intr_errno(left);
			break;
		}
		left = wait_woken(&wait, TASK_INTERRUPTIBLE, left);
	}
	remove_wait_queue(sk_sleep(&ss->sk), &wait);
	return error;
}

int sluice_sendmsg(struct socket *sock, struct msghdr *message, size_t bytes)
{
	struct sluice_sock *ss = sluice_sk(sock->sk);
	struct sluice_peer *peer;
	u8 small[128], *data = small;
	int error;

	if (message->msg_flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL | MSG_EOR | MSG_CMSG_COMPAT))
		return -EOPNOTSUPP;
	if (bytes > SLP_MAX_MESSAGE)
		return -EMSGSIZE;
	error = sock_error(sock->sk);
	if (error)
		return error;
	if (sock->sk->sk_shutdown & SEND_SHUTDOWN)
		return -EPIPE;
	peer = target(ss, message);
	if (IS_ERR(peer))
		return PTR_ERR(peer);
	if (bytes > sizeof(small))
		data = kmalloc(bytes, GFP_KERNEL_ACCOUNT);
	if (!data)
		error = -ENOMEM;
	else if (memcpy_from_msg(data, message, bytes))
		error = -EFAULT;
	else
		error = send_waiting(ss, peer, data, bytes, message->msg_flags);
	if (!error) {
		sluice_count(sluice_sock_net(ss), SLUICE_MESSAGES_OUT);
		sluice_add(sluice_sock_net(ss), SLUICE_BYTES_COPIED_OUT, 2 * bytes); /* here, stream */
	}
	if (data != small)
		kfree(data);
	sluice_peer_put(peer);
	return error ? error : bytes;
}

/* Nothing to read, and no reason to say so. */
static bool nothing_yet(struct sock *sk)
{
	return skb_queue_empty_lockless(&sk->sk_receive_queue) && !READ_ONCE(sk->sk_err) &&
	       !(READ_ONCE(sk->sk_shutdown) & RCV_SHUTDOWN);
}

static void spin(struct sluice_sock *ss, int flags)
{
	u32 budget_us = READ_ONCE(ss->spin_us);
	u64 until;

	if (!budget_us || flags & MSG_DONTWAIT || !nothing_yet(&ss->sk))
		return;
	until = ktime_get_ns() + (u64)budget_us * NSEC_PER_USEC;
	while (nothing_yet(&ss->sk) && !signal_pending(current) && ktime_get_ns() < until) {
		if (need_resched())
			cond_resched();
		else
			cpu_relax();
	}
}

static void make_room(struct sluice_sock *ss)
{
	struct sk_buff_head out;

	/* What was taken is not counted any more before it is asked who waits for that: stall() in sluice_drive.c. */
	smp_mb();
	/* Not for each message: half of the queue at least. */
	if (!READ_ONCE(ss->stalled) || !sluice_sock_roomy(ss))
		return;
	__skb_queue_head_init(&out);
	rcu_read_lock();
	spin_lock_bh(&ss->lock);
	ss->now = ktime_get_ns();
	sluice_sock_resume(ss, &out);
	spin_unlock_bh(&ss->lock);
	sluice_frames_send(&out);
	rcu_read_unlock();
}

int sluice_recvmsg(struct socket *sock, struct msghdr *message, size_t room, int flags)
{
	struct sluice_sock *ss = sluice_sk(sock->sk);
	struct sockaddr_sluice from;
	struct sk_buff *skb;
	size_t bytes;
	int error;

	if (flags & (MSG_OOB | MSG_ERRQUEUE))
		return -EOPNOTSUPP;
	/* Who is about to sleep has nothing to say before the next message. */
	if (!(flags & MSG_DONTWAIT) && nothing_yet(sock->sk))
		sluice_sock_settle(ss);
	spin(ss, flags);
	/* What came before an error is told before it. The kernel's own look begins with errors. */
	skb = flags & MSG_PEEK ? NULL : skb_dequeue(&sock->sk->sk_receive_queue);
	if (!skb)
		skb = skb_recv_datagram(sock->sk, flags, &error);
	if (!skb) {
		/* Who does not wait is not told of the end by the kernel's queue. */
		if (error == -EAGAIN && READ_ONCE(sock->sk->sk_shutdown) & RCV_SHUTDOWN)
			error = sock_error(sock->sk);
		return error;
	}
	bytes = min_t(size_t, room, skb->len);
	message->msg_flags |= MSG_EOR;
	if (bytes < skb->len)
		message->msg_flags |= MSG_TRUNC;
	error = skb_copy_datagram_msg(skb, 0, message, bytes);
	if (!error && message->msg_name) {
		sluice_address_fill(ss, &from, sluice_cb(skb)->mac, sluice_cb(skb)->port);
		memcpy(message->msg_name, &from, sizeof(from));
		message->msg_namelen = sizeof(from);
	}
	sluice_add(sluice_sock_net(ss), SLUICE_BYTES_COPIED_IN, bytes);
	if (!error)
		error = flags & MSG_TRUNC ? skb->len : bytes;
	skb_free_datagram(sock->sk, skb);
	make_room(ss);
	return error;
}

__poll_t sluice_poll(struct file *file, struct socket *sock, poll_table *wait)
{
	struct sluice_sock *ss = sluice_sk(sock->sk);
	struct sock *sk = sock->sk;
	struct sluice_peer *peer;
	__poll_t mask = 0;

	sock_poll_wait(file, sock, wait);
	if (READ_ONCE(sk->sk_err))
		mask |= EPOLLERR;
	if (READ_ONCE(sk->sk_shutdown) == SHUTDOWN_MASK)
		mask |= EPOLLHUP;
	if (READ_ONCE(sk->sk_shutdown) & RCV_SHUTDOWN)
		mask |= EPOLLRDHUP | EPOLLIN | EPOLLRDNORM;
	spin_lock_bh(&ss->lock);
	if (!skb_queue_empty_lockless(&sk->sk_receive_queue) || sluice_ring_pending(ss))
		mask |= EPOLLIN | EPOLLRDNORM;
	peer = ss->connected;
	if (!peer || peer->over || (peer->up && slp_can_send(peer->session, SLP_MAX_MESSAGE)))
		mask |= EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND;
	else
		peer->want_room = true;
	spin_unlock_bh(&ss->lock);
	return mask;
}
