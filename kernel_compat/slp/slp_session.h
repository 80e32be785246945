/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
 * A session's insides, for the core's own files and nobody else. */
#ifndef SLUICE_SLP_SESSION_H_
#define SLUICE_SLP_SESSION_H_

#include "slp.h"

#define SLP_MICROSECOND 1000u
#define SLP_MILLISECOND 1000000u
/* Frames in the air and lost ones take places, SLP_SENT_FRAMES in all. When large frames begin to
 * vanish, lost ones must be cut, and each piece takes a place before what it was cut from gives
 * up its own. So some are spared; and these are enough, whatever was in the air:
 *
 * 1. New content leaves SLP_SPARE_FRAMES places free. What goes again whole takes its own place.
 *    A piece that takes one of the spare places is cut to slp_small_frame(). So frames that are
 *    larger hold SLP_SENT_FRAMES - SLP_SPARE_FRAMES places at most.
 * 2. Pieces leave SLP_SPARE_PINGS places free, which PINGs alone take: as long as none is free a
 *    PING is in the air, and the next probe gives it up for its own. So every probe has a PING,
 *    its answer shows that small frames arrive, and what left long before it counts as lost.
 * 3. So the largest frame is halved until it arrives (note_size()), slp_small_frame() at last.
 * 4. Then what is lost can always go. Either there is a place for a piece of it. Or, by 1, the
 *    other places are held by PINGs and small content: what of these is in the air is answered,
 *    or lost in the end; and small content that is lost goes again whole.
 * 5. Content is in one frame only: each that is acknowledged is less to be done, and no new
 *    content comes while fewer than SLP_SPARE_FRAMES places are free. */
#define SLP_SPARE_FRAMES 16u
#define SLP_SPARE_PINGS 1u
/* Frames that are remembered after they were taken for lost, to learn whether they were. */
#define SLP_GIVEN_UP 32u

/* ---- what was sent and is not yet acknowledged: slp_loss.c */

enum slp_sent_kind { SLP_SENT_PING, SLP_SENT_EAGER, SLP_SENT_DATA };
enum slp_sent_state {
	SLP_SENT_FLYING,
	SLP_SENT_LOST, /* its content waits to be sent again */
	SLP_SENT_DONE, /* acknowledged, or its content is in a younger frame */
};
/* Each byte of content is in exactly one frame that is FLYING or LOST. */
struct slp_sent {
	uint64_t number, time;
	uint64_t offset;
	uint16_t bytes;	    /* of content */
	uint16_t index;	    /* stream and segment, or transfer */
	uint16_t generation;
	uint8_t kind, state;
};

/* ---- streams: slp_stream.c */

struct slp_segment {
	uint64_t offset;
	uint16_t left; /* bytes not acknowledged */
	uint16_t bytes;
};

struct slp_stream_tx {
	uint8_t *ring;
	uint32_t capacity;
	uint64_t written, sent, floor; /* floor: all before is acknowledged */
	uint64_t limit;		       /* the peer's credit */
	struct slp_segment *segments; /* SLP_SEGMENTS, in session.work as the ring */
	uint64_t first_segment, next_segment;
};

struct slp_span {
	uint64_t from, to;
};

struct slp_stream_rx {
	uint8_t *ring;
	uint32_t capacity;
	uint64_t floor;		/* all before has been taken */
	uint64_t arrived;	/* all before is here */
	struct slp_span *later; /* up to SLP_GAPS that are here, beyond `arrived`; in order, apart */
	uint32_t later_count;
	bool stalled;		/* the user had no room */
};

/* ---- transfers: slp_transfer.c */

struct slp_handle {
	uint64_t cookie, base, length;
	uint16_t generation;
	uint8_t rights;
	bool open;
};

#define SLP_UNIT_WORDS (SLP_TRANSFER_UNITS / 64)

/* The end that bytes come to: of a pull of ours, or of a push of the peer's. */
struct slp_sink {
	uint64_t cookie, base, total;
	uint64_t granted; /* pulls: offset up to which we have asked */
	uint64_t placed;  /* bytes */
	uint64_t floor;	  /* unit: all before is in place */
	uint64_t *bits; /* units from floor on, as a ring of SLP_UNIT_WORDS; cleared when it is used */
	uint32_t beyond;  /* how many of these are set */
	uint32_t handle;  /* pushes: into this; pulls: out of this */
	uint64_t from;	  /* pulls: offset in it */
	uint32_t notice;
	uint16_t generation; /* of the transfer that is, or was, here */
	bool used, noticed;
	bool told; /* pulls: the peer has been asked */
};

/* The end that bytes come from: of a push of ours, or of a pull of the peer's. */
struct slp_source {
	uint64_t cookie, base, total;
	uint64_t limit;	 /* may be sent up to here */
	uint64_t next;	 /* was sent up to here */
	uint64_t acked;	 /* bytes */
	uint64_t floor;	 /* unit: all before was acknowledged when it was last looked for */
	uint32_t handle; /* pulls: ours, out of which; pushes: the peer's */
	uint64_t to;	 /* pushes: offset in it */
	uint32_t notice;
	uint16_t generation;
	bool used, noticed;
	bool told; /* pushes: the peer has been told */
};

/* A DONE that found no room in the control stream. */
struct slp_owed_done {
	uint32_t transfer;
	uint8_t status;
};

/* ---- the peer's packet numbers: slp_seen.c */

/* The youngest numbers of those that were here. */
struct slp_window {
	uint64_t largest; /* 0: none */
	uint64_t bits[SLP_SEEN_FRAMES / 64]; /* by number modulo SLP_SEEN_FRAMES */
};

struct slp_seen {
	struct slp_window here; /* whose content was used */
	uint64_t largest_time;
	uint64_t due;	  /* when an acknowledgement must leave */
	uint32_t unacknowledged;
	uint16_t ce_count;
	uint8_t gaps_due; /* so many times more the ranges are said, beside the base's */
	uint16_t run; /* numbers in a row up to the largest; 0: not counted since it changed */
};

/* ---- keys: slp_seal.c */

#define SLP_OPEN_SLOTS (SLP_KEY_SLOTS - SLP_SEAL_SLOTS)

struct slp_keys {
	uint64_t last_sealed; /* packet number: younger ones may be sealed */
	uint64_t epoch[SLP_KEY_SLOTS]; /* of the key in each slot; SLP_NEVER: none */
	uint8_t order[SLP_OPEN_SLOTS]; /* slots: of the youngest epoch that was proven, of the one before, spare */
	uint8_t bits;
	struct slp_window opened; /* frames that were authentic, used or not */
};

struct slp_session {
	struct slp_config config;
	enum slp_state state;
	enum slp_status why;
	bool bye_due, hello_due, answer_due;
	bool ending;	    /* it failed, and slp_settle() has not been called since */
	bool control_freed; /* records that found no room may find it now */
	bool passive, confirmed;
	bool sealed, payload_crc; /* as both ends have agreed */
	uint8_t depth; /* inside a call to the user */
	struct slp_hello ours, peer;
	uint32_t tag;
	uint32_t frame_limit; /* bytes of a frame, now */
	bool small_unit;      /* SLP_SMALL_UNIT_BYTES: one of the ends takes no SLP_USUAL_FRAME */
	uint64_t last_heard, waiting_since; /* since when an answer is missing */

	/* sending */
	uint64_t next_number, largest_acked;
	uint64_t sent_first, sent_next; /* ring in sent, by count */
	uint32_t flying, lost;
	uint64_t given_up[SLP_GIVEN_UP]; /* numbers of frames whose content went again; 0: none */
	uint32_t given_up_next, given_up_live;
	uint64_t in_flight; /* bytes */
	uint32_t probes;    /* frames that may leave against the window */
	bool ping_due;
	uint32_t round_robin;
	uint32_t sources; /* in use, of both kinds: a bit for each, by its turn */

	/* time */
	uint64_t srtt, rttvar, latest_rtt;
	uint64_t min_rtt; /* of this span and the one before: SLP_MIN_RTT_SPAN */
	uint64_t span_min_rtt, last_span_min_rtt, span_end;
	uint64_t sample_from; /* frames sent before are no measure: time was missing */
	uint64_t loss_due, probe_due, hello_at;
	uint32_t backoff, hellos;
	uint64_t reorder;

	/* congestion: slp_congestion.c */
	uint64_t window, slow_start_limit;
	uint64_t push_window; /* pushes leave so much in the air, until the doubling has ended */
	uint64_t round_end, round_acked, round_lost, round_marked;
	uint64_t round_min_rtt, recent_lost, recent_frames;
	bool round_full; /* the window was a limit */
	bool pushed;	 /* DATA of a push has left */
	uint32_t mark_share; /* of 1024 */
	uint16_t peer_ce;
	uint16_t acked_run; /* what came last with largest_acked: numbers in a row below it */
	uint64_t pace_at, pace_credit, paced_until;
	uint64_t since_request; /* bytes sent since an answer was asked for */
	uint32_t large_lost; /* large frames lost in a row, small ones being answered */
	bool small_answered;

	struct slp_seen seen;
	struct slp_keys keys;
	struct slp_stream_tx tx[SLP_STREAMS];
	struct slp_stream_rx rx[SLP_STREAMS];
	struct slp_handle handles[SLP_HANDLES];
	struct slp_sink pulls[SLP_TRANSFERS], coming[SLP_TRANSFERS];
	struct slp_source pushes[SLP_TRANSFERS], serving[SLP_TRANSFERS];
	struct slp_owed_done owed[4 * SLP_TRANSFERS];
	uint32_t owed_count;

	/* what pulls of ours have asked for: slp_node.c */
	struct slp_share own_share, *share;
	struct slp_link hungry; /* in the share's list; null: not */
	uint64_t asked;		/* bytes asked for and not yet here */
	uint64_t written_off;	/* of these: did not come in time, and others have their budget */
	uint64_t asked_limit;	/* SLP_NEVER, until something was written off */
	uint64_t round_asked, round_brought, stall_due;
	uint32_t next_pull; /* whose turn it is */
	bool pulls_short;   /* one of them wants more than it could have */

	struct slp_work *work; /* null: nothing is under way, and it was given back */
	uint32_t sinks;	       /* in use, of both kinds */
	struct slp_counters counters;
};

/* What only a session needs that has something under way. Nothing of it is cleared. */
struct slp_work {
	struct slp_sent sent[SLP_SENT_FRAMES];
	struct slp_segment segments[SLP_STREAMS][SLP_SEGMENTS];
	struct slp_span later[SLP_STREAMS][SLP_GAPS];
	uint64_t pull_bits[SLP_TRANSFERS][SLP_UNIT_WORDS], coming_bits[SLP_TRANSFERS][SLP_UNIT_WORDS];
	uint8_t tx_memory[SLP_STREAM_BYTES + SLP_CONTROL_BYTES];
	uint8_t rx_memory[SLP_STREAM_BYTES + SLP_CONTROL_BYTES];
	uint8_t message[SLP_MAX_MESSAGE + SLP_RTS_BYTES]; /* one that lies around the ring's end */
};

static inline uint64_t slp_unit_bytes(const struct slp_session *s)
{
	return s->small_unit ? SLP_SMALL_UNIT_BYTES : SLP_UNIT_BYTES;
}

/* Whole units in so many bytes. Two divisions by constants cost less than one by a variable. */
static inline uint64_t slp_units_in(const struct slp_session *s, uint64_t bytes)
{
	return s->small_unit ? bytes / SLP_SMALL_UNIT_BYTES : bytes / SLP_UNIT_BYTES;
}

static inline uint64_t slp_whole_units(const struct slp_session *s, uint64_t bytes)
{
	return slp_units_in(s, bytes) * slp_unit_bytes(s);
}

/* What slp_frame_bytes() may fall to: both ways carry it. */
static inline uint32_t slp_small_frame(const struct slp_session *s)
{
	return s->small_unit ? SLP_LEAST_FRAME : SLP_USUAL_FRAME;
}

static inline uint32_t slp_seal_bytes(const struct slp_session *s)
{
	return s->sealed ? SLP_TAG_BYTES : 0;
}

/* Of the frame. */
static inline uint32_t slp_wire_bytes(const struct slp_session *s, const struct slp_sent *entry)
{
	static const uint32_t kExtension[] = {0, SLP_EAGER_BYTES, SLP_DATA_BYTES};

	return SLP_BASE_BYTES + kExtension[entry->kind] + entry->bytes + slp_seal_bytes(s);
}

/* The session is over from now on. What it holds ends, and the user is told, at the edge of the API:
 * each function there that may come here calls slp_settle() last. */
static inline void slp_fail(struct slp_session *s, enum slp_status why)
{
	if (s->state == SLP_DOWN)
		return;
	s->bye_due = s->state == SLP_UP && why != SLP_CLOSED && why != SLP_NO_SESSION && why != SLP_SILENT;
	s->state = SLP_DOWN;
	s->why = why;
	s->ending = true;
}

/* slp_work.c */
void slp_work_init(struct slp_session *s); /* after slp_streams_init() */
void slp_borrow(struct slp_session *s);
/* To be called by whatever is about to put something into s->work. */
static inline void slp_need_work(struct slp_session *s)
{
	if (!s->work)
		slp_borrow(s);
}
/* Gives it back if nothing is under way. */
void slp_rest(struct slp_session *s);

/* slp_seal.c */
void slp_keys_init(struct slp_session *s);
/* Writes the tag of a HELLO, HELLO_ACK or RETRY, and its checksum. */
void slp_greet(const struct slp_cipher *cipher, void *user, uint8_t *frame);
bool slp_greeting_proven(const struct slp_cipher *cipher, void *user, const uint8_t *frame);
uint8_t slp_phase(const struct slp_session *s, uint64_t number);
enum slp_drop slp_open_frame(struct slp_session *s, const struct slp_frame *frame, const struct slp_base *base,
			     uint64_t number);

/* slp_seen.c */
enum slp_drop slp_window_check(const struct slp_window *window, uint64_t number);
void slp_window_add(struct slp_window *window, uint64_t number);
void slp_seen_add(struct slp_session *s, uint64_t number, uint64_t now, uint8_t type, bool at_once);
void slp_seen_fill_base(struct slp_session *s, uint64_t now, struct slp_base *base);
uint32_t slp_seen_ranges(const struct slp_session *s, uint8_t *payload);
void slp_seen_acknowledged(struct slp_session *s);

/* slp_congestion.c */
void slp_congestion_init(struct slp_session *s);
/* What was in the air when it began is answered or lost. */
void slp_round_ended(struct slp_session *s);
/* A frame that counts as lost was only late. */
void slp_not_lost(struct slp_session *s);

/* slp_loss.c */
void slp_loss_init(struct slp_session *s);
/* There is room for new content, and then still for what must go again. */
static inline bool slp_sent_room(const struct slp_session *s)
{
	return s->sent_next - s->sent_first < SLP_SENT_FRAMES - SLP_SPARE_FRAMES;
}
bool slp_sent_place(struct slp_session *s, uint32_t spare);
void slp_sent_add(struct slp_session *s, const struct slp_sent *entry);
enum slp_drop slp_on_ack(struct slp_session *s, uint64_t now, const struct slp_base *base, const uint8_t *pairs,
			 uint32_t count);
#define SLP_ANY_BYTES 65535u
struct slp_sent *slp_next_lost(struct slp_session *s, uint32_t eager_bytes, uint32_t data_bytes);
void slp_sent_again(struct slp_session *s, struct slp_sent *entry);
bool slp_answer_missing(const struct slp_session *s);
void slp_set_probe_timer(struct slp_session *s, uint64_t now);
uint64_t slp_probe_delay(const struct slp_session *s);
void slp_on_loss_timer(struct slp_session *s, uint64_t now);
void slp_forget_transfer(struct slp_session *s, uint16_t index, uint16_t generation);
uint64_t slp_oldest_offset(const struct slp_session *s, uint16_t index, uint16_t generation, uint64_t none);

/* slp_content.c */
struct slp_source *slp_source_of(struct slp_session *s, uint16_t index);
void slp_source_begin(struct slp_session *s, uint16_t index);
void slp_source_end(struct slp_session *s, uint16_t index);
/* That of a source's turn to send, from 0 to 2 * SLP_TRANSFERS - 1. */
uint16_t slp_source_at(uint32_t turn);
void slp_source_acked(struct slp_session *s, const struct slp_sent *entry);
void slp_stream_acked(struct slp_session *s, const struct slp_sent *entry);

/* slp_stream.c */
void slp_streams_init(struct slp_session *s);
bool slp_stream_write(struct slp_session *s, uint32_t stream, uint8_t kind, const uint8_t *const *pieces,
		      const uint32_t *bytes, uint32_t count);
uint32_t slp_stream_room(const struct slp_session *s, uint32_t stream);
bool slp_stream_has_new(const struct slp_session *s, uint32_t stream);
enum slp_drop slp_stream_arrive(struct slp_session *s, const struct slp_frame *frame, const struct slp_base *base);
/* Bytes that are here, also around the ring's end. */
void slp_stream_peek(const struct slp_stream_rx *rx, uint64_t at, uint8_t *data, uint32_t bytes);
uint16_t slp_stream_credit(const struct slp_session *s);
void slp_stream_credited(struct slp_session *s, uint16_t kib);

/* slp_node.c */
void slp_node_join(struct slp_session *s);
/* Bytes that a pull may have asked for beyond those that are here. */
uint64_t slp_node_ahead(const struct slp_session *s);
/* Bytes that may be asked for now. */
uint64_t slp_node_room(const struct slp_session *s);
void slp_node_asked(struct slp_session *s, uint64_t bytes);
void slp_node_free(struct slp_session *s, uint64_t bytes);
/* Bytes that were asked for are here; `marked`: congestion was experienced on the way. */
void slp_node_brought(struct slp_node *node, uint64_t bytes, bool marked);
/* A pull could not ask for all that it wants. */
void slp_node_wait(struct slp_session *s);
/* It waits no more. */
void slp_node_pass(struct slp_session *s);
struct slp_session *slp_node_next(struct slp_node *node);
void slp_node_forget(struct slp_session *s);

/* slp_handle.c */
struct slp_handle *slp_find_handle(struct slp_session *s, uint32_t number);

/* slp_request.c */
uint32_t slp_transfer_number(uint32_t index, uint16_t generation, bool push);
void slp_owe_done(struct slp_session *s, uint32_t transfer, enum slp_status status);
bool slp_grant_more(struct slp_session *s, uint32_t index);
void slp_transfers_work(struct slp_session *s);

/* slp_owed.c */
void slp_owed_brought(struct slp_session *s, uint64_t bytes, bool marked);
void slp_owed_give_back(struct slp_session *s, uint64_t bytes);
/* Begins to wait for what was asked for. */
void slp_owed_watch(struct slp_session *s, uint64_t now);
void slp_owed_on_timer(struct slp_session *s, uint64_t now);

/* slp_transfer.c */
static inline void slp_sink_begin(struct slp_session *s, struct slp_sink *sink)
{
	sink->used = true;
	++s->sinks;
}

/* May be over already. */
static inline void slp_sink_end(struct slp_session *s, struct slp_sink *sink)
{
	s->sinks -= sink->used;
	sink->used = false;
}

void slp_sink_placed(struct slp_session *s, struct slp_sink *sink, uint32_t number, uint64_t placed,
		     bool marked);
void slp_end_pull(struct slp_session *s, struct slp_sink *pull, enum slp_status status, bool tell);
void slp_end_push(struct slp_session *s, uint32_t index, enum slp_status status, bool tell);
void slp_stop_serving(struct slp_session *s, uint32_t index);
void slp_transfers_end(struct slp_session *s, enum slp_status why);
/* Carries out what slp_fail() has begun, and gives back what is not needed any more. */
void slp_settle(struct slp_session *s);

/* slp_data.c */
enum slp_drop slp_data_arrive(struct slp_session *s, const struct slp_frame *frame, const struct slp_base *base);
uint64_t slp_source_ready(struct slp_session *s, uint16_t index);

/* slp_peer.c */
void slp_control_record(struct slp_session *s, uint8_t kind, const uint8_t *data, uint32_t bytes);

/* slp_record.c */
enum slp_drop slp_records_arrive(struct slp_session *s, const struct slp_frame *frame, const struct slp_base *base);
/* Whole records that are here. */
void slp_records_deliver(struct slp_session *s, uint32_t stream);

#endif /* SLUICE_SLP_SESSION_H_ */
