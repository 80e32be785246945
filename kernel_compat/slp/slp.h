/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
 * SLP: reliable messages and direct placement over Ethernet frames. The protocol alone:
 * frames come in by slp_on_frame(), go out by slp_poll_tx(), time comes with every call.
 * No I/O, no clock, no allocation, no lock: one thread at a time for a node and its sessions.
 *
 * docs/slp.md is the protocol. Times are nanoseconds of a clock that does not go back. A
 * clock that jumps ahead (this end slept) is noticed: the time that is missing does not
 * count as the peer's silence. */
#ifndef SLUICE_SLP_H_
#define SLUICE_SLP_H_

#include "slp_wire.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SLP_NEVER UINT64_MAX

/* Limits of a session, which takes less than 64 KiB with all of them. Those of streams and
 * transfers are part of the protocol. */
#define SLP_STREAM_BYTES 10240u /* of messages: sent and not acknowledged; received and not taken */
#define SLP_CONTROL_BYTES 2048u /* the same of control records */
#define SLP_MAX_MESSAGE 5632u	/* bytes of one message; what is longer is a transfer */
#define SLP_TRANSFERS 16u	/* each of: pulls, pushes, pulls that are served, pushes that come in */
/* Units of a transfer under way beyond the first that is missing: 2 MB, so that a hole that is
 * mended twice does not stop a link of 10 Gb/s for 0.2 ms of round trip. */
#define SLP_TRANSFER_UNITS 1536u
#define SLP_HANDLES 64u
#define SLP_SENT_FRAMES 512u  /* frames that want an acknowledgement, under way */
#define SLP_SEEN_FRAMES 2048u /* packet numbers that are remembered, for duplicates */
#define SLP_SEGMENTS 32u      /* pieces of one stream under way */
#define SLP_GAPS 16u	      /* holes of one stream that arrivals may leave */

enum slp_state {
	SLP_IDLE = 0,
	SLP_CONNECTING, /* HELLO is repeated until it is answered */
	SLP_UP,
	SLP_DOWN, /* over; slp_why_of() says how */
};

enum slp_right { SLP_READ = 1, SLP_WRITE = 2 };

/* A frame as the carrier has it: `bytes` in all from its base on, padding included, of
 * which the first `present` lie at `data`. HELLO, EAGER and ACK must be present whole. */
struct slp_frame {
	const uint8_t *data;
	size_t present, bytes;
	bool ce;       /* the carrier saw congestion: IP's ECN bits, or its own ring filling up */
	void *context; /* the carrier's own */
};

/* Bytes in pieces, in order. */
struct slp_piece {
	const uint8_t *data;
	uint32_t bytes;
};

/* How a frame is sealed: the key by its slot. */
struct slp_sealing {
	uint32_t slot;
	uint8_t nonce[SLP_NONCE_BYTES];
	uint8_t header[SLP_BASE_BYTES]; /* authenticated, not encrypted */
};
#define SLP_KEY_SLOTS 5u
#define SLP_SEAL_SLOTS 2u /* the first; the others open */

/* The cipher: AES-256-GCM, HKDF-SHA-256, HMAC-SHA-256 (docs/slp.md, section 14). Its user holds
 * the secret, and a key in each slot; the core sees neither. None calls back. False: it could
 * not, which loses a frame. */
struct slp_cipher {
	/* The first 16 bytes of the HMAC of `text` under the greeting key. */
	bool (*greet)(void *user, const uint8_t *text, size_t bytes, uint8_t out[SLP_TAG_BYTES]);
	/* Fills a slot: 32 bytes of HKDF of the secret. */
	bool (*derive)(void *user, uint32_t slot, const uint8_t salt[2 * SLP_SALT_BYTES], const uint8_t *info,
		       uint32_t info_bytes);
	/* Encrypts to `out`, the tag behind it. */
	bool (*seal)(void *user, const struct slp_sealing *how, const struct slp_piece *plain, uint32_t pieces,
		     uint8_t *out);
	/* Decrypts `bytes` at `at` of the frame in place, if the tag behind them is right. */
	bool (*open)(void *user, const struct slp_sealing *how, const struct slp_frame *frame, uint32_t at,
		     uint32_t bytes);
};

struct slp_rts {
	uint32_t handle;
	uint64_t length;
};

/* What the core asks of its user; `user` is slp_config.user. Where a call may not call back
 * into the session, it says so; all but place may be null. */
struct slp_ops {
	/* `bytes` at `at` of the frame belong at `offset` of the memory that `cookie` names: once
	 * for each byte of a transfer. Calls nothing back. */
	void (*place)(void *user, uint64_t cookie, uint64_t offset, const struct slp_frame *frame, uint32_t at,
		      uint32_t bytes);
	/* A message, whole; `rts` if it announces memory. Valid during the call. False: no room
	 * now; it comes again after slp_resume(). */
	bool (*message)(void *user, const struct slp_rts *rts, const uint8_t *data, uint32_t bytes);
	/* A pull or a push of ours is over: the memory is not touched any more. */
	void (*ended)(void *user, uint64_t cookie, enum slp_status status);
	/* All of a peer's push is in place in the memory of this handle. */
	void (*written)(void *user, uint64_t handle_cookie, bool noticed, uint32_t notice);
	/* SLP_UP, or SLP_DOWN after everything of the session has ended. */
	void (*state)(void *user, enum slp_state state, enum slp_status why);
	/* The session has something to send although it was not called: another session of the
	 * node let go of pull budget. Calls nothing back. */
	void (*wake)(void *user);
	/* CRC32C of memory to be sent. Needed with payload_crc. Calls nothing back. */
	uint32_t (*source_crc)(void *user, uint64_t cookie, uint64_t offset, uint32_t bytes);
	/* CRC32C of a payload that is not present. Calls nothing back. */
	uint32_t (*frame_crc)(void *user, const struct slp_frame *frame, uint32_t at, uint32_t bytes);
	/* slp_work_bytes() for what is under way, aligned as a u64, never null; and back when nothing
	 * is. Neither calls back. Without them the session has such memory of its own. */
	void *(*borrow)(void *user);
	void (*give_back)(void *user, void *work);
};

struct slp_session;

struct slp_link {
	struct slp_link *next, *before;
};

/* What the sessions of one thread share. */
struct slp_node {
	uint64_t pull_budget; /* bytes asked of all peers and not yet here */
	uint64_t pulling;     /* of these, now; without those that peers failed to bring */
	uint64_t pull_window; /* of the budget, as much as marks leave: slp_node.c */
	uint64_t round_brought, round_marked; /* bytes, since the window was last looked at */
	uint32_t mark_share;  /* of 1024 */
	bool growing;	      /* nothing was marked yet */
	struct slp_link hungry; /* shares whose sessions wait for budget, in order */
};
void slp_node_init(struct slp_node *node, uint64_t pull_budget);

/* The part of a node's budget that one peer has, whatever the number of its sessions. The user
 * says who is one peer: a MAC address, an IP address or network. */
struct slp_share {
	uint64_t limit;	  /* most of `pulling`: grows with what comes, shrinks with what does not */
	uint64_t pulling; /* bytes asked of this peer and not yet here, as slp_node's */
	struct slp_link hungry; /* sessions that wait for budget, in order */
	struct slp_link queued; /* in the node's list; null: not */
};
void slp_share_init(struct slp_share *share);

struct slp_config {
	const struct slp_ops *ops;
	void *user;
	struct slp_node *node;	/* outlives the session */
	struct slp_share *share; /* of the peer, outlives its sessions; null: each is a peer of its own */
	uint64_t nonce;		/* random, not zero */
	uint32_t connection;	/* what frames to this session carry: random, not zero, no other session's */
	uint16_t generations[SLP_HANDLES]; /* random: those of handles go on from there */
	uint16_t source_port, destination_port;
	uint16_t mtu;		/* bytes of the largest frame, base and tag included; at least SLP_LEAST_FRAME */
	bool payload_crc;	/* checksums of payloads, if the peer wants them as well; sealed frames have none */
	/* Null: nothing is sealed, and a peer that seals is refused. Else the reverse. */
	const struct slp_cipher *cipher;
	void *cipher_user;
	uint8_t salt[SLP_SALT_BYTES]; /* random, with a cipher */
	uint8_t epoch_bits;
	uint64_t ack_delay_ns;	/* longest wait of an acknowledgement for company */
	uint64_t initial_rtt_ns;
	uint64_t keepalive_ns;	/* idle time until the peer is asked; SLP_NEVER: never */
	uint64_t dead_ns;	/* silence that ends the session */
};
/* The defaults: docs/slp.md, section 9. */
void slp_config_init(struct slp_config *config);

/* A session lives in slp_session_bytes() bytes of the caller's, aligned as a u64; in slp_state_bytes()
 * with ops that lend it slp_work_bytes() while something is under way. Whoever ends the life of a
 * session that has not given them back takes them back himself. */
size_t slp_session_bytes(void);
size_t slp_state_bytes(void);
size_t slp_work_bytes(void);
struct slp_session *slp_connect(void *memory, const struct slp_config *config, uint64_t now);
/* `hello`: what slp_listen() let pass. Everything else than SLP_OK: slp_refuse() it. */
enum slp_status slp_accept(void *memory, const struct slp_config *config, const struct slp_hello *hello, uint64_t now,
			   struct slp_session **out);

/* A sealed frame's memory is written: what was sealed is opened in place. */
enum slp_drop slp_on_frame(struct slp_session *s, uint64_t now, const struct slp_frame *frame);
/* The same for whoever has looked already, to find the session: `base` is what slp_decode_base()
 * took this frame for. */
enum slp_drop slp_on_decoded_frame(struct slp_session *s, uint64_t now, const struct slp_frame *frame,
				   const struct slp_base *base);
/* When slp_on_timer() has something to do; it may be called at any time. */
uint64_t slp_next_timeout(const struct slp_session *s);
void slp_on_timer(struct slp_session *s, uint64_t now);

/* One frame to be sent: the header, then up to two pieces of the session's memory, or
 * `bytes` of the memory that `cookie` names. Valid until the next call of the session that
 * is not slp_poll_tx(): frames can be sent in batches. */
struct slp_tx {
	uint8_t header[SLP_MAX_HEADER + 4 * SLP_MAX_PAIRS];
	uint32_t header_bytes;
	const uint8_t *piece[2];
	uint32_t piece_bytes[2];
	bool from_memory;
	uint64_t cookie, offset;
	uint32_t bytes;
	bool sealed;	 /* slp_seal_tx() makes the frame of it */
	uint64_t number;
};
/* False: nothing to send now. Ask until it says so. */
bool slp_poll_tx(struct slp_session *s, uint64_t now, struct slp_tx *out);

/* Makes a sealed frame, whole, at `frame`, which has room for slp_frame_bytes(). `memory`: the
 * user's bytes of tx->from_memory, in up to SLP_MOST_PIECES pieces. Each frame once, in the
 * order of slp_poll_tx(). Returns how many bytes; 0: there is nothing to be sent. */
#define SLP_MOST_PIECES 32u
uint32_t slp_seal_tx(struct slp_session *s, const struct slp_tx *tx, const struct slp_piece *memory, uint32_t pieces,
		     uint8_t *frame);

/* Posts. False or SLP_BUSY: no room; slp_on_frame() makes some. */
bool slp_can_send(const struct slp_session *s, uint32_t bytes);
bool slp_send(struct slp_session *s, const struct slp_rts *rts, const uint8_t *head, uint32_t head_bytes,
	      const uint8_t *body, uint32_t body_bytes);
/* Messages that were refused come again. */
void slp_resume(struct slp_session *s);

/* Lets the peer reach `length` bytes of the memory that `cookie` names. False: none left. */
bool slp_open_handle(struct slp_session *s, uint64_t cookie, uint64_t length, uint32_t rights, uint32_t *out);
/* The same, where the first byte has the offset `base`. Random, it is what the peer cannot guess: `base` + `length`
 * is less than 2^63. */
bool slp_open_handle_at(struct slp_session *s, uint64_t cookie, uint64_t base, uint64_t length, uint32_t rights,
			uint32_t *out);
/* When it returns, no frame of the peer's touches the memory and none of it is sent. */
void slp_close_handle(struct slp_session *s, uint32_t handle);

/* Bytes [offset, offset + length) of the peer's handle go to [0, length) of `cookie`. */
enum slp_status slp_pull(struct slp_session *s, uint32_t handle, uint64_t offset, uint64_t length, uint64_t cookie);
/* The reverse. `notice` if not null: the peer is told when all is in place. */
enum slp_status slp_push(struct slp_session *s, uint32_t handle, uint64_t offset, uint64_t length, uint64_t cookie,
			 const uint32_t *notice);
/* Ends the pull or push of that cookie; ops.ended() is not called. False: it is over. */
bool slp_cancel(struct slp_session *s, uint64_t cookie);

/* An acknowledgement waits for something to ride on; and: nothing will come, it is to leave now. */
bool slp_owes_answer(const struct slp_session *s);
void slp_answer_now(struct slp_session *s);

/* All that was posted is with the peer. */
bool slp_drained(const struct slp_session *s);
/* slp_listen() accepted a HELLO from the same place with another nonce: the peer began anew.
 * With a cipher only when the new session is confirmed: a HELLO may be an old one. */
void slp_restarted(struct slp_session *s);
/* The peer has sent a frame in this session: its HELLO was not an old one. */
bool slp_confirmed(const struct slp_session *s);
/* Ends the session at once; the next slp_poll_tx() has the BYE. ops.state() is not called. */
void slp_abort(struct slp_session *s);

enum slp_state slp_state_of(const struct slp_session *s);
/* The peer has answered a HELLO, be it by RETRY. */
bool slp_was_heard(const struct slp_session *s);
/* Of SLP_DOWN. Of SLP_CONNECTING with a cipher: what refusals said that prove nothing. */
enum slp_status slp_why_of(const struct slp_session *s);
uint32_t slp_frame_bytes(const struct slp_session *s); /* largest frame now */
/* What that cannot fall below: SLP_USUAL_FRAME, or SLP_LEAST_FRAME if one end began with less. */
uint32_t slp_least_frame_bytes(const struct slp_session *s);
/* The carrier takes no larger frames any more. */
void slp_limit_frame(struct slp_session *s, uint32_t bytes);
const char *slp_status_text(enum slp_status status);

struct slp_counters {
	uint64_t frames_sent, frames_received, bytes_sent, bytes_received; /* with headers */
	uint64_t resent, probes, spurious, marked, marked_by_peer, late; /* late: of transfers that are over */
	uint64_t acks_sent, stalls_of_credit, frames_halved;
	uint64_t refused; /* accesses of the peer: no such handle, range or right, or the handle was closed meanwhile */
	uint64_t keys; /* derived */
	uint64_t pulls_stalled; /* times that the peer did not bring what it was asked for, and others got its budget */
	uint64_t dropped[SLP_DROPS];
};
const struct slp_counters *slp_counters_of(const struct slp_session *s);

/* For whoever tests or explains. */
struct slp_view {
	uint64_t srtt_ns, rttvar_ns, min_rtt_ns, window_bytes, in_flight_bytes;
	uint32_t reorder, mark_share_1024; /* frames; share of marked frames, smoothed */
};
void slp_view_of(const struct slp_session *s, struct slp_view *out);

/* Listening: answers HELLOs without any state until the asker has shown that it receives
 * what is sent to its address. */
struct slp_listener {
	uint8_t secret[16]; /* random */
	uint16_t port, mtu;
	const struct slp_cipher *cipher; /* of which it uses greet(); null: as in slp_config */
	void *cipher_user;
};
enum slp_answer {
	SLP_LISTEN_DROP,
	SLP_LISTEN_REPLY, /* reply[] goes back to where the frame came from */
	SLP_LISTEN_ACCEPT, /* `hello` and `peer_port` are good: look for its nonce, then slp_accept() */
};
struct slp_meeting {
	struct slp_hello hello;
	uint16_t peer_port;
	uint8_t reply[SLP_MAX_HEADER];
	uint32_t reply_bytes;
	enum slp_drop why; /* of SLP_LISTEN_DROP, and of a reply that refuses */
};
/* `address`: the asker's, up to 32 bytes, as the carrier knows it. A cookie lasts for 8 to 16 s. */
enum slp_answer slp_listen(const struct slp_listener *listener, uint64_t now, const uint8_t *address,
			   uint32_t address_bytes, const struct slp_frame *frame, struct slp_meeting *out);
/* The answer to a frame of a connection that nobody has. 0: none is due. */
uint32_t slp_no_session(const struct slp_frame *frame, uint8_t reply[SLP_MAX_HEADER]);
/* The answer to a HELLO that is not wanted. */
uint32_t slp_refuse(const struct slp_frame *hello, enum slp_status reason, uint8_t reply[SLP_MAX_HEADER]);

#ifdef __cplusplus
}
#endif

#endif /* SLUICE_SLP_H_ */
