/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
 * SLP version 1 as it is on the wire: docs/slp.md, section 3, says the same in words.
 * Frames begin here after the Ethernet header (carrier A, EtherType 0x88b5) or the UDP
 * header (carrier B). All numbers are little-endian. */
#ifndef SLUICE_SLP_WIRE_H_
#define SLUICE_SLP_WIRE_H_

#include "slp_base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SLP_VERSION 1
#define SLP_ETHERTYPE 0x88b5 /* IEEE Std 802, local experimental 1 */
#define SLP_UDP_PORT 4799

/* Every frame begins with these:
 *  0 u8  version << 5 | type      16 u32 largest packet number received, low 32 bits
 *  1 u8  flags                    20 u16 how many just below it were received as well
 *  2 u16 source port              22 u16 age of the largest, us (65535: that or more)
 *  4 u16 destination port         24 u16 message credit: stream bytes accepted, KiB, modulo
 *  6 u16 payload bytes            26 u16 frames that came with CE, modulo 2^16
 *  8 u32 connection (receiver's)  28 u32 CRC32C of base, with CE and this zero, and extension
 * 12 u32 packet number, low 32    32 u32 CRC32C of the payload if SLP_FLAG_PCRC, else zero
 *                                 36 u32 session: both nonces, folded; zero where there is none yet */
#define SLP_BASE_BYTES 40u

enum slp_type {
	SLP_HELLO = 1,	   /* not numbered: a session's beginning */
	SLP_HELLO_ACK = 2, /* not numbered */
	SLP_RETRY = 3,	   /* not numbered: "say HELLO again with this cookie" */
	SLP_NACK = 4,	   /* not numbered: no such session; extension: reason */
	SLP_BYE = 5,	   /* numbered: the session has ended in good order */
	SLP_ACK = 6,	   /* numbered; extension: ranges */
	SLP_PING = 7,	   /* numbered: wants an acknowledgement */
	SLP_EAGER = 8,	   /* numbered: a piece of a stream */
	SLP_DATA = 9,	   /* numbered: a piece of a transfer */
	SLP_TYPES = 10,
};

/* Frames of no session, by which a name is looked for (docs/slp.md, section 15). Sessions and
 * listeners drop them by their type. */
#define SLP_FIND 16  /* to everybody: who has this name? */
#define SLP_FOUND 17 /* to who asked: it is here */

#define SLP_FLAG_CE 0x01u     /* congestion experienced: set by any hop, in no checksum */
#define SLP_FLAG_ACK 0x02u    /* the ack fields of the base are valid */
#define SLP_FLAG_ACKREQ 0x04u /* acknowledge at once */
#define SLP_FLAG_AGAIN 0x08u  /* content that was sent before */
#define SLP_FLAG_SEALED 0x10u /* extension and payload are encrypted; a tag follows */
#define SLP_FLAG_PCRC 0x20u
#define SLP_FLAG_PHASE 0x40u /* of a sealed frame: the epoch of its key is odd */
#define SLP_FLAGS_KNOWN 0x7fu

#define SLP_TAG_BYTES 16u
#define SLP_SALT_BYTES 16u
#define SLP_NONCE_BYTES 12u /* of the cipher: u32 direction (0: from the client), u64 packet number */
/* A key seals 2^bits frames, then the next one: those whose numbers, shifted by so many bits,
 * are its epoch. Both ends say theirs, the smaller one counts. */
#define SLP_EPOCH_BITS 20u
#define SLP_LEAST_EPOCH_BITS 6u

/* Extensions, after the base. */
#define SLP_EAGER_BYTES 8u /* u32 offset in the stream, low 32 bits; u8 stream; 3 zeros */
#define SLP_DATA_BYTES 16u /* u64 offset in the transfer; u32 transfer; u32 zeros */
#define SLP_NACK_BYTES 8u  /* u16 reason; u16 zero; u32 the connection that is meant */
#define SLP_ACK_BYTES 4u   /* u16 pairs; u16 zero; payload: u16 gap, u16 run per pair, downwards */
#define SLP_MAX_PAIRS 32u
#define SLP_HELLO_BYTES 88u
#define SLP_NAME_BYTES 64u
#define SLP_FIND_BYTES (8u + SLP_NAME_BYTES) /* u64 nonce; the name, zeros behind it */
#define SLP_FIND_FRAME (SLP_BASE_BYTES + SLP_FIND_BYTES)
#define SLP_MAX_EXTENSION SLP_HELLO_BYTES
#define SLP_MAX_HEADER (SLP_BASE_BYTES + SLP_MAX_EXTENSION)

/* The grain of a transfer: placed and acknowledged in wholes of this, but for the last. Both ends
 * compute the same one from the `mtu` of both. One unit fits an MTU of 1500 in either carrier, with
 * IPv6 and a tag: 1500 - 40 - 8 - 40 - 16 - 16 = 1380, down to a multiple of 64. */
#define SLP_UNIT_BYTES 1344u
/* The same for an MTU of 1280, the least of IPv6 (RFC 8200, 5): tunnels and clouds have 1280 to
 * 1450. 1280 - 40 - 8 - 40 - 16 - 16 = 1160. */
#define SLP_SMALL_UNIT_BYTES 1152u

/* Bytes of the largest frame that the ends of a session must take, for either unit: an MTU of 1500
 * or 1280 less an IPv6 and a UDP header. */
#define SLP_USUAL_FRAME (1500u - 48u)
#define SLP_LEAST_FRAME (1280u - 48u)

enum slp_stream_number {
	SLP_MESSAGES = 0, /* the user's; may wait for the user */
	SLP_CONTROL = 1,  /* SLP's own records; never waits */
	SLP_STREAMS = 2,
};

/* A stream is records: u32 length of what follows | kind << 24, then that. */
#define SLP_RECORD_BYTES 4u
enum slp_record {
	SLP_RECORD_MESSAGE = 0, /* messages: the user's bytes */
	SLP_RECORD_RTS = 1,	/* messages: u32 handle, u32 zero, u64 length, then the user's bytes */
	SLP_RECORD_PULL = 2,	/* control: u32 transfer, u32 handle, u64 offset, u64 length, u64 limit */
	SLP_RECORD_GRANT = 3,	/* control: u32 transfer, u32 zero, u64 limit */
	SLP_RECORD_PUSH = 4,	/* control: as PULL, limit: u32 notice, u32 whether it is one */
	SLP_RECORD_DONE = 5,	/* control: u32 transfer, u32 status */
};
#define SLP_PULL_BYTES 32u
#define SLP_GRANT_BYTES 16u
#define SLP_DONE_BYTES 8u
#define SLP_RTS_BYTES 16u

/* A transfer's number: index | generation << 16. Pulls are numbered by who receives, pushes
 * by who sends; this bit tells them apart. */
#define SLP_TRANSFER_PUSH 0x8000u

/* Why something was refused or ended: the status of DONE, the reason of NACK, and what the
 * core tells its user. */
enum slp_status {
	SLP_OK = 0,
	SLP_NO_SESSION = 1,	 /* the connection is unknown or of an older generation */
	SLP_NO_LISTENER = 2,	 /* nobody listens at that port */
	SLP_BAD_HANDLE = 3,	 /* never given, closed, or another peer's */
	SLP_BAD_RANGE = 4,	 /* outside the handle */
	SLP_NO_RIGHT = 5,	 /* the handle does not allow it */
	SLP_CANCELLED = 6,	 /* by the other end */
	SLP_BUSY = 7,		 /* no transfer slot: ask again */
	SLP_BAD_VERSION = 8,
	SLP_NOT_AUTHENTIC = 9,	 /* the other end has another secret, or frames are changed on the way */
	SLP_REFUSED = 10,	 /* the listener said no */
	SLP_SILENT = 11,	 /* nothing was heard for the dead time */
	SLP_CLOSED = 12,	 /* the other end said BYE */
	SLP_RESTARTED = 13,	 /* the other end began a new session from the same place */
	SLP_BROKEN = 14,	 /* the other end broke the protocol */
	SLP_LOCAL = 15,		 /* this end ended it */
	SLP_NEEDS_KEY = 16,	 /* the other end seals, and this one has no secret */
	SLP_HAS_NO_KEY = 17,	 /* this end seals, and the other one has no secret */
	SLP_STATUSES = 18,
};

/* The base as numbers. */
struct slp_base {
	uint8_t type, flags;
	uint16_t source_port, destination_port, payload_bytes;
	uint32_t connection, number, ack;
	uint16_t ack_run, ack_age_us, credit_kib, ce_count;
	uint32_t payload_crc, session;
};

struct slp_hello {
	uint64_t nonce;		 /* of this session, random, not zero */
	uint64_t peer_nonce;	 /* HELLO_ACK: what it answers; else zero */
	uint64_t cookie;	 /* from a RETRY; else zero */
	uint32_t connection;	 /* what frames to the sender carry */
	uint16_t min_version, max_version;
	uint16_t capabilities;
	uint16_t mtu;		 /* bytes of the largest SLP frame, base and tag included, that the sender takes */
	uint16_t stream_kib;	 /* of each stream that it buffers */
	uint16_t transfers, handles;
	uint16_t ack_delay_us;
	uint8_t epoch_bits;	 /* of who seals; else zero */
	uint8_t salt[SLP_SALT_BYTES]; /* for the keys; random */
	uint8_t tag[SLP_TAG_BYTES];   /* of all before, under the greeting key; else zeros */
};
#define SLP_CAN_PCRC 0x0001u
#define SLP_CAN_SEAL 0x0002u

static inline uint32_t slp_extension_bytes(uint8_t type)
{
	switch (type) {
	case SLP_HELLO:
	case SLP_HELLO_ACK:
	case SLP_RETRY:
		return SLP_HELLO_BYTES;
	case SLP_NACK:
		return SLP_NACK_BYTES;
	case SLP_ACK:
		return SLP_ACK_BYTES;
	case SLP_EAGER:
		return SLP_EAGER_BYTES;
	case SLP_DATA:
		return SLP_DATA_BYTES;
	case SLP_FIND:
	case SLP_FOUND:
		return SLP_FIND_BYTES;
	default:
		return 0;
	}
}

/* Why a frame was dropped, in the order of the checks. */
enum slp_drop {
	SLP_TAKEN = 0,
	SLP_DROP_RUNT,		/* shorter than its base and extension */
	SLP_DROP_VERSION,
	SLP_DROP_TYPE,
	SLP_DROP_FLAGS,		/* a reserved bit */
	SLP_DROP_LENGTH,	/* payload beyond the frame; padding after it is fine */
	SLP_DROP_HEADER_CRC,
	SLP_DROP_PAYLOAD_CRC,
	SLP_DROP_SESSION,	/* unknown, or an older generation */
	SLP_DROP_STATE,		/* not in this state of the session */
	SLP_DROP_UNSEALED,	/* in the clear, where a key was agreed; or the reverse */
	SLP_DROP_FORGED,	/* the tag is wrong */
	SLP_DROP_REPEATED,	/* this packet number was here before, or is too old to tell */
	SLP_DROP_NUMBER,	/* a packet number far beyond any window */
	SLP_DROP_ACK,		/* acknowledges what was never sent */
	SLP_DROP_CONTENT,	/* an extension that makes no sense */
	SLP_DROP_TRANSFER,	/* of a transfer that is over */
	SLP_DROP_RANGE,		/* outside the transfer or its window */
	SLP_DROP_ROOM,		/* beyond the credit, or no room for what must wait */
	SLP_DROPS,
};
extern const char *const slp_drop_names[SLP_DROPS];

/* Checks everything that the bytes alone can tell. `bytes` of the frame are at `frame`, of
 * which the first `present` are readable: base and extension must be. */
enum slp_drop slp_decode_base(const uint8_t *frame, size_t present, size_t bytes, struct slp_base *out);
/* Writes base and extension (already at frame + SLP_BASE_BYTES), with the header's checksum. */
void slp_encode_base(uint8_t *frame, const struct slp_base *base);
/* The checksum alone, of a base and an extension that are there. */
void slp_stamp_base(uint8_t *frame);
/* The base as it is authenticated: without CE, which any hop may set, and the checksum. */
void slp_copy_base(uint8_t out[SLP_BASE_BYTES], const uint8_t *frame);
/* FIND and FOUND, whole. */
struct slp_find {
	uint8_t type;
	uint16_t source_port;	   /* FOUND: where the name listens */
	uint16_t destination_port; /* FIND: the only one that is meant, or zero */
	uint64_t nonce;		   /* the asker's, random, not zero */
	char name[SLP_NAME_BYTES + 1];
};
/* False: no name of 1 to 64 letters, digits, '.', '_' and '-'. Capitals are sent as small letters. */
bool slp_encode_find(uint8_t frame[SLP_FIND_FRAME], const struct slp_find *find);
/* As slp_decode_base(), which takes no other types for these. */
enum slp_drop slp_decode_find(const uint8_t *frame, size_t present, size_t bytes, struct slp_find *out);
void slp_encode_hello(uint8_t *extension, const struct slp_hello *hello);
void slp_decode_hello(const uint8_t *extension, struct slp_hello *out);

/* What the frames of a session carry: those of an older one between the same two do not pass. */
static inline uint32_t slp_session_tag(uint64_t nonce, uint64_t other)
{
	uint64_t both = nonce ^ other;

	return (uint32_t)(both ^ both >> 32);
}

/* The number in full that ends in `low` and is nearest to `expected` (RFC 9000, A.3). */
uint64_t slp_expand_number(uint64_t expected, uint32_t low);

#ifdef __cplusplus
}
#endif

#endif /* SLUICE_SLP_WIRE_H_ */
