// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* What the peer asks for by its control records, and the end of memory that it may reach. */
#include "slp_session.h"

static enum slp_status check_range(struct slp_session *s, uint32_t number, uint64_t offset, uint64_t length,
				   uint32_t right, struct slp_handle **out)
{
	struct slp_handle *handle = slp_find_handle(s, number);

	if (!handle)
		return SLP_BAD_HANDLE;
	if (!(handle->rights & right))
		return SLP_NO_RIGHT;
	if (length == 0 || offset < handle->base || offset - handle->base > handle->length ||
	    length > handle->length - (offset - handle->base))
		return SLP_BAD_RANGE;
	*out = handle;
	return SLP_OK;
}

static void refuse(struct slp_session *s, uint32_t transfer, enum slp_status status)
{
	++s->counters.refused;
	slp_owe_done(s, transfer, status);
}

/* When it returns, no frame of the peer's touches the memory and none of it is sent. */
void slp_close_handle(struct slp_session *s, uint32_t number)
{
	struct slp_handle *handle = slp_find_handle(s, number);
	uint32_t i;

	if (!handle)
		return;
	handle->open = false;
	for (i = 0; i < SLP_TRANSFERS; ++i) {
		if (s->serving[i].used && s->serving[i].handle == number) {
			refuse(s, slp_transfer_number(i, s->serving[i].generation, false), SLP_BAD_HANDLE);
			slp_stop_serving(s, i);
		}
		if (s->coming[i].used && s->coming[i].handle == number) {
			refuse(s, slp_transfer_number(i, s->coming[i].generation, true), SLP_BAD_HANDLE);
			slp_sink_end(s, &s->coming[i]);
		}
	}
	slp_settle(s);
}

/* ---- its records */

static void on_pull(struct slp_session *s, const uint8_t *p)
{
	uint32_t number = slp_load32(p), index = number & 0xffff;
	uint64_t offset = slp_load64(p + 8), length = slp_load64(p + 16), limit = slp_load64(p + 24);
	struct slp_handle *handle = 0;
	struct slp_source *source;
	enum slp_status status;

	if (index >= SLP_TRANSFERS || limit > length) {
		slp_fail(s, SLP_BROKEN);
		return;
	}
	source = &s->serving[index];
	if (source->used)
		slp_stop_serving(s, index); /* the peer has it all, or has given it up */
	status = check_range(s, slp_load32(p + 4), offset, length, SLP_READ, &handle);
	if (status != SLP_OK) {
		refuse(s, number, status);
		return;
	}
	memset(source, 0, sizeof(*source));
	slp_source_begin(s, (uint16_t)index);
	source->told = true;
	source->generation = (uint16_t)(number >> 16);
	source->handle = slp_load32(p + 4);
	source->cookie = handle->cookie;
	source->base = offset - handle->base;
	source->total = length;
	source->limit = limit;
}

static void on_grant(struct slp_session *s, const uint8_t *p)
{
	uint32_t number = slp_load32(p), index = number & 0xffff;
	uint64_t limit = slp_load64(p + 8);
	struct slp_source *source;

	if (index >= SLP_TRANSFERS) {
		slp_fail(s, SLP_BROKEN);
		return;
	}
	source = &s->serving[index];
	if (!source->used || source->generation != number >> 16)
		return; /* refused or stopped here, and the peer is being told */
	if (limit > source->total || limit < source->limit)
		slp_fail(s, SLP_BROKEN);
	else
		source->limit = limit;
}

static void on_push(struct slp_session *s, const uint8_t *p)
{
	uint32_t number = slp_load32(p), index = number & 0xffff & ~SLP_TRANSFER_PUSH;
	uint64_t offset = slp_load64(p + 8), length = slp_load64(p + 16), last = slp_load64(p + 24);
	struct slp_handle *handle = 0;
	struct slp_sink *coming;
	enum slp_status status;

	if (!(number & SLP_TRANSFER_PUSH) || index >= SLP_TRANSFERS || last >> 33) {
		slp_fail(s, SLP_BROKEN);
		return;
	}
	coming = &s->coming[index];
	status = check_range(s, slp_load32(p + 4), offset, length, SLP_WRITE, &handle);
	slp_sink_end(s, coming);
	memset(coming, 0, sizeof(*coming));
	coming->generation = (uint16_t)(number >> 16);
	coming->told = true;
	if (status != SLP_OK) {
		refuse(s, number, status);
		return;
	}
	coming->bits = s->work->coming_bits[index];
	memset(coming->bits, 0, sizeof(s->work->coming_bits[index]));
	slp_sink_begin(s, coming);
	coming->handle = slp_load32(p + 4);
	coming->cookie = handle->cookie;
	coming->base = offset - handle->base;
	coming->total = coming->granted = length;
	coming->notice = (uint32_t)last;
	coming->noticed = last >> 32;
}

/* SLP_CANCELLED is said only by who began a transfer, every other status only by the other. */
static void on_done(struct slp_session *s, const uint8_t *p)
{
	uint32_t number = slp_load32(p), status = slp_load32(p + 4);
	uint32_t index = number & 0xffff & ~SLP_TRANSFER_PUSH;
	uint16_t generation = (uint16_t)(number >> 16);
	bool push = number & SLP_TRANSFER_PUSH;

	if (index >= SLP_TRANSFERS || status > SLP_LOCAL || (!push && status == SLP_OK)) {
		slp_fail(s, SLP_BROKEN);
	} else if (status == SLP_CANCELLED && push) {
		if (s->coming[index].used && s->coming[index].generation == generation)
			slp_sink_end(s, &s->coming[index]);
	} else if (status == SLP_CANCELLED) {
		if (s->serving[index].used && s->serving[index].generation == generation)
			slp_stop_serving(s, index);
	} else if (push) {
		if (s->pushes[index].used && s->pushes[index].generation == generation)
			slp_end_push(s, index, (enum slp_status)status, true);
	} else {
		if (s->pulls[index].used && s->pulls[index].generation == generation)
			slp_end_pull(s, &s->pulls[index], (enum slp_status)status, true);
	}
}

void slp_control_record(struct slp_session *s, uint8_t kind, const uint8_t *data, uint32_t bytes)
{
	if (kind == SLP_RECORD_PULL && bytes == SLP_PULL_BYTES)
		on_pull(s, data);
	else if (kind == SLP_RECORD_GRANT && bytes == SLP_GRANT_BYTES)
		on_grant(s, data);
	else if (kind == SLP_RECORD_PUSH && bytes == SLP_PULL_BYTES)
		on_push(s, data);
	else if (kind == SLP_RECORD_DONE && bytes == SLP_DONE_BYTES)
		on_done(s, data);
	else
		slp_fail(s, SLP_BROKEN);
}
