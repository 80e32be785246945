// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Transfers: bytes that go from one end's memory to a place in the other's. A pull is asked
 * for by the end that bytes come to, a push by the end that they come from. */
#include "slp_session.h"

/* ---- what is told by control records */

static bool write_transfer(struct slp_session *s, uint8_t kind, uint32_t transfer, uint32_t handle, uint64_t offset,
			   uint64_t length, uint64_t last)
{
	uint8_t record[SLP_PULL_BYTES];
	const uint8_t *piece = record;
	uint32_t bytes = SLP_PULL_BYTES;

	slp_store32(record, transfer);
	slp_store32(record + 4, handle);
	slp_store64(record + 8, offset);
	slp_store64(record + 16, length);
	slp_store64(record + 24, last);
	return slp_stream_write(s, SLP_CONTROL, kind, &piece, &bytes, 1);
}

static bool write_grant(struct slp_session *s, uint32_t transfer, uint64_t limit)
{
	uint8_t record[SLP_GRANT_BYTES] = {0};
	const uint8_t *piece = record;
	uint32_t bytes = SLP_GRANT_BYTES;

	slp_store32(record, transfer);
	slp_store64(record + 8, limit);
	return slp_stream_write(s, SLP_CONTROL, SLP_RECORD_GRANT, &piece, &bytes, 1);
}

static bool write_done(struct slp_session *s, uint32_t transfer, enum slp_status status)
{
	uint8_t record[SLP_DONE_BYTES];
	const uint8_t *piece = record;
	uint32_t bytes = SLP_DONE_BYTES;

	slp_store32(record, transfer);
	slp_store32(record + 4, status);
	return slp_stream_write(s, SLP_CONTROL, SLP_RECORD_DONE, &piece, &bytes, 1);
}

/* A DONE that finds no room waits. Each transfer that the peer may name owes at most one at
 * a time, and a number is used again only after that: the list cannot overflow honestly. */
void slp_owe_done(struct slp_session *s, uint32_t transfer, enum slp_status status)
{
	if (s->owed_count == 0 && write_done(s, transfer, status))
		return;
	if (s->owed_count == sizeof(s->owed) / sizeof(s->owed[0])) {
		slp_fail(s, SLP_BROKEN);
		return;
	}
	s->owed[s->owed_count].transfer = transfer;
	s->owed[s->owed_count].status = (uint8_t)status;
	++s->owed_count;
}

uint32_t slp_transfer_number(uint32_t index, uint16_t generation, bool push)
{
	return index | (push ? SLP_TRANSFER_PUSH : 0) | (uint32_t)generation << 16;
}

/* A slot for a transfer of ours; `used` is that of the first, the others follow by `stride`. */
static enum slp_status find_slot(const struct slp_session *s, uint64_t offset, uint64_t length, const bool *used,
				 size_t stride, uint32_t *out)
{
	const uint8_t *at = (const uint8_t *)used;
	uint32_t i;

	if (s->state == SLP_DOWN)
		return s->why;
	if (length == 0 || offset > UINT64_MAX - length)
		return SLP_BAD_RANGE;
	for (i = 0; i < SLP_TRANSFERS && *(const bool *)(at + i * stride); ++i)
		;
	*out = i;
	return i < SLP_TRANSFERS ? SLP_OK : SLP_BUSY;
}

/* ---- pulls of ours */

/* Asks for more of a pull. False: no room for the record, or no budget. */
static bool grant_more(struct slp_session *s, uint32_t index)
{
	struct slp_sink *pull = &s->pulls[index];
	uint64_t ahead = slp_node_ahead(s), room = slp_node_room(s);
	uint64_t wanted = slp_min(pull->total, pull->floor * slp_unit_bytes(s) + ahead);
	uint64_t step, limit;
	uint32_t number = slp_transfer_number(index, pull->generation, false);

	if (pull->told && (wanted <= pull->granted ||
			   (wanted < pull->total && wanted - pull->granted < ahead / 4)))
		return true;
	if (room == 0) {
		slp_node_wait(s);
		return false;
	}
	/* In whole units, and never nothing: the budget may be passed by less than a unit. */
	step = slp_min(wanted - pull->granted, room);
	step = slp_whole_units(s, step + slp_unit_bytes(s) - 1);
	limit = slp_min(pull->granted + step, pull->total);
	if (pull->told ? !write_grant(s, number, limit)
		       : !write_transfer(s, SLP_RECORD_PULL, number, pull->handle, pull->from, pull->total, limit))
		return false;
	slp_node_asked(s, limit - pull->granted);
	pull->granted = limit;
	pull->told = true;
	if (limit < wanted)
		slp_node_wait(s);
	return true;
}

enum slp_status slp_pull(struct slp_session *s, uint32_t handle, uint64_t offset, uint64_t length, uint64_t cookie)
{
	struct slp_sink *pull;
	uint16_t generation;
	uint32_t slot = 0;
	enum slp_status status = find_slot(s, offset, length, &s->pulls[0].used, sizeof(s->pulls[0]), &slot);

	if (status != SLP_OK)
		return status;
	pull = &s->pulls[slot];
	generation = (uint16_t)(pull->generation + 1);
	memset(pull, 0, sizeof(*pull));
	pull->bits = s->pull_bits[slot];
	memset(pull->bits, 0, sizeof(s->pull_bits[slot]));
	pull->used = true;
	pull->generation = generation;
	pull->cookie = cookie;
	pull->total = length;
	pull->handle = handle;
	pull->from = offset;
	slp_transfers_work(s);
	return SLP_OK;
}

void slp_end_pull(struct slp_session *s, struct slp_sink *pull, enum slp_status status, bool tell)
{
	uint64_t back = pull->granted - pull->placed;

	pull->used = false;
	slp_node_give_back(s, back);
	if (tell && s->config.ops->ended) {
		++s->depth;
		s->config.ops->ended(s->config.user, pull->cookie, status);
		--s->depth;
	}
}

/* ---- pushes of ours */

enum slp_status slp_push(struct slp_session *s, uint32_t handle, uint64_t offset, uint64_t length, uint64_t cookie,
			 const uint32_t *notice)
{
	struct slp_source *push;
	uint16_t generation;
	uint32_t slot = 0;
	enum slp_status status = find_slot(s, offset, length, &s->pushes[0].used, sizeof(s->pushes[0]), &slot);

	if (status != SLP_OK)
		return status;
	push = &s->pushes[slot];
	generation = (uint16_t)(push->generation + 1);
	memset(push, 0, sizeof(*push));
	slp_source_begin(s, (uint16_t)(slot | SLP_TRANSFER_PUSH));
	push->generation = generation;
	push->cookie = cookie;
	push->total = push->limit = length;
	push->handle = handle;
	push->to = offset;
	push->noticed = notice != 0;
	push->notice = notice ? *notice : 0;
	slp_transfers_work(s);
	return SLP_OK;
}

void slp_end_push(struct slp_session *s, uint32_t index, enum slp_status status, bool tell)
{
	struct slp_source *push = &s->pushes[index];
	uint16_t source = (uint16_t)(index | SLP_TRANSFER_PUSH);

	slp_source_end(s, source);
	slp_forget_transfer(s, source, push->generation);
	if (tell && s->config.ops->ended) {
		++s->depth;
		s->config.ops->ended(s->config.user, push->cookie, status);
		--s->depth;
	}
}

/* More of a sink is in place. */
void slp_sink_placed(struct slp_session *s, struct slp_sink *sink, uint32_t number, uint64_t placed)
{
	if (!(number & SLP_TRANSFER_PUSH)) {
		if (sink->placed == sink->total) {
			/* What was granted is here: slp_end_pull() has nothing more to give back. */
			slp_node_brought(s, placed);
			slp_end_pull(s, sink, SLP_OK, true);
		} else {
			slp_node_brought(s, placed);
			if (!s->pulls_short)
				grant_more(s, number & 0xffff);
		}
		return;
	}
	if (sink->placed < sink->total)
		return;
	sink->used = false;
	slp_owe_done(s, number, SLP_OK);
	if (s->config.ops->written) {
		struct slp_handle *handle = slp_find_handle(s, sink->handle);

		++s->depth;
		if (handle)
			s->config.ops->written(s->config.user, handle->cookie, sink->noticed, sink->notice);
		--s->depth;
	}
}

bool slp_cancel(struct slp_session *s, uint64_t cookie)
{
	uint32_t i;

	for (i = 0; i < SLP_TRANSFERS; ++i) {
		struct slp_sink *pull = &s->pulls[i];
		struct slp_source *push = &s->pushes[i];

		if (pull->used && pull->cookie == cookie) {
			/* Ended first: if there is no room for DONE the session fails, and ends what is left. */
			slp_end_pull(s, pull, SLP_CANCELLED, false);
			if (pull->told)
				slp_owe_done(s, slp_transfer_number(i, pull->generation, false), SLP_CANCELLED);
			return true;
		}
		if (push->used && push->cookie == cookie) {
			slp_end_push(s, i, SLP_CANCELLED, false);
			if (push->told)
				slp_owe_done(s, slp_transfer_number(i, push->generation, true), SLP_CANCELLED);
			return true;
		}
	}
	return false;
}

/* The session is over. */
void slp_transfers_end(struct slp_session *s, enum slp_status why)
{
	uint32_t i;

	for (i = 0; i < SLP_HANDLES; ++i)
		s->handles[i].open = false;
	for (i = 0; i < SLP_TRANSFERS; ++i) {
		if (s->serving[i].used)
			slp_stop_serving(s, i);
		s->coming[i].used = false;
		if (s->pulls[i].used)
			slp_end_pull(s, &s->pulls[i], why, true);
		if (s->pushes[i].used)
			slp_end_push(s, i, why, true);
	}
	s->owed_count = 0;
	slp_node_forget(s);
}

/* Records that had no room, and requests that had no budget. */
void slp_transfers_work(struct slp_session *s)
{
	uint32_t i, done = 0;

	if (s->state != SLP_UP)
		return;
	while (done < s->owed_count && write_done(s, s->owed[done].transfer, (enum slp_status)s->owed[done].status))
		++done;
	if (done > 0) {
		for (i = done; i < s->owed_count; ++i)
			s->owed[i - done] = s->owed[i];
		s->owed_count -= done;
	}
	if (s->owed_count > 0)
		return;
	for (i = 0; i < SLP_TRANSFERS; ++i) {
		struct slp_source *push = &s->pushes[i];

		if (push->used && !push->told)
			push->told = write_transfer(s, SLP_RECORD_PUSH, slp_transfer_number(i, push->generation, true),
						    push->handle, push->to, push->total,
						    push->notice | (uint64_t)push->noticed << 32);
	}
	s->pulls_short = false;
	for (i = 0; i < SLP_TRANSFERS; ++i) {
		uint32_t index = (s->next_pull + i) % SLP_TRANSFERS;

		if (!s->pulls[index].used || grant_more(s, index))
			continue;
		s->next_pull = index; /* the first that goes without is the first next time */
		break;
	}
}
