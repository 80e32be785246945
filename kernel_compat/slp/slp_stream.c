// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Streams of bytes for records: the user's messages, and the core's control. Bytes are numbered
 * from 0; a frame carries some from an offset on, as often as needed; each is used once. */
#include "slp_session.h"

static const uint32_t kCapacity[SLP_STREAMS] = {SLP_STREAM_BYTES, SLP_CONTROL_BYTES};

void slp_streams_init(struct slp_session *s)
{
	uint32_t i;

	for (i = 0; i < SLP_STREAMS; ++i)
		s->tx[i].capacity = s->rx[i].capacity = s->tx[i].limit = kCapacity[i];
}

static void copy_in(uint8_t *ring, uint32_t capacity, uint64_t at, const uint8_t *data, uint32_t bytes)
{
	uint32_t place = (uint32_t)(at % capacity);
	uint32_t first = (uint32_t)slp_min(bytes, capacity - place);

	memcpy(ring + place, data, first);
	memcpy(ring, data + first, bytes - first);
}

void slp_stream_peek(const struct slp_stream_rx *rx, uint64_t at, uint8_t *data, uint32_t bytes)
{
	uint32_t place = (uint32_t)(at % rx->capacity);
	uint32_t first = (uint32_t)slp_min(bytes, rx->capacity - place);

	memcpy(data, rx->ring + place, first);
	memcpy(data + first, rx->ring, bytes - first);
}

/* ---- sending */

uint32_t slp_stream_room(const struct slp_session *s, uint32_t stream)
{
	const struct slp_stream_tx *tx = &s->tx[stream];

	return tx->capacity - (uint32_t)(tx->written - tx->floor);
}

bool slp_stream_write(struct slp_session *s, uint32_t stream, uint8_t kind, const uint8_t *const *pieces,
		      const uint32_t *bytes, uint32_t count)
{
	struct slp_stream_tx *tx = &s->tx[stream];
	uint8_t prefix[SLP_RECORD_BYTES];
	uint32_t total = 0, i;

	for (i = 0; i < count; ++i)
		total += bytes[i];
	if (slp_stream_room(s, stream) < SLP_RECORD_BYTES + total)
		return false;
	slp_need_work(s);
	slp_store32(prefix, total | (uint32_t)kind << 24);
	copy_in(tx->ring, tx->capacity, tx->written, prefix, SLP_RECORD_BYTES);
	tx->written += SLP_RECORD_BYTES;
	for (i = 0; i < count; ++i) {
		if (bytes[i] > 0)
			copy_in(tx->ring, tx->capacity, tx->written, pieces[i], bytes[i]);
		tx->written += bytes[i];
	}
	return true;
}

bool slp_stream_has_new(const struct slp_session *s, uint32_t stream)
{
	const struct slp_stream_tx *tx = &s->tx[stream];
	uint64_t end = stream == SLP_MESSAGES ? slp_min(tx->written, tx->limit) : tx->written;

	return tx->sent < end && tx->next_segment - tx->first_segment < SLP_SEGMENTS;
}

/* What the peer may send, in KiB from the beginning: what was taken, and the whole buffer. */
uint16_t slp_stream_credit(const struct slp_session *s)
{
	const struct slp_stream_rx *rx = &s->rx[SLP_MESSAGES];

	return (uint16_t)((rx->floor + rx->capacity) / 1024);
}

void slp_stream_credited(struct slp_session *s, uint16_t kib)
{
	struct slp_stream_tx *tx = &s->tx[SLP_MESSAGES];
	uint16_t more = (uint16_t)(kib - (uint16_t)(tx->limit / 1024));

	/* An older frame's says less; only the difference forwards is new. Beyond what is sent
	 * and a whole buffer no honest peer goes. */
	if (more < 0x8000 && tx->limit / 1024 + more <= (tx->sent + tx->capacity) / 1024)
		tx->limit = (tx->limit / 1024 + more) * 1024;
}

/* ---- receiving */

static void remove_spans(struct slp_stream_rx *rx, uint32_t from, uint32_t to)
{
	uint32_t removed = to - from;

	for (; to < rx->later_count; ++to)
		rx->later[to - removed] = rx->later[to];
	rx->later_count -= removed;
}

/* Remembers that [from, to) is here. False: that would leave too many holes. */
static bool add_span(struct slp_stream_rx *rx, uint64_t from, uint64_t to)
{
	struct slp_span *spans = rx->later;
	uint32_t first = 0, last;

	while (first < rx->later_count && spans[first].to < from)
		++first;
	last = first;
	while (last < rx->later_count && spans[last].from <= to) {
		from = slp_min(from, spans[last].from);
		to = slp_max(to, spans[last].to);
		++last;
	}
	if (last == first) {
		if (rx->later_count == SLP_GAPS)
			return false;
		for (last = rx->later_count++; last > first; --last)
			spans[last] = spans[last - 1];
	} else {
		remove_spans(rx, first + 1, last);
	}
	spans[first].from = from;
	spans[first].to = to;
	return true;
}

static void join_spans(struct slp_stream_rx *rx)
{
	while (rx->later_count > 0 && rx->later[0].from <= rx->arrived) {
		rx->arrived = slp_max(rx->arrived, rx->later[0].to);
		remove_spans(rx, 0, 1);
	}
}

enum slp_drop slp_stream_arrive(struct slp_session *s, const struct slp_frame *frame, const struct slp_base *base)
{
	const uint8_t *extension = frame->data + SLP_BASE_BYTES;
	const uint8_t *payload = extension + SLP_EAGER_BYTES;
	uint32_t stream = extension[4];
	struct slp_stream_rx *rx;
	uint64_t from, to;

	if (stream >= SLP_STREAMS || extension[5] || extension[6] || extension[7] || base->payload_bytes == 0)
		return SLP_DROP_CONTENT;
	if (frame->present < SLP_BASE_BYTES + SLP_EAGER_BYTES + base->payload_bytes)
		return SLP_DROP_CONTENT;
	rx = &s->rx[stream];
	from = slp_expand_number(rx->arrived, slp_load32(extension));
	to = from + base->payload_bytes;
	if (to > rx->floor + rx->capacity)
		return SLP_DROP_ROOM;
	if (to <= rx->arrived) {
		++s->counters.late;
		return SLP_TAKEN;
	}
	if (from < rx->arrived) {
		payload += rx->arrived - from;
		from = rx->arrived;
	}
	slp_need_work(s);
	if (from == rx->arrived)
		rx->arrived = to;
	else if (!add_span(rx, from, to))
		return SLP_DROP_ROOM;
	copy_in(rx->ring, rx->capacity, from, payload, (uint32_t)(to - from));
	join_spans(rx);
	return SLP_TAKEN;
}
