// SPDX-License-Identifier: GPL-2.0
/* What can be set and asked: socket options, ioctls. */
#include <asm/ioctls.h>
#include <linux/sockios.h>

#include "sluice_sock.h"

static int set(struct sluice_sock *ss, int name, int value)
{
	switch (name) {
	case SLUICE_SPIN_US:
		if (value < 0 || value > USEC_PER_SEC)
			return -EINVAL;
		WRITE_ONCE(ss->spin_us, value);
		return 0;
	case SLUICE_PEERS:
		if (value < 1 || value > SLUICE_MAX_PEERS)
			return -EINVAL;
		WRITE_ONCE(ss->peer_limit, value);
		return 0;
	case SLUICE_DEAD_MS:
		if (value < 100 || value > 3600 * (int)MSEC_PER_SEC)
			return -EINVAL;
		WRITE_ONCE(ss->dead_ms, value);
		return 0;
	case SLUICE_PEERS_OF_ONE:
		if (value < 0 || value > SLUICE_MAX_PEERS)
			return -EINVAL;
		WRITE_ONCE(ss->callers_of_one, value);
		return 0;
	case SLUICE_CHECKSUMS:
		if (value < 0 || value > 1)
			return -EINVAL;
		WRITE_ONCE(ss->checksums, value);
		return 0;
	default:
		return -ENOPROTOOPT;
	}
}

int sluice_setsockopt(struct socket *sock, int level, int name, sockptr_t value, unsigned int length)
{
	struct sluice_sock *ss = sluice_sk(sock->sk);
	int number, error;

	if (level != SOL_SLUICE)
		return -ENOPROTOOPT;
	if (length != sizeof(number))
		return -EINVAL;
	if (copy_from_sockptr(&number, value, sizeof(number)))
		return -EFAULT;
	if (name == SLUICE_RING)
		return sluice_ring_make(ss, number);
	spin_lock_bh(&ss->lock);
	error = set(ss, name, number);
	spin_unlock_bh(&ss->lock);
	return error;
}

static int status_of(struct sluice_sock *ss, struct sluice_status *out)
{
	const struct slp_counters *counters;
	struct sluice_peer *peer;
	struct slp_view view;
	int i, error = -ENOTCONN;

	memset(out, 0, sizeof(*out));
	spin_lock_bh(&ss->lock);
	peer = ss->connected;
	if (peer) {
		counters = slp_counters_of(peer->session);
		slp_view_of(peer->session, &view);
		out->state = slp_state_of(peer->session);
		out->why = peer->why;
		out->frames_sent = counters->frames_sent;
		out->frames_received = counters->frames_received;
		out->bytes_sent = counters->bytes_sent;
		out->bytes_received = counters->bytes_received;
		out->resent = counters->resent;
		out->probes = counters->probes;
		for (i = 0; i < SLP_DROPS; ++i)
			out->dropped += counters->dropped[i];
		out->rtt_ns = view.srtt_ns;
		out->window_bytes = view.window_bytes;
		out->mtu = slp_frame_bytes(peer->session);
		error = 0;
	}
	spin_unlock_bh(&ss->lock);
	return error;
}

int sluice_getsockopt(struct socket *sock, int level, int name, char __user *value, int __user *length)
{
	struct sluice_sock *ss = sluice_sk(sock->sk);
	struct sluice_status status;
	const void *from = &status;
	int room, bytes, number, error;
	u64 copied;

	if (level != SOL_SLUICE)
		return -ENOPROTOOPT;
	if (get_user(room, length))
		return -EFAULT;
	bytes = sizeof(number);
	switch (name) {
	case SLUICE_SPIN_US:
		number = READ_ONCE(ss->spin_us);
		break;
	case SLUICE_PEERS:
		number = READ_ONCE(ss->peer_limit);
		break;
	case SLUICE_DEAD_MS:
		number = READ_ONCE(ss->dead_ms);
		break;
	case SLUICE_PEERS_OF_ONE:
		number = READ_ONCE(ss->callers_of_one);
		break;
	case SLUICE_CHECKSUMS:
		number = READ_ONCE(ss->checksums);
		break;
	case SLUICE_RING:
		spin_lock_bh(&ss->lock);
		number = ss->ring ? ss->ring_mask + 1 : 0;
		spin_unlock_bh(&ss->lock);
		break;
	case SLUICE_COPIED_OUT:
		copied = atomic64_read(&ss->copied_out);
		from = &copied;
		bytes = sizeof(copied);
		break;
	case SLUICE_STATUS:
		error = status_of(ss, &status);
		if (error)
			return error;
		bytes = sizeof(status);
		break;
	default:
		return -ENOPROTOOPT;
	}
	if (bytes == sizeof(number))
		from = &number;
	if (room < bytes)
		return -EINVAL;
	if (put_user(bytes, length) || copy_to_user(value, from, bytes))
		return -EFAULT;
	return 0;
}

/* Bytes of the next message. */
static int next_message_bytes(struct sock *sk)
{
	struct sk_buff *skb;
	int bytes = 0;

	spin_lock_bh(&sk->sk_receive_queue.lock);
	skb = skb_peek(&sk->sk_receive_queue);
	if (skb)
		bytes = skb->len;
	spin_unlock_bh(&sk->sk_receive_queue.lock);
	return bytes;
}

int sluice_ioctl(struct socket *sock, unsigned int command, unsigned long argument)
{
	struct sluice_sock *ss = sluice_sk(sock->sk);
	int number;

	switch (command) {
	case SIOCINQ:
		number = next_message_bytes(sock->sk);
		break;
	case SIOCOUTQ: /* zero: the peers have all that was sent */
		spin_lock_bh(&ss->lock);
		number = !sluice_sock_drained(ss);
		spin_unlock_bh(&ss->lock);
		break;
	default:
		if (_IOC_TYPE(command) != _IOC_TYPE(SLUICE_REGISTER))
			return -ENOIOCTLCMD;
		return sluice_memory_ioctl(ss, command, (void __user *)argument);
	}
	return put_user(number, (int __user *)argument);
}
