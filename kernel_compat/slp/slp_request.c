// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* What the peer is told by control records: what we ask for, and how transfers ended. */
#include "slp_session.h"

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

/* Asks for more of a pull. False: no room for the record, or no budget. */
bool slp_grant_more(struct slp_session *s, uint32_t index)
{
	struct slp_sink *pull = &s->pulls[index];
	uint64_t ahead = slp_node_ahead(s), room = slp_node_room(s);
	/* What is here beyond a hole is not asked for any more. */
	uint64_t most = (pull->floor + SLP_TRANSFER_UNITS) * slp_unit_bytes(s);
	uint64_t wanted = slp_min(pull->total, slp_min(most, pull->placed + ahead));
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

		if (!s->pulls[index].used || slp_grant_more(s, index))
			continue;
		s->next_pull = index; /* the first that goes without is the first next time */
		break;
	}
}
