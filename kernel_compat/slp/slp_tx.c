// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Frames out, in the order of their worth: acknowledgements that are due, control records,
 * what was lost, messages, bytes of transfers. */
#include "slp_session.h"

/* The control stream may go beyond the window by so much: it is what ends congestion. */
#define SLP_CONTROL_BEYOND SLP_CONTROL_BYTES

static void finish(struct slp_session *s, uint64_t now, struct slp_tx *out, uint8_t type, uint8_t flags,
		   uint32_t extra_header, uint32_t payload)
{
	struct slp_base base = {.type = type, .flags = flags};
	bool numbered = type > SLP_NACK;

	base.source_port = s->config.source_port;
	base.destination_port = s->config.destination_port;
	base.payload_bytes = (uint16_t)payload;
	base.connection = type == SLP_HELLO ? 0 : s->peer.connection;
	if (numbered) {
		out->number = s->next_number++;
		out->sealed = s->sealed;
		base.number = (uint32_t)out->number;
		base.session = s->tag;
		base.credit_kib = slp_stream_credit(s);
		slp_seen_fill_base(s, now, &base);
	}
	if (out->sealed)
		base.flags |= SLP_FLAG_SEALED | slp_phase(s, out->number);
	if (s->payload_crc && payload > 0) {
		base.flags |= SLP_FLAG_PCRC;
		if (out->from_memory)
			base.payload_crc = s->config.ops->source_crc(s->config.user, out->cookie, out->offset, payload);
		else if (extra_header)
			base.payload_crc = slp_crc32c(0, out->header + SLP_BASE_BYTES + SLP_ACK_BYTES, payload);
		else
			base.payload_crc = slp_crc32c(slp_crc32c(0, out->piece[0], out->piece_bytes[0]), out->piece[1],
						      out->piece_bytes[1]);
	}
	out->header_bytes = SLP_BASE_BYTES + slp_extension_bytes(type) + extra_header;
	slp_encode_base(out->header, &base);
	++s->counters.frames_sent;
	s->counters.bytes_sent += out->header_bytes + (extra_header ? 0 : payload) + (out->sealed ? SLP_TAG_BYTES : 0);
	if (!numbered || (s->seen.gaps_due > 0 && type != SLP_ACK))
		return;
	slp_seen_acknowledged(s);
}

static void hello_frame(struct slp_session *s, uint64_t now, struct slp_tx *out, uint8_t type)
{
	slp_encode_hello(out->header + SLP_BASE_BYTES, &s->ours);
	finish(s, now, out, type, 0, 0, 0);
	if (s->config.cipher)
		slp_greet(s->config.cipher, s->config.cipher_user, out->header);
}

static void ack_frame(struct slp_session *s, uint64_t now, struct slp_tx *out)
{
	uint8_t *extension = out->header + SLP_BASE_BYTES;
	uint32_t pairs = slp_seen_ranges(s, extension + SLP_ACK_BYTES);

	slp_store16(extension, (uint16_t)pairs);
	slp_store16(extension + 2, 0);
	if (s->seen.gaps_due > 0)
		--s->seen.gaps_due;
	finish(s, now, out, SLP_ACK, 0, 4 * pairs, 4 * pairs);
	++s->counters.acks_sent;
}

/* Accounts for a frame that wants an answer. */
static uint8_t sent_flags(struct slp_session *s, uint32_t wire, bool again, bool push)
{
	uint8_t flags = again ? SLP_FLAG_AGAIN | SLP_FLAG_ACKREQ : 0;
	uint64_t window = push ? slp_min(s->window, s->push_window) : s->window;

	s->since_request += wire;
	/* A window holds four answers at least, however long the peer might wait for company. */
	if (s->since_request >= window / 4 || s->in_flight + 2 * s->frame_limit > window)
		flags |= SLP_FLAG_ACKREQ;
	if (flags & SLP_FLAG_ACKREQ)
		s->since_request = 0;
	if (again)
		++s->counters.resent;
	return flags;
}

static void remember(struct slp_session *s, uint64_t now, struct slp_sent *entry)
{
	bool first = s->flying == 0 && s->probe_due == SLP_NEVER;

	if (first)
		s->waiting_since = now;
	entry->number = s->next_number - 1;
	entry->time = now;
	entry->state = SLP_SENT_FLYING;
	slp_sent_add(s, entry);
	slp_set_probe_timer(s, now);
	if (s->probes > 0)
		--s->probes;
}

/* Bytes of content in a frame of so many. */
static uint32_t room_in(const struct slp_session *s, uint32_t frame, uint8_t kind)
{
	if (kind == SLP_SENT_EAGER)
		return frame - SLP_BASE_BYTES - SLP_EAGER_BYTES - slp_seal_bytes(s);
	return (uint32_t)slp_whole_units(s, frame - SLP_BASE_BYTES - SLP_DATA_BYTES - slp_seal_bytes(s));
}

static uint32_t eager_room(const struct slp_session *s)
{
	return room_in(s, s->frame_limit, SLP_SENT_EAGER);
}

static uint32_t data_room(const struct slp_session *s)
{
	return room_in(s, s->frame_limit, SLP_SENT_DATA);
}

/* Of a push, as long as its window only grew, a quarter of that: the first mark comes sooner. */
static uint32_t push_room(const struct slp_session *s)
{
	uint64_t frame = slp_max(s->push_window / 4, slp_small_frame(s));

	return room_in(s, (uint32_t)slp_min(frame, s->frame_limit), SLP_SENT_DATA);
}

static void eager_frame(struct slp_session *s, uint64_t now, struct slp_tx *out, struct slp_sent entry, bool again)
{
	struct slp_stream_tx *tx = &s->tx[entry.index];
	uint8_t *extension = out->header + SLP_BASE_BYTES;
	uint32_t place = (uint32_t)(entry.offset % tx->capacity);
	uint32_t first = (uint32_t)slp_min(entry.bytes, tx->capacity - place);

	slp_store32(extension, (uint32_t)entry.offset);
	slp_store32(extension + 4, entry.index);
	out->piece[0] = tx->ring + place;
	out->piece_bytes[0] = first;
	out->piece[1] = tx->ring;
	out->piece_bytes[1] = entry.bytes - first;
	entry.kind = SLP_SENT_EAGER;
	finish(s, now, out, SLP_EAGER, sent_flags(s, slp_wire_bytes(s, &entry), again, false), 0,
	       entry.bytes);
	remember(s, now, &entry);
}

static void data_frame(struct slp_session *s, uint64_t now, struct slp_tx *out, struct slp_sent entry, bool again)
{
	struct slp_source *source = slp_source_of(s, entry.index);
	uint8_t *extension = out->header + SLP_BASE_BYTES;

	slp_store64(extension, entry.offset);
	slp_store32(extension + 8, entry.index | (uint32_t)entry.generation << 16);
	slp_store32(extension + 12, 0);
	out->from_memory = true;
	out->cookie = source->cookie;
	out->offset = source->base + entry.offset;
	out->bytes = entry.bytes;
	entry.kind = SLP_SENT_DATA;
	finish(s, now, out, SLP_DATA,
	       sent_flags(s, slp_wire_bytes(s, &entry), again, entry.index & SLP_TRANSFER_PUSH), 0,
	       entry.bytes);
	remember(s, now, &entry);
}

static void ping_frame(struct slp_session *s, uint64_t now, struct slp_tx *out)
{
	struct slp_sent entry = {.kind = SLP_SENT_PING};

	s->ping_due = false;
	finish(s, now, out, SLP_PING, SLP_FLAG_ACKREQ, 0, 0);
	remember(s, now, &entry);
}

/* Pacing: 5/4 of a window per round trip, bursts of a window's quarter or 64 KiB. */
static bool paced(struct slp_session *s, uint64_t now, uint32_t bytes)
{
	uint64_t burst = slp_max(s->window / 4, 65536), elapsed = now - s->pace_at;
	uint64_t rtt = slp_max(s->srtt, SLP_MICROSECOND);

	if (elapsed > 0) {
		uint64_t gained = elapsed >= rtt ? burst : (s->window + s->window / 4) * elapsed / rtt;

		s->pace_credit = slp_min(s->pace_credit + gained, burst);
		s->pace_at = now;
	}
	if (s->pace_credit < bytes)
		return false;
	s->pace_credit -= bytes;
	return true;
}

/* When the next frame may leave. */
static uint64_t pace_due(const struct slp_session *s)
{
	uint64_t rtt = slp_max(s->srtt, SLP_MICROSECOND);

	return s->pace_at + rtt * s->frame_limit / (s->window + s->window / 4) + 1;
}

/* The window has room for a frame of so many bytes. */
static bool window_open(struct slp_session *s, uint32_t bytes)
{
	if (s->probes > 0 || s->in_flight + bytes <= s->window)
		return true;
	s->round_full = true;
	return false;
}

static bool push_window_open(struct slp_session *s, uint32_t bytes)
{
	s->pushed = true;
	if (s->probes > 0 || s->in_flight == 0 || s->in_flight + bytes <= s->push_window)
		return true;
	s->round_full = true;
	return false;
}

static bool may_leave(struct slp_session *s, uint64_t now, uint32_t bytes)
{
	if (!window_open(s, bytes))
		return false;
	if (s->probes > 0 || paced(s, now, bytes))
		return true;
	s->paced_until = pace_due(s);
	return false;
}

/* The oldest lost content; where there is no place for a piece, of that which goes whole. */
static struct slp_sent *choose_lost(struct slp_session *s)
{
	struct slp_sent *lost;

	if (s->lost == 0)
		return 0;
	if (!slp_sent_place(s, SLP_SPARE_PINGS)) {
		lost = slp_next_lost(s, eager_room(s), data_room(s));
		if (lost || !slp_sent_place(s, SLP_SPARE_PINGS))
			return lost;
	}
	return slp_next_lost(s, SLP_ANY_BYTES, SLP_ANY_BYTES);
}

/* Lost content, or as much of it as a frame takes now. */
static bool send_lost(struct slp_session *s, uint64_t now, struct slp_tx *out)
{
	struct slp_sent *lost = choose_lost(s);
	struct slp_sent part;

	if (!lost)
		return false;
	part = *lost;
	if (part.bytes > room_in(s, s->frame_limit, lost->kind))
		part.bytes = (uint16_t)room_in(s, slp_sent_room(s) ? s->frame_limit : slp_small_frame(s), lost->kind);
	if (!may_leave(s, now, part.bytes + SLP_BASE_BYTES))
		return false;
	if (part.bytes < lost->bytes) {
		lost->offset += part.bytes;
		lost->bytes = (uint16_t)(lost->bytes - part.bytes);
	} else {
		slp_sent_again(s, lost);
	}
	if (part.kind == SLP_SENT_EAGER)
		eager_frame(s, now, out, part, true);
	else
		data_frame(s, now, out, part, true);
	return true;
}

/* Of a stream that has new. */
static bool send_stream(struct slp_session *s, uint64_t now, struct slp_tx *out, uint32_t stream)
{
	struct slp_stream_tx *tx = &s->tx[stream];
	struct slp_segment *segment = &tx->segments[tx->next_segment % SLP_SEGMENTS];
	struct slp_sent entry = {.index = (uint16_t)stream, .generation = (uint16_t)tx->next_segment, .offset = tx->sent};
	uint64_t end = stream == SLP_MESSAGES ? slp_min(tx->written, tx->limit) : tx->written;

	if (!slp_sent_room(s))
		return false;
	entry.bytes = (uint16_t)slp_min(end - tx->sent, eager_room(s));
	if (stream == SLP_CONTROL ? s->in_flight > s->window + SLP_CONTROL_BEYOND
				  : !may_leave(s, now, entry.bytes + SLP_BASE_BYTES))
		return false;
	segment->offset = tx->sent;
	segment->bytes = segment->left = entry.bytes;
	++tx->next_segment;
	tx->sent += entry.bytes;
	eager_frame(s, now, out, entry, false);
	return true;
}

/* The turn of the first of `sources` at or after `from`, around the end. */
static uint32_t next_turn(uint32_t sources, uint32_t from)
{
	uint32_t later = sources & ~(uint32_t)0 << from;

	return (uint32_t)__builtin_ctz(later ? later : sources);
}

/* One frame of each transfer in turn. */
static bool send_data(struct slp_session *s, uint64_t now, struct slp_tx *out)
{
	uint32_t left = s->sources;

	if (left == 0 || !slp_sent_room(s))
		return false;
	while (left != 0) {
		uint32_t turn = next_turn(left, s->round_robin);
		uint16_t index = slp_source_at(turn);
		struct slp_source *source = slp_source_of(s, index);
		uint64_t ready = slp_source_ready(s, index);
		bool push = index & SLP_TRANSFER_PUSH;
		struct slp_sent entry = {.index = index, .generation = source->generation, .offset = source->next};

		left &= ~((uint32_t)1 << turn);
		if (ready == 0)
			continue;
		entry.bytes = (uint16_t)slp_min(ready, push ? push_room(s) : data_room(s));
		/* Only the last of a transfer is not whole; a grant may end anywhere. */
		if (source->next + entry.bytes < source->total)
			entry.bytes = (uint16_t)slp_whole_units(s, entry.bytes);
		if (entry.bytes == 0)
			continue;
		if (push && !push_window_open(s, entry.bytes + SLP_BASE_BYTES))
			continue;
		s->round_robin = turn;
		if (!may_leave(s, now, entry.bytes + SLP_BASE_BYTES))
			return false;
		source->next += entry.bytes;
		s->round_robin = (turn + 1) % (2 * SLP_TRANSFERS);
		data_frame(s, now, out, entry, false);
		return true;
	}
	return false;
}

static bool poll_up(struct slp_session *s, uint64_t now, struct slp_tx *out)
{
	s->paced_until = SLP_NEVER;
	slp_owed_watch(s, now);
	if (s->answer_due) {
		s->answer_due = false;
		hello_frame(s, now, out, SLP_HELLO_ACK);
		return true;
	}
	if (s->seen.due <= now && s->seen.gaps_due > 0) {
		ack_frame(s, now, out);
		return true;
	}
	if ((slp_stream_has_new(s, SLP_CONTROL) && send_stream(s, now, out, SLP_CONTROL)) || send_lost(s, now, out) ||
	    (slp_stream_has_new(s, SLP_MESSAGES) && send_stream(s, now, out, SLP_MESSAGES)) || send_data(s, now, out))
		return true;
	if (s->ping_due && slp_sent_place(s, 0)) {
		ping_frame(s, now, out);
		return true;
	}
	if (s->seen.due <= now) {
		ack_frame(s, now, out);
		return true;
	}
	if (s->probe_due == SLP_NEVER && slp_answer_missing(s)) {
		s->waiting_since = now; /* for credit */
		slp_set_probe_timer(s, now);
	}
	slp_rest(s); /* frames polled before that have pieces of it are in the air */
	return false;
}

bool slp_poll_tx(struct slp_session *s, uint64_t now, struct slp_tx *out)
{
	out->from_memory = out->sealed = false;
	out->bytes = 0;
	out->number = 0;
	out->piece_bytes[0] = out->piece_bytes[1] = 0;
	out->piece[0] = out->piece[1] = out->header;
	if (s->state == SLP_UP)
		return poll_up(s, now, out);
	if (s->state == SLP_CONNECTING && s->hello_due) {
		s->hello_due = false;
		hello_frame(s, now, out, SLP_HELLO);
		return true;
	}
	if (s->state == SLP_DOWN && s->bye_due) {
		s->bye_due = false;
		finish(s, now, out, SLP_BYE, 0, 0, 0);
		return true;
	}
	return false;
}
