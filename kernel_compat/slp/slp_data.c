// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* DATA: bytes of transfers arriving, and how much of one may leave. */
#include "slp_session.h"

static bool test_bit(const uint64_t *bits, uint64_t unit)
{
	return bits[unit % SLP_TRANSFER_UNITS / 64] >> (unit % 64) & 1;
}

static void set_bit(uint64_t *bits, uint64_t unit)
{
	bits[unit % SLP_TRANSFER_UNITS / 64] |= (uint64_t)1 << unit % 64;
}

/* Moves the floor over what is set, which is cleared for the units a window further on. */
static void advance(struct slp_sink *sink)
{
	while (test_bit(sink->bits, sink->floor)) {
		sink->bits[sink->floor % SLP_TRANSFER_UNITS / 64] &= ~((uint64_t)1 << sink->floor % 64);
		++sink->floor;
		--sink->beyond;
	}
}

static uint32_t bytes_of_unit(const struct slp_session *s, uint64_t total, uint64_t unit)
{
	return (uint32_t)slp_min(slp_unit_bytes(s), total - unit * slp_unit_bytes(s));
}

/* ---- arriving */

/* Units of the frame that are new go to their place, runs of them at once. */
static uint64_t place_new(struct slp_session *s, struct slp_sink *sink, const struct slp_frame *frame, uint64_t unit,
			  uint32_t bytes)
{
	uint32_t at = SLP_BASE_BYTES + SLP_DATA_BYTES, run = 0;
	uint64_t placed = 0, from = unit;

	/* In order, and nothing is here beyond: as nearly all are. */
	if (unit == sink->floor && sink->beyond == 0) {
		s->config.ops->place(s->config.user, sink->cookie, sink->base + unit * slp_unit_bytes(s), frame, at, bytes);
		sink->floor += slp_units_in(s, bytes + slp_unit_bytes(s) - 1);
		return bytes;
	}
	while (bytes > 0) {
		uint32_t step = bytes_of_unit(s, sink->total, unit);
		bool fresh = unit >= sink->floor && !test_bit(sink->bits, unit);

		if (fresh) {
			if (run == 0)
				from = unit;
			run += step;
			set_bit(sink->bits, unit);
			++sink->beyond;
		}
		at += step;
		bytes -= step;
		++unit;
		if (run > 0 && (!fresh || bytes == 0)) {
			s->config.ops->place(s->config.user, sink->cookie, sink->base + from * slp_unit_bytes(s), frame,
					     at - run - (fresh ? 0 : step), run);
			placed += run;
			run = 0;
		}
	}
	advance(sink);
	return placed;
}

enum slp_drop slp_data_arrive(struct slp_session *s, const struct slp_frame *frame, const struct slp_base *base)
{
	const uint8_t *extension = frame->data + SLP_BASE_BYTES;
	uint64_t offset = slp_load64(extension), unit = slp_units_in(s, offset);
	uint32_t number = slp_load32(extension + 8), index = number & 0xffff & ~SLP_TRANSFER_PUSH;
	uint16_t generation = (uint16_t)(number >> 16);
	uint32_t bytes = base->payload_bytes;
	bool push = number & SLP_TRANSFER_PUSH;
	struct slp_sink *sink;
	uint64_t placed;

	if (slp_load32(extension + 12) != 0 || bytes == 0 || offset != slp_whole_units(s, offset) || index >= SLP_TRANSFERS)
		return SLP_DROP_CONTENT;
	sink = push ? &s->coming[index] : &s->pulls[index];
	if (!sink->used || sink->generation != generation) {
		/* A push that its record has not told yet is not acknowledged and comes again. */
		if (push && !(sink->told && (uint16_t)(sink->generation - generation) < 0x8000))
			return SLP_DROP_TRANSFER;
		++s->counters.late;
		return SLP_TAKEN;
	}
	if (offset >= sink->granted || bytes > sink->granted - offset ||
	    (bytes != slp_whole_units(s, bytes) && offset + bytes != sink->total))
		return SLP_DROP_RANGE;
	if (unit + slp_units_in(s, bytes - 1) >= sink->floor + SLP_TRANSFER_UNITS)
		return SLP_DROP_RANGE;
	placed = place_new(s, sink, frame, unit, bytes);
	if (placed == 0)
		++s->counters.late;
	sink->placed += placed;
	slp_sink_placed(s, sink, number, placed, frame->ce || (base->flags & SLP_FLAG_CE));
	return SLP_TAKEN;
}

/* ---- leaving */

/* Bytes that may be sent for the first time now. */
uint64_t slp_source_ready(struct slp_session *s, uint16_t index)
{
	struct slp_source *source = slp_source_of(s, index);
	uint64_t end = (source->floor + SLP_TRANSFER_UNITS) * slp_unit_bytes(s);

	if (!source->used || !source->told || source->next >= source->limit)
		return 0;
	if (source->next >= end) {
		source->floor = slp_units_in(s, slp_oldest_offset(s, index, source->generation, source->next));
		end = (source->floor + SLP_TRANSFER_UNITS) * slp_unit_bytes(s);
	}
	end = slp_min(end, source->limit);
	return end > source->next ? end - source->next : 0;
}
