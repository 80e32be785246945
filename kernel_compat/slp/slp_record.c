// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Records that have come whole, to whom they are for. */
#include "slp_session.h"

/* One record to whom it is for. False: no room there. */
static bool hand_over(struct slp_session *s, uint32_t stream, uint8_t kind, const uint8_t *data, uint32_t bytes)
{
	struct slp_rts rts;
	bool taken = true;

	if (stream == SLP_CONTROL) {
		slp_control_record(s, kind, data, bytes);
		return true;
	}
	if (kind == SLP_RECORD_RTS) {
		if (bytes < SLP_RTS_BYTES) {
			slp_fail(s, SLP_BROKEN);
			return true;
		}
		rts.handle = slp_load32(data);
		rts.length = slp_load64(data + 8);
		data += SLP_RTS_BYTES;
		bytes -= SLP_RTS_BYTES;
	} else if (kind != SLP_RECORD_MESSAGE) {
		slp_fail(s, SLP_BROKEN);
		return true;
	}
	++s->depth;
	if (s->config.ops->message)
		taken = s->config.ops->message(s->config.user, kind == SLP_RECORD_RTS ? &rts : 0, data, bytes);
	--s->depth;
	return taken;
}

static uint32_t largest_record(uint32_t stream)
{
	return stream == SLP_MESSAGES ? SLP_MAX_MESSAGE + SLP_RTS_BYTES : SLP_PULL_BYTES;
}

/* Whole records that are here. */
void slp_records_deliver(struct slp_session *s, uint32_t stream)
{
	struct slp_stream_rx *rx = &s->rx[stream];

	while (s->state == SLP_UP && !rx->stalled && rx->arrived - rx->floor >= SLP_RECORD_BYTES) {
		uint8_t prefix[SLP_RECORD_BYTES];
		uint32_t bytes, place;
		const uint8_t *data;

		slp_stream_peek(rx, rx->floor, prefix, SLP_RECORD_BYTES);
		bytes = slp_load32(prefix) & 0xffffff;
		if (bytes > largest_record(stream)) {
			slp_fail(s, SLP_BROKEN);
			return;
		}
		if (rx->arrived - rx->floor < SLP_RECORD_BYTES + bytes)
			return;
		place = (uint32_t)((rx->floor + SLP_RECORD_BYTES) % rx->capacity);
		data = rx->ring + place;
		if (place + bytes > rx->capacity) {
			slp_stream_peek(rx, rx->floor + SLP_RECORD_BYTES, s->work->message, bytes);
			data = s->work->message;
		}
		if (!hand_over(s, stream, prefix[3], data, bytes)) {
			rx->stalled = true;
			++s->counters.stalls_of_credit;
			return;
		}
		rx->floor += SLP_RECORD_BYTES + bytes;
	}
}

enum slp_drop slp_records_arrive(struct slp_session *s, const struct slp_frame *frame, const struct slp_base *base)
{
	uint32_t stream = frame->data[SLP_BASE_BYTES + 4];
	enum slp_drop drop = slp_stream_arrive(s, frame, base);

	if (drop == SLP_TAKEN)
		slp_records_deliver(s, stream);
	return drop;
}
