// SPDX-License-Identifier: GPL-2.0
/* A socket's sessions: found, begun, cleared away. What happens between is sluice_drive.c's. */
#include <linux/errno.h>
#include <linux/mm.h>
#include <linux/net.h>
#include <linux/random.h>
#include <linux/sched/mm.h>

#include "sluice_sock.h"

/* An old session of the same peer is taken away before a new one begins; others may come between. */
#define SLUICE_TRIES 8

/* ---- finding */

/* When two call each other at once, they have two sessions: the first found serves. */
static struct sluice_peer *find(struct sluice_sock *ss, const u8 *mac, u16 port)
{
	u32 i;

	for (i = 0; i < ss->peers_end; ++i)
		if (sluice_peer_is_at(ss->peers[i], mac, port))
			return ss->peers[i];
	return NULL;
}

/* ---- MAC addresses */

static struct sluice_machine *find_machine(struct sluice_sock *ss, const u8 *mac)
{
	struct sluice_machine *machine;

	list_for_each_entry(machine, &ss->machines, list)
		if (ether_addr_equal(machine->mac, mac))
			return machine;
	return NULL;
}

bool sluice_callers_enough(struct sluice_sock *ss, const u8 *mac)
{
	struct sluice_machine *machine = find_machine(ss, mac);
	u32 most = ss->peer_limit, of_one = ss->callers_of_one ?: max(most / 2, 1u);

	if (!sluice_crowded(ss->peer_count, most, machine ? machine->callers : 0, of_one))
		return false;
	sluice_count(sluice_sock_net(ss), SLUICE_SESSIONS_REFUSED);
	sluice_sock_later(ss); /* some may be over; who asks again finds their places */
	if (!machine || ss->peer_count >= most)
		return true; /* too many in all */
	sluice_count(sluice_sock_net(ss), SLUICE_CALLERS_REFUSED);
	if (!machine->told)
		net_info_ratelimited("sluice: %pM has %u of %u sessions with port %u and gets no more (SLUICE_PEERS, SLUICE_PEERS_OF_ONE)\n",
				     mac, machine->callers, most, ss->port);
	machine->told = true;
	return true;
}

/* The session's machine becomes that of the socket. */
static void join_machine(struct sluice_sock *ss, struct sluice_peer *peer)
{
	struct sluice_machine *known = find_machine(ss, peer->mac);

	if (known) {
		kfree(peer->machine);
		peer->machine = known;
	} else {
		ether_addr_copy(peer->machine->mac, peer->mac);
		slp_share_init(&peer->machine->share);
		list_add(&peer->machine->list, &ss->machines);
	}
	++peer->machine->sessions;
	peer->machine->callers += peer->net != NULL;
}

/* Of a session that is over, and has nothing to do with its share any more. */
static void leave_machine(struct sluice_peer *peer)
{
	struct sluice_machine *machine = peer->machine;

	peer->machine = NULL;
	machine->callers -= peer->net != NULL;
	if (--machine->sessions)
		return;
	list_del(&machine->list);
	kfree(machine);
}

/* Of a socket whose sessions are over. */
void sluice_machines_free(struct sluice_sock *ss)
{
	struct sluice_machine *machine, *next;

	list_for_each_entry_safe(machine, next, &ss->machines, list)
		kfree(machine);
	INIT_LIST_HEAD(&ss->machines);
}

/* ---- beginning and end */

/* `net`: of who called; null: we do. `flags`: of the memory. */
static struct sluice_peer *new_peer(struct sluice_sock *ss, struct net *net, const u8 *mac, u16 port, gfp_t flags)
{
	kuid_t uid = ss->sk.sk_uid;
	bool taken = sluice_quota_take(uid, net, mac);
	struct sluice_machine *machine = taken ? kzalloc(sizeof(*machine), GFP_KERNEL_ACCOUNT | flags) : NULL;
	struct sluice_peer *peer = machine ? kvzalloc(sizeof(*peer) + slp_session_bytes(), GFP_KERNEL_ACCOUNT | flags) : NULL;

	if (!peer) {
		kfree(machine);
		if (taken)
			sluice_quota_give_back(uid, net, mac);
		sluice_count(sluice_sock_net(ss), SLUICE_SESSIONS_REFUSED);
		return NULL;
	}
	refcount_set(&peer->references, 1);
	INIT_LIST_HEAD(&peer->spans);
	peer->uid = uid;
	peer->net = net;
	peer->machine = machine;
	peer->owner = ss;
	ether_addr_copy(peer->mac, mac);
	peer->port = port;
	return peer;
}

/* Only where sleeping is allowed: the memory may be mapped, not linear. */
void sluice_peer_put(struct sluice_peer *peer)
{
	if (!refcount_dec_and_test(&peer->references))
		return;
	sluice_quota_give_back(peer->uid, peer->net, peer->mac);
	if (peer->machine && !peer->machine->sessions) /* it never was in the socket's table */
		kfree(peer->machine);
	kvfree(peer);
}

/* A slot of the socket's table, with what the core is to be told. False: none is left. Under RCU
 * and ss->lock. */
static bool settle(struct sluice_sock *ss, struct sluice_peer *peer, struct slp_config *config)
{
	u32 index;

	for (index = 0; index < SLUICE_MAX_PEERS && ss->peers[index]; ++index)
		;
	if (index == SLUICE_MAX_PEERS || ss->peer_count >= ss->peer_limit || (peer->net && sluice_callers_enough(ss, peer->mac)))
		return false;
	join_machine(ss, peer);
	slp_config_init(config);
	config->ops = &sluice_peer_ops;
	config->user = peer;
	config->node = &ss->node;
	config->share = &peer->machine->share;
	get_random_bytes(&config->nonce, sizeof(config->nonce));
	config->nonce |= 1;
	get_random_bytes(config->generations, sizeof(config->generations));
	/* Nobody can know it who has not been told; and its first byte finds the session. */
	do
		peer->number = get_random_u32();
	while (!peer->number || ss->numbered[peer->number % SLUICE_MAX_PEERS]);
	ss->numbered[peer->number % SLUICE_MAX_PEERS] = index + 1;
	peer->index = index;
	config->connection = sluice_peer_number(peer);
	config->source_port = ss->port;
	config->destination_port = peer->port;
	sluice_port_look(ss);
	config->mtu = ss->listener.mtu;
	config->dead_ns = (u64)ss->dead_ms * NSEC_PER_MSEC;
	config->ack_delay_ns = SLUICE_ACK_DELAY_NS;
	config->payload_crc = ss->checksums;
	ss->peers[index] = peer;
	++ss->peer_count;
	ss->peers_end = max(ss->peers_end, index + 1);
	sluice_count(sluice_sock_net(ss), SLUICE_SESSIONS_BEGUN);
	return true;
}

static void unsettle(struct sluice_sock *ss, struct sluice_peer *peer)
{
	ss->peers[peer->index] = NULL;
	ss->numbered[peer->number % SLUICE_MAX_PEERS] = 0;
	leave_machine(peer);
	--ss->peer_count;
	while (ss->peers_end > 0 && !ss->peers[ss->peers_end - 1])
		--ss->peers_end;
}

static struct sluice_peer *begin(struct sluice_sock *ss, struct sluice_peer *fresh, struct sk_buff_head *out)
{
	struct slp_config config;

	if (ss->closed || ss->leaving)
		return ERR_PTR(-EPIPE);
	if (!settle(ss, fresh, &config))
		return ERR_PTR(-ENOBUFS);
	ss->now = ktime_get_ns();
	fresh->session = slp_connect(fresh->memory, &config, ss->now);
	sluice_peer_pump(fresh, out);
	return fresh;
}

/* What the user has been told of is in nobody's way. Under ss->lock. */
static struct sluice_peer *find_or_forget(struct sluice_sock *ss, const struct sluice_place *place)
{
	struct sluice_peer *peer = find(ss, place->mac, place->port);
	int error;

	if (!peer)
		return NULL;
	if (!peer->over) {
		refcount_inc(&peer->references);
		return peer;
	}
	error = peer->told ? -EINPROGRESS : sluice_errno(peer->why);
	peer->told = true;
	sluice_sock_later(ss); /* which takes it away */
	return ERR_PTR(error);
}

/* Sessions that are over, and that nobody asks about, go; the connected one stays until close. */
static struct sluice_peer *take_over_one(struct sluice_sock *ss, bool again)
{
	u32 i;

	for (i = 0; i < ss->peers_end; ++i) {
		struct sluice_peer *peer = ss->peers[i];

		if (!peer || !peer->over || peer == ss->connected)
			continue;
		/* A peer that called us is forgotten; one that we called is told of once. */
		if (!peer->told && !peer->peer_nonce && peer->why != SLP_CLOSED && !again)
			continue;
		unsettle(ss, peer);
		return peer;
	}
	return NULL;
}

/* Makes room for one that is called by name. False: all sessions go on. */
static bool forget_one(struct sluice_sock *ss)
{
	struct sluice_peer *peer;

	spin_lock_bh(&ss->lock);
	peer = take_over_one(ss, true);
	spin_unlock_bh(&ss->lock);
	if (peer)
		sluice_peer_put(peer);
	return peer;
}

struct sluice_peer *sluice_peer_of(struct sluice_sock *ss, const struct sluice_place *place)
{
	struct sluice_peer *peer = NULL, *fresh = NULL;
	struct sk_buff_head out;
	int tries;

	__skb_queue_head_init(&out);
	for (tries = 0; tries < SLUICE_TRIES; ++tries) {
		rcu_read_lock();
		spin_lock_bh(&ss->lock);
		peer = find_or_forget(ss, place);
		if (!peer && fresh) {
			peer = begin(ss, fresh, &out);
			if (!IS_ERR(peer)) {
				refcount_inc(&peer->references);
				fresh = NULL;
			}
		}
		spin_unlock_bh(&ss->lock);
		sluice_frames_send(&out);
		rcu_read_unlock();
		if (peer == ERR_PTR(-EINPROGRESS)) { /* an old one is about to go */
			flush_work(&ss->work);
			continue;
		}
		if (peer == ERR_PTR(-ENOBUFS) && forget_one(ss))
			continue;
		if (peer || fresh)
			break;
		fresh = new_peer(ss, NULL, place->mac, place->port, 0);
		if (!fresh && !forget_one(ss))
			return ERR_PTR(-ENOBUFS);
	}
	if (fresh)
		sluice_peer_put(fresh);
	return peer && peer != ERR_PTR(-EINPROGRESS) ? peer : ERR_PTR(-EAGAIN);
}

struct sluice_peer *sluice_peer_connected(struct sluice_sock *ss)
{
	struct sluice_peer *peer;

	spin_lock_bh(&ss->lock);
	peer = ss->connected;
	if (peer)
		refcount_inc(&peer->references);
	spin_unlock_bh(&ss->lock);
	return peer ? peer : ERR_PTR(-EDESTADDRREQ);
}

struct sluice_peer *sluice_peer_named(struct sluice_sock *ss, const struct sockaddr_sluice *name)
{
	static const struct sockaddr_sluice nobody;
	struct sluice_place place;
	int error;

	if (!memcmp(name, &nobody, sizeof(nobody)))
		return sluice_peer_connected(ss);
	if (READ_ONCE(ss->connected))
		return ERR_PTR(-EISCONN);
	error = name->family == sluice_family ? sluice_aim(ss, name, &place) : -EAFNOSUPPORT;
	return error ? ERR_PTR(error) : sluice_peer_of(ss, &place);
}

int sluice_peer_hang_up(struct sluice_sock *ss, const struct sockaddr_sluice *name)
{
	struct sk_buff_head out;
	int error = -ENOENT;
	u32 i;

	if (name->family != sluice_family)
		return -EAFNOSUPPORT;
	__skb_queue_head_init(&out);
	rcu_read_lock();
	spin_lock_bh(&ss->lock);
	ss->now = ktime_get_ns();
	for (i = 0; i < ss->peers_end && !ss->connected; ++i) {
		struct sluice_peer *peer = ss->peers[i];

		if (!sluice_peer_is_at(peer, name->mac, name->port) || peer->over)
			continue;
		peer->told = true;
		sluice_peer_abort(peer, SLP_LOCAL, &out);
		error = 0;
	}
	if (ss->connected)
		error = -EISCONN;
	spin_unlock_bh(&ss->lock);
	sluice_frames_send(&out);
	rcu_read_unlock();
	return error;
}

/* ---- where sleeping is allowed */

/* Its memory counts where the socket's maker does: a work queue's own cgroup has no limit. What is full there fails
 * here, and kills no process of it: strangers decide how many come. */
static struct sluice_peer *new_caller(struct sluice_sock *ss, const struct sluice_meeting *meeting)
{
	struct mem_cgroup *own = set_active_memcg(ss->memcg);
	struct sluice_peer *peer = new_peer(ss, sluice_sock_net(ss), meeting->mac, meeting->port, __GFP_RETRY_MAYFAIL | __GFP_NOWARN);

	set_active_memcg(own);
	return peer;
}

static void accept_one(struct sluice_sock *ss, const struct sluice_meeting *meeting)
{
	struct sluice_peer *peer = new_caller(ss, meeting);
	struct slp_config config;
	struct sk_buff_head out;

	if (!peer)
		return;
	__skb_queue_head_init(&out);
	rcu_read_lock();
	spin_lock_bh(&ss->lock);
	if (ss->closed || ss->leaving || ss->connected || sluice_peer_calling(ss, peer->mac, peer->port) ||
	    !settle(ss, peer, &config))
		goto out;
	ss->now = ktime_get_ns();
	if (slp_accept(peer->memory, &config, &meeting->hello, ss->now, &peer->session) != SLP_OK) {
		unsettle(ss, peer);
		goto out;
	}
	peer->peer_nonce = meeting->hello.nonce;
	peer->up = true;
	sluice_peer_pump(peer, &out);
	peer = NULL;
out:
	spin_unlock_bh(&ss->lock);
	sluice_frames_send(&out);
	rcu_read_unlock();
	if (peer)
		sluice_peer_put(peer);
}

static void clear_away(struct sluice_sock *ss)
{
	struct sluice_peer *peer;

	do {
		spin_lock_bh(&ss->lock);
		/* Tidings of ended sessions must not take the place of new ones. The last quarter
		 * is not for every caller: sluice_crowded(). */
		peer = take_over_one(ss, ss->peer_count >= ss->peer_limit - ss->peer_limit / 4);
		spin_unlock_bh(&ss->lock);
		if (peer)
			sluice_peer_put(peer);
	} while (peer);
}

void sluice_sock_work(struct work_struct *work)
{
	struct sluice_sock *ss = container_of(work, struct sluice_sock, work);
	struct sluice_meeting meeting;
	bool any;

	clear_away(ss);
	do {
		spin_lock_bh(&ss->lock);
		any = ss->meeting_count > 0;
		if (any)
			meeting = ss->meetings[--ss->meeting_count];
		spin_unlock_bh(&ss->lock);
		if (any)
			accept_one(ss, &meeting);
	} while (any);
	sock_put(&ss->sk);
}
