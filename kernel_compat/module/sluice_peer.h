/* SPDX-License-Identifier: GPL-2.0 */
/* A session with a peer, and its frames: sluice_peer.c, sluice_drive.c, sluice_frame.c, sluice_receive.c. What a socket
 * has of them is found in sluice_sock.c. */
#ifndef SLUICE_MODULE_SLUICE_PEER_H_
#define SLUICE_MODULE_SLUICE_PEER_H_

#include "sluice_span.h"

/* What sessions of a socket with one MAC address share. */
struct sluice_machine {
	struct list_head list; /* sluice_sock.machines */
	u8 mac[ETH_ALEN];
	bool told;    /* that it has all that it may have */
	u32 sessions; /* 0: not in the list */
	u32 callers;  /* of these, those that it began */
	struct slp_share share; /* of the socket's pull budget */
};

struct sluice_peer {
	refcount_t references;
	kuid_t uid; /* in whose share it counts */
	struct net *net; /* with `mac` whose, too, if it called us; null: we did */
	struct sluice_machine *machine; /* of the socket while the session is in its table */
	u32 number; /* which frames to us name: random, and another one in each of its first bytes */
	struct sluice_sock *owner;
	u8 mac[ETH_ALEN];
	u16 port;
	u16 index;	/* in owner->peers */
	u32 heard;	/* bytes of messages since an acknowledgement left */
	u64 peer_nonce; /* of who called; 0: we did */
	bool up;
	bool over;	/* ended; `why` says how */
	bool told;	/* and the user has been told, or need not be */
	bool want_room; /* somebody waits for room in the stream */
	bool doomed;	/* it gave a notice that found no room */
	enum slp_status why;
	u64 refused, stalled; /* of the session's counts, what is in the namespace's */
	struct list_head spans; /* that are not over */
	struct slp_session *session;
	u64 memory[]; /* of the session */
};

struct sluice_place {
	u8 mac[ETH_ALEN];
	u16 port;
};

extern const struct slp_ops sluice_peer_ops;

/* The connection number that the peer's frames name. Under ss->lock. */
static inline u32 sluice_peer_number(const struct sluice_peer *peer)
{
	return peer->number;
}

/* A reference to the session with that place, begun if there is none. Blocks: for memory. */
struct sluice_peer *sluice_peer_of(struct sluice_sock *ss, const struct sluice_place *place);
/* To the connected one; -EDESTADDRREQ. */
struct sluice_peer *sluice_peer_connected(struct sluice_sock *ss);
/* The same of what a process names; zero: the connected one. */
struct sluice_peer *sluice_peer_named(struct sluice_sock *ss, const struct sockaddr_sluice *name);
void sluice_peer_put(struct sluice_peer *peer);
/* Ends the sessions with that place. */
int sluice_peer_hang_up(struct sluice_sock *ss, const struct sockaddr_sluice *name);
/* Under ss->lock, as the next ones. */
bool sluice_peer_is_at(const struct sluice_peer *peer, const u8 *mac, u16 port);
/* The session that was asked for from there. */
struct sluice_peer *sluice_peer_calling(struct sluice_sock *ss, const u8 *mac, u16 port);
struct sluice_peer *sluice_peer_numbered(struct sluice_sock *ss, u32 number);
/* Another session that this address begins would be too much, which is counted, and logged once. */
bool sluice_callers_enough(struct sluice_sock *ss, const u8 *mac);
void sluice_machines_free(struct sluice_sock *ss);
/* What the session has to send goes into `out`; the timer is set. */
void sluice_peer_pump(struct sluice_peer *peer, struct sk_buff_head *out);
void sluice_peer_abort(struct sluice_peer *peer, enum slp_status why, struct sk_buff_head *out);

int sluice_errno(enum slp_status why);

/* ---- frames: sluice_receive.c, sluice_frame.c */

int sluice_receive(struct sk_buff *skb, struct net_device *dev, struct packet_type *type, struct net_device *original);
struct sk_buff *sluice_frame_from(struct sluice_sock *ss, const u8 *mac, const struct slp_tx *tx);
void sluice_frames_send(struct sk_buff_head *frames);

#endif /* SLUICE_MODULE_SLUICE_PEER_H_ */
