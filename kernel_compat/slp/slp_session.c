// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* A session from its HELLO to its end: frames in, time, posts. Frames out: slp_tx.c. */
#include "slp_session.h"

/* Doubled twice, and no more: a listener among a flood hears one HELLO in 16 or fewer, and two of
 * ours must be heard. */
#define SLP_HELLO_FIRST (4 * (uint64_t)SLP_MILLISECOND)

void slp_config_init(struct slp_config *config)
{
	memset(config, 0, sizeof(*config));
	config->mtu = SLP_USUAL_FRAME;
	config->ack_delay_ns = 200 * SLP_MICROSECOND;
	config->initial_rtt_ns = SLP_MILLISECOND;
	config->keepalive_ns = 1000 * (uint64_t)SLP_MILLISECOND;
	config->epoch_bits = SLP_EPOCH_BITS;
	config->dead_ns = 3000 * (uint64_t)SLP_MILLISECOND;
}

static struct slp_session *begin(void *memory, const struct slp_config *config, uint64_t now)
{
	struct slp_session *s = memory;
	uint32_t i;

	memset(s, 0, sizeof(*s));
	/* A handle of one session shall name nothing in another, nor be known before it is told. */
	for (i = 0; i < SLP_HANDLES; ++i)
		s->handles[i].generation = config->generations[i];
	s->config = *config;
	s->config.mtu = (uint16_t)slp_max(config->mtu, SLP_LEAST_FRAME);
	s->frame_limit = s->config.mtu;
	s->last_heard = s->waiting_since = s->pace_at = now;
	s->seen.due = s->hello_at = s->paced_until = SLP_NEVER;
	slp_loss_init(s);
	slp_streams_init(s);
	slp_work_init(s);
	slp_node_join(s);
	s->ours.nonce = config->nonce;
	s->ours.connection = config->connection;
	s->ours.min_version = s->ours.max_version = SLP_VERSION;
	s->ours.capabilities = config->payload_crc ? SLP_CAN_PCRC : 0;
	s->ours.mtu = s->config.mtu;
	s->ours.stream_kib = SLP_STREAM_BYTES / 1024;
	s->ours.transfers = SLP_TRANSFERS;
	s->ours.handles = SLP_HANDLES;
	s->ours.ack_delay_us = (uint16_t)slp_min(config->ack_delay_ns / SLP_MICROSECOND, 65535);
	if (config->cipher) {
		s->ours.capabilities = SLP_CAN_SEAL; /* a tag says more than a checksum */
		s->ours.epoch_bits = (uint8_t)slp_min(slp_max(config->epoch_bits, SLP_LEAST_EPOCH_BITS), SLP_EPOCH_BITS);
		memcpy(s->ours.salt, config->salt, SLP_SALT_BYTES);
	}
	return s;
}

struct slp_session *slp_connect(void *memory, const struct slp_config *config, uint64_t now)
{
	struct slp_session *s = begin(memory, config, now);

	s->state = SLP_CONNECTING;
	s->hello_due = true;
	s->hello_at = now + SLP_HELLO_FIRST;
	return s;
}

/* What both ends need of each other. */
static enum slp_status take_peer(struct slp_session *s, const struct slp_hello *peer)
{
	bool seals = peer->capabilities & SLP_CAN_SEAL;

	if (peer->min_version > SLP_VERSION || peer->max_version < SLP_VERSION)
		return SLP_BAD_VERSION;
	if (peer->nonce == 0 || peer->connection == 0 || peer->mtu < SLP_LEAST_FRAME)
		return SLP_BROKEN;
	if (peer->stream_kib != SLP_STREAM_BYTES / 1024 || peer->transfers != SLP_TRANSFERS)
		return SLP_BAD_VERSION;
	if (seals != (s->config.cipher != 0))
		return seals ? SLP_NEEDS_KEY : SLP_HAS_NO_KEY;
	if (seals && (peer->epoch_bits < SLP_LEAST_EPOCH_BITS || peer->epoch_bits > SLP_EPOCH_BITS))
		return SLP_BROKEN;
	s->peer = *peer;
	s->sealed = seals;
	/* Who asks for payload checksums gets them; a tag says more. */
	s->payload_crc = !seals && (s->config.payload_crc || ((peer->capabilities & SLP_CAN_PCRC) && s->config.ops->source_crc));
	s->tag = slp_session_tag(s->ours.nonce, peer->nonce);
	s->small_unit = slp_min(s->ours.mtu, peer->mtu) < SLP_USUAL_FRAME;
	slp_limit_frame(s, peer->mtu);
	slp_keys_init(s);
	return SLP_OK;
}

enum slp_status slp_accept(void *memory, const struct slp_config *config, const struct slp_hello *hello, uint64_t now,
			   struct slp_session **out)
{
	struct slp_session *s = begin(memory, config, now);
	enum slp_status status = take_peer(s, hello);

	if (status != SLP_OK)
		return status;
	s->passive = true;
	s->state = SLP_UP;
	s->answer_due = true;
	s->ours.peer_nonce = hello->nonce;
	*out = s;
	return SLP_OK;
}

void slp_restarted(struct slp_session *s)
{
	slp_fail(s, SLP_RESTARTED);
	s->bye_due = false; /* it would go to the new one */
	slp_settle(s);
}

void slp_abort(struct slp_session *s)
{
	if (s->state == SLP_DOWN)
		return;
	s->bye_due = s->state == SLP_UP;
	s->state = SLP_DOWN;
	s->why = SLP_LOCAL;
	slp_transfers_end(s, SLP_LOCAL);
	slp_rest(s);
}

/* ---- frames in */

static enum slp_drop on_handshake(struct slp_session *s, const struct slp_frame *frame, const struct slp_base *base,
				  uint64_t now)
{
	struct slp_hello hello;
	enum slp_status status;

	slp_decode_hello(frame->data + SLP_BASE_BYTES, &hello);
	if (s->config.cipher && !slp_greeting_proven(s->config.cipher, s->config.cipher_user, frame->data)) {
		/* Nothing is done for it, but where nothing better comes it tells why. */
		if (s->state == SLP_CONNECTING && hello.peer_nonce == s->ours.nonce)
			s->why = hello.capabilities & SLP_CAN_SEAL ? SLP_NOT_AUTHENTIC : SLP_HAS_NO_KEY;
		return SLP_DROP_FORGED;
	}
	if (base->type == SLP_HELLO) {
		if (!s->passive || s->state != SLP_UP || hello.nonce != s->peer.nonce)
			return SLP_DROP_STATE;
		s->answer_due = true; /* our answer was lost */
		return SLP_TAKEN;
	}
	if (s->state != SLP_CONNECTING || hello.peer_nonce != s->ours.nonce)
		return SLP_DROP_STATE;
	if (base->type == SLP_RETRY) {
		if (hello.cookie != s->ours.cookie)
			s->hello_due = true;
		s->ours.cookie = hello.cookie;
		s->last_heard = now;
		return SLP_TAKEN;
	}
	status = take_peer(s, &hello);
	if (status != SLP_OK) {
		slp_fail(s, status);
		return SLP_TAKEN;
	}
	s->state = SLP_UP;
	s->why = SLP_OK;
	s->hello_due = false;
	s->ping_due = s->sealed; /* shows the listener that our HELLO was not an old one */
	s->hello_at = SLP_NEVER;
	s->last_heard = now;
	slp_transfers_work(s);
	if (s->config.ops->state)
		s->config.ops->state(s->config.user, SLP_UP, SLP_OK);
	return SLP_TAKEN;
}

static enum slp_drop on_nack(struct slp_session *s, const struct slp_frame *frame, const struct slp_base *base)
{
	const uint8_t *extension = frame->data + SLP_BASE_BYTES;
	uint32_t reason = slp_load16(extension), meant = slp_load32(extension + 4);

	if (slp_load16(extension + 2) != 0 || reason == SLP_OK || reason >= SLP_STATUSES)
		return SLP_DROP_CONTENT;
	/* Whoever has not seen our frames or our HELLO does not know these numbers. */
	if (s->state == SLP_UP ? meant != s->peer.connection || base->session != s->tag : meant != s->ours.connection)
		return SLP_DROP_SESSION;
	/* It proves nothing: whoever has the secret goes on, and remembers it if nothing better comes. */
	if (s->config.cipher) {
		if (s->state == SLP_CONNECTING)
			s->why = reason == SLP_NEEDS_KEY ? SLP_NOT_AUTHENTIC : (enum slp_status)reason;
		return SLP_DROP_UNSEALED;
	}
	slp_fail(s, (enum slp_status)reason);
	return SLP_TAKEN;
}

static bool payload_intact(struct slp_session *s, const struct slp_frame *frame, const struct slp_base *base)
{
	uint32_t at = SLP_BASE_BYTES + slp_extension_bytes(base->type), crc;

	if (!(base->flags & SLP_FLAG_PCRC))
		return true;
	if (frame->present >= at + base->payload_bytes)
		crc = slp_crc32c(0, frame->data + at, base->payload_bytes);
	else if (s->config.ops->frame_crc)
		crc = s->config.ops->frame_crc(s->config.user, frame, at, base->payload_bytes);
	else
		return false;
	return crc == base->payload_crc;
}

static enum slp_drop on_acknowledgement(struct slp_session *s, const struct slp_frame *frame,
					const struct slp_base *base, uint64_t now)
{
	const uint8_t *extension = frame->data + SLP_BASE_BYTES;
	uint32_t pairs = 0;

	if (base->type == SLP_ACK) {
		pairs = slp_load16(extension);
		if (slp_load16(extension + 2) != 0 || pairs > SLP_MAX_PAIRS || base->payload_bytes != 4 * pairs ||
		    frame->present < SLP_BASE_BYTES + SLP_ACK_BYTES + base->payload_bytes)
			return SLP_DROP_CONTENT;
	}
	return slp_on_ack(s, now, base, extension + SLP_ACK_BYTES, pairs);
}

static enum slp_drop on_numbered(struct slp_session *s, const struct slp_frame *frame, const struct slp_base *base,
				 uint64_t now)
{
	/* Of sealed frames, those whose content was dropped do not come again either. */
	const struct slp_window *known = s->sealed ? &s->keys.opened : &s->seen.here;
	uint64_t number = slp_expand_number(known->largest + 1, base->number);
	enum slp_drop drop = slp_window_check(known, number);

	if (drop == SLP_TAKEN && s->sealed)
		drop = slp_open_frame(s, frame, base, number);
	if (drop != SLP_TAKEN)
		return drop;
	if (!payload_intact(s, frame, base))
		return SLP_DROP_PAYLOAD_CRC;
	drop = on_acknowledgement(s, frame, base, now);
	if (drop != SLP_TAKEN)
		return drop;
	if (s->control_freed) {
		s->control_freed = false;
		slp_transfers_work(s); /* there may be records that found no room */
	}
	slp_stream_credited(s, base->credit_kib);
	s->last_heard = now;
	s->confirmed = true;
	if (base->type == SLP_EAGER)
		drop = slp_records_arrive(s, frame, base);
	else if (base->type == SLP_DATA)
		drop = slp_data_arrive(s, frame, base);
	else if (base->type == SLP_PING && base->payload_bytes != 0)
		drop = SLP_DROP_CONTENT;
	if (drop != SLP_TAKEN)
		return drop; /* not acknowledged: it comes again */
	if (frame->ce || (base->flags & SLP_FLAG_CE)) {
		++s->seen.ce_count;
		++s->counters.marked;
	}
	slp_seen_add(s, number, now, base->type, base->flags & SLP_FLAG_ACKREQ);
	if (base->type == SLP_BYE)
		slp_fail(s, SLP_CLOSED);
	return SLP_TAKEN;
}

/* Time in which nobody called although something was due: this end slept, not the peer. */
static void note_time(struct slp_session *s, uint64_t now)
{
	uint64_t due;

	if (now == s->last_heard)
		return; /* another frame of one batch */
	due = slp_next_timeout(s);
	if (due >= now || now - due < s->config.dead_ns / 4)
		return;
	s->last_heard = slp_min(now, s->last_heard + (now - due));
	s->waiting_since = slp_min(now, s->waiting_since + (now - due));
	s->sample_from = now;
}

static enum slp_drop take_frame(struct slp_session *s, uint64_t now, const struct slp_frame *frame,
				const struct slp_base *base)
{
	if (base->destination_port != s->config.source_port || base->source_port != s->config.destination_port)
		return SLP_DROP_SESSION;
	if (s->state == SLP_DOWN)
		return SLP_DROP_STATE;
	if (base->type == SLP_NACK)
		return on_nack(s, frame, base);
	if (base->type != SLP_HELLO && base->connection != s->config.connection)
		return SLP_DROP_SESSION;
	if (base->type <= SLP_RETRY)
		return on_handshake(s, frame, base, now);
	if (s->state != SLP_UP)
		return SLP_DROP_STATE;
	if (!(base->flags & SLP_FLAG_SEALED) == s->sealed)
		return SLP_DROP_UNSEALED;
	return base->session == s->tag ? on_numbered(s, frame, base, now) : SLP_DROP_SESSION;
}

enum slp_drop slp_on_decoded_frame(struct slp_session *s, uint64_t now, const struct slp_frame *frame,
				   const struct slp_base *base)
{
	enum slp_drop drop;

	note_time(s, now);
	drop = take_frame(s, now, frame, base);
	slp_settle(s);
	if (drop == SLP_TAKEN) {
		++s->counters.frames_received;
		s->counters.bytes_received += frame->bytes;
	} else {
		++s->counters.dropped[drop];
	}
	return drop;
}

enum slp_drop slp_on_frame(struct slp_session *s, uint64_t now, const struct slp_frame *frame)
{
	struct slp_base base;
	enum slp_drop drop = slp_decode_base(frame->data, frame->present, frame->bytes, &base);

	if (drop == SLP_TAKEN)
		return slp_on_decoded_frame(s, now, frame, &base);
	note_time(s, now);
	++s->counters.dropped[drop];
	return drop;
}

/* ---- time */

static uint64_t dead_due(const struct slp_session *s)
{
	if (s->state == SLP_CONNECTING)
		return s->last_heard + s->config.dead_ns;
	if (s->flying == 0 && s->lost == 0 && s->probe_due == SLP_NEVER)
		return SLP_NEVER;
	return slp_max(s->last_heard, s->waiting_since) + s->config.dead_ns;
}

uint64_t slp_next_timeout(const struct slp_session *s)
{
	uint64_t next = s->hello_at;

	if (s->state == SLP_DOWN || s->state == SLP_IDLE)
		return SLP_NEVER;
	next = slp_min(next, dead_due(s));
	if (s->state == SLP_CONNECTING)
		return next;
	next = slp_min(slp_min(next, s->stall_due), slp_min(s->loss_due, s->probe_due));
	next = slp_min(next, slp_min(s->seen.due, s->paced_until));
	if (s->config.keepalive_ns != SLP_NEVER && s->flying == 0 && !s->ping_due)
		next = slp_min(next, s->last_heard + s->config.keepalive_ns);
	return next;
}

void slp_on_timer(struct slp_session *s, uint64_t now)
{
	note_time(s, now);
	if (s->state == SLP_DOWN)
		return;
	if (dead_due(s) <= now) {
		slp_fail(s, s->state == SLP_CONNECTING && s->why != SLP_OK ? s->why : SLP_SILENT);
		slp_settle(s);
		return;
	}
	if (s->state == SLP_CONNECTING) {
		if (s->hello_at <= now) {
			s->hello_due = true;
			++s->hellos;
			s->hello_at = now + (SLP_HELLO_FIRST << slp_min(s->hellos, 2));
		}
		return;
	}
	slp_on_loss_timer(s, now);
	slp_owed_on_timer(s, now);
	if (s->config.keepalive_ns != SLP_NEVER && s->flying == 0 && s->last_heard + s->config.keepalive_ns <= now)
		s->ping_due = true;
	slp_rest(s);
}

/* ---- posts */

bool slp_can_send(const struct slp_session *s, uint32_t bytes)
{
	return s->state != SLP_DOWN && bytes <= SLP_MAX_MESSAGE &&
	       slp_stream_room(s, SLP_MESSAGES) >= SLP_RECORD_BYTES + SLP_RTS_BYTES + bytes;
}

bool slp_send(struct slp_session *s, const struct slp_rts *rts, const uint8_t *head, uint32_t head_bytes,
	      const uint8_t *body, uint32_t body_bytes)
{
	uint8_t announced[SLP_RTS_BYTES] = {0};
	const uint8_t *pieces[3] = {announced, head, body};
	uint32_t bytes[3] = {rts ? SLP_RTS_BYTES : 0, head_bytes, body_bytes};

	if (head_bytes > SLP_MAX_MESSAGE || !slp_can_send(s, head_bytes + body_bytes))
		return false;
	if (rts) {
		slp_store32(announced, rts->handle);
		slp_store64(announced + 8, rts->length);
	}
	return slp_stream_write(s, SLP_MESSAGES, rts ? SLP_RECORD_RTS : SLP_RECORD_MESSAGE, pieces, bytes, 3);
}

void slp_resume(struct slp_session *s)
{
	struct slp_stream_rx *rx = &s->rx[SLP_MESSAGES];
	uint64_t before = rx->floor;

	if (!rx->stalled || s->state != SLP_UP)
		return;
	rx->stalled = false;
	slp_records_deliver(s, SLP_MESSAGES);
	/* The peer may wait for the credit, and nothing else would tell it. */
	if (rx->floor != before)
		s->seen.due = 0;
	slp_settle(s);
}

bool slp_drained(const struct slp_session *s)
{
	uint32_t i;

	for (i = 0; i < SLP_STREAMS; ++i)
		if (s->tx[i].floor != s->tx[i].written)
			return false;
	for (i = 0; i < SLP_TRANSFERS; ++i)
		if (s->pulls[i].used || s->pushes[i].used)
			return false;
	return s->owed_count == 0;
}

bool slp_confirmed(const struct slp_session *s)
{
	return s->confirmed;
}

enum slp_state slp_state_of(const struct slp_session *s)
{
	return s->state;
}

bool slp_was_heard(const struct slp_session *s)
{
	return s->state != SLP_CONNECTING || s->ours.cookie != 0;
}

enum slp_status slp_why_of(const struct slp_session *s)
{
	return s->why;
}

uint32_t slp_frame_bytes(const struct slp_session *s)
{
	return s->frame_limit;
}

uint32_t slp_least_frame_bytes(const struct slp_session *s)
{
	return slp_small_frame(s);
}

void slp_limit_frame(struct slp_session *s, uint32_t bytes)
{
	/* The unit is not known before the peer is. */
	uint32_t least = s->peer.nonce == 0 ? SLP_LEAST_FRAME : slp_small_frame(s);

	s->frame_limit = (uint32_t)slp_max(slp_min(s->frame_limit, bytes), least);
}

const struct slp_counters *slp_counters_of(const struct slp_session *s)
{
	return &s->counters;
}

void slp_view_of(const struct slp_session *s, struct slp_view *out)
{
	out->srtt_ns = s->srtt;
	out->rttvar_ns = s->rttvar;
	out->min_rtt_ns = s->min_rtt;
	out->window_bytes = s->pushed ? slp_min(s->window, s->push_window) : s->window;
	out->in_flight_bytes = s->in_flight;
	out->reorder = (uint32_t)s->reorder;
	out->mark_share_1024 = s->mark_share;
}
