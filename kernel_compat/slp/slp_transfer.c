// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Transfers: bytes that go from one end's memory to a place in the other's. A pull is asked
 * for by the end that bytes come to, a push by the end that they come from. */
#include "slp_session.h"

/* A pull asks for so much at a time: enough for any link here, and little enough that many
 * senders share the node's budget. */
#define SLP_PULL_AHEAD (SLP_TRANSFER_UNITS * SLP_UNIT_BYTES / 2)

static uint64_t units_of(uint64_t bytes)
{
	return (bytes + SLP_UNIT_BYTES - 1) / SLP_UNIT_BYTES;
}

/* ---- handles */

bool slp_open_handle(struct slp_session *s, uint64_t cookie, uint64_t length, uint32_t rights, uint32_t *out)
{
	uint32_t i;

	if (s->state == SLP_DOWN)
		return false;
	for (i = 0; i < SLP_HANDLES; ++i) {
		struct slp_handle *handle = &s->handles[i];

		if (handle->open)
			continue;
		++handle->generation;
		if (handle->generation == 0)
			++handle->generation;
		handle->open = true;
		handle->cookie = cookie;
		handle->length = length;
		handle->rights = (uint8_t)rights;
		*out = i | (uint32_t)handle->generation << 16;
		return true;
	}
	return false;
}

static struct slp_handle *find_handle(struct slp_session *s, uint32_t number)
{
	struct slp_handle *handle;

	if ((number & 0xffff) >= SLP_HANDLES)
		return 0;
	handle = &s->handles[number & 0xffff];
	return handle->open && handle->generation == number >> 16 ? handle : 0;
}

static enum slp_status check_range(struct slp_session *s, uint32_t number, uint64_t offset, uint64_t length,
				   uint32_t right, struct slp_handle **out)
{
	struct slp_handle *handle = find_handle(s, number);

	if (!handle)
		return SLP_BAD_HANDLE;
	if (!(handle->rights & right))
		return SLP_NO_RIGHT;
	if (length == 0 || offset > handle->length || length > handle->length - offset)
		return SLP_BAD_RANGE;
	*out = handle;
	return SLP_OK;
}

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
static void owe_done(struct slp_session *s, uint32_t transfer, enum slp_status status)
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

static uint32_t number_of(uint32_t index, uint16_t generation, bool push)
{
	return index | (push ? SLP_TRANSFER_PUSH : 0) | (uint32_t)generation << 16;
}

/* ---- the pull budget of a node */

void slp_node_init(struct slp_node *node, uint64_t pull_budget)
{
	memset(node, 0, sizeof(*node));
	node->pull_budget = pull_budget;
}

static void wait_for_budget(struct slp_session *s)
{
	struct slp_node *node = s->config.node;

	if (s->hungry)
		return;
	s->hungry = true;
	s->hungry_next = 0;
	if (node->hungry_last)
		node->hungry_last->hungry_next = s;
	else
		node->hungry_first = s;
	node->hungry_last = s;
}

void slp_node_forget(struct slp_session *s)
{
	struct slp_node *node = s->config.node;
	struct slp_session *at = node->hungry_first, *before = 0;

	if (!s->hungry)
		return;
	while (at != s) {
		before = at;
		at = at->hungry_next;
	}
	if (before)
		before->hungry_next = s->hungry_next;
	else
		node->hungry_first = s->hungry_next;
	if (node->hungry_last == s)
		node->hungry_last = before;
	s->hungry = false;
}

static void give_back_budget(struct slp_session *s, uint64_t bytes)
{
	struct slp_node *node = s->config.node;
	struct slp_session *next = node->hungry_first;

	node->pulling -= bytes;
	if (bytes == 0 || !next || node->pulling >= node->pull_budget)
		return;
	slp_node_forget(next);
	slp_transfers_work(next);
	if (next != s && next->config.ops->wake)
		next->config.ops->wake(next->config.user);
}

/* ---- pulls of ours */

/* Asks for more of a pull. False: no room for the record, or no budget. */
static bool grant_more(struct slp_session *s, uint32_t index)
{
	struct slp_sink *pull = &s->pulls[index];
	struct slp_node *node = s->config.node;
	uint64_t wanted = slp_min(pull->total, pull->floor * SLP_UNIT_BYTES + SLP_PULL_AHEAD);
	uint64_t step, limit;
	uint32_t number = number_of(index, pull->generation, false);

	if (pull->told && (wanted <= pull->granted ||
			   (wanted < pull->total && wanted - pull->granted < SLP_PULL_AHEAD / 4)))
		return true;
	if (node->pulling >= node->pull_budget) {
		wait_for_budget(s);
		return false;
	}
	/* In whole units, and never nothing: the budget may be passed by less than a unit. */
	step = slp_min(wanted - pull->granted, node->pull_budget - node->pulling);
	step = units_of(step) * SLP_UNIT_BYTES;
	limit = slp_min(pull->granted + step, pull->total);
	if (pull->told ? !write_grant(s, number, limit)
		       : !write_transfer(s, SLP_RECORD_PULL, number, pull->handle, pull->from, pull->total, limit))
		return false;
	node->pulling += limit - pull->granted;
	pull->granted = limit;
	pull->told = true;
	if (limit < wanted)
		wait_for_budget(s);
	return true;
}

enum slp_status slp_pull(struct slp_session *s, uint32_t handle, uint64_t offset, uint64_t length, uint64_t cookie)
{
	struct slp_sink *pull;
	uint16_t generation;
	uint32_t i;

	if (s->state == SLP_DOWN)
		return s->why;
	if (length == 0 || offset > UINT64_MAX - length)
		return SLP_BAD_RANGE;
	for (i = 0; i < SLP_TRANSFERS && s->pulls[i].used; ++i)
		;
	if (i == SLP_TRANSFERS)
		return SLP_BUSY;
	pull = &s->pulls[i];
	generation = (uint16_t)(pull->generation + 1);
	memset(pull, 0, sizeof(*pull));
	pull->used = true;
	pull->generation = generation;
	pull->cookie = cookie;
	pull->total = length;
	pull->handle = handle;
	pull->from = offset;
	slp_transfers_work(s);
	return SLP_OK;
}

static void end_pull(struct slp_session *s, struct slp_sink *pull, enum slp_status status, bool tell)
{
	uint64_t back = pull->granted - pull->placed;

	pull->used = false;
	give_back_budget(s, back);
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
	uint32_t i;

	if (s->state == SLP_DOWN)
		return s->why;
	if (length == 0 || offset > UINT64_MAX - length)
		return SLP_BAD_RANGE;
	for (i = 0; i < SLP_TRANSFERS && s->pushes[i].used; ++i)
		;
	if (i == SLP_TRANSFERS)
		return SLP_BUSY;
	push = &s->pushes[i];
	generation = (uint16_t)(push->generation + 1);
	memset(push, 0, sizeof(*push));
	push->used = true;
	++s->sources;
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

static void end_push(struct slp_session *s, uint32_t index, enum slp_status status, bool tell)
{
	struct slp_source *push = &s->pushes[index];

	push->used = false;
	--s->sources;
	slp_forget_transfer(s, (uint16_t)(index | SLP_TRANSFER_PUSH), push->generation);
	if (tell && s->config.ops->ended) {
		++s->depth;
		s->config.ops->ended(s->config.user, push->cookie, status);
		--s->depth;
	}
}

static void stop_serving(struct slp_session *s, uint32_t index)
{
	struct slp_source *source = &s->serving[index];

	source->used = false;
	--s->sources;
	slp_forget_transfer(s, (uint16_t)index, source->generation);
}

/* More of a sink is in place. */
void slp_sink_placed(struct slp_session *s, struct slp_sink *sink, uint32_t number, uint64_t placed)
{
	if (!(number & SLP_TRANSFER_PUSH)) {
		if (sink->placed == sink->total) {
			/* What was granted is here: end_pull() has nothing more to give back. */
			give_back_budget(s, placed);
			end_pull(s, sink, SLP_OK, true);
		} else {
			give_back_budget(s, placed);
			grant_more(s, number & 0xffff);
		}
		return;
	}
	if (sink->placed < sink->total)
		return;
	sink->used = false;
	owe_done(s, number, SLP_OK);
	if (s->config.ops->written) {
		struct slp_handle *handle = find_handle(s, sink->handle);

		++s->depth;
		if (handle)
			s->config.ops->written(s->config.user, handle->cookie, sink->noticed, sink->notice);
		--s->depth;
	}
}

/* When it returns, no frame of the peer's touches the memory and none of it is sent. */
void slp_close_handle(struct slp_session *s, uint32_t number)
{
	struct slp_handle *handle = find_handle(s, number);
	uint32_t i;

	if (!handle)
		return;
	handle->open = false;
	for (i = 0; i < SLP_TRANSFERS; ++i) {
		if (s->serving[i].used && s->serving[i].handle == number) {
			owe_done(s, number_of(i, s->serving[i].generation, false), SLP_BAD_HANDLE);
			stop_serving(s, i);
		}
		if (s->coming[i].used && s->coming[i].handle == number) {
			owe_done(s, number_of(i, s->coming[i].generation, true), SLP_BAD_HANDLE);
			s->coming[i].used = false;
		}
	}
}

bool slp_cancel(struct slp_session *s, uint64_t cookie)
{
	uint32_t i;

	for (i = 0; i < SLP_TRANSFERS; ++i) {
		struct slp_sink *pull = &s->pulls[i];
		struct slp_source *push = &s->pushes[i];

		if (pull->used && pull->cookie == cookie) {
			if (pull->told)
				owe_done(s, number_of(i, pull->generation, false), SLP_CANCELLED);
			end_pull(s, pull, SLP_CANCELLED, false);
			return true;
		}
		if (push->used && push->cookie == cookie) {
			if (push->told)
				owe_done(s, number_of(i, push->generation, true), SLP_CANCELLED);
			end_push(s, i, SLP_CANCELLED, false);
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
			stop_serving(s, i);
		s->coming[i].used = false;
		if (s->pulls[i].used)
			end_pull(s, &s->pulls[i], why, true);
		if (s->pushes[i].used)
			end_push(s, i, why, true);
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
			push->told = write_transfer(s, SLP_RECORD_PUSH, number_of(i, push->generation, true),
						    push->handle, push->to, push->total,
						    push->notice | (uint64_t)push->noticed << 32);
	}
	for (i = 0; i < SLP_TRANSFERS; ++i)
		if (s->pulls[i].used && !grant_more(s, i))
			break;
}

/* ---- what the peer tells */

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
		stop_serving(s, index); /* the peer has it all, or has given it up */
	status = check_range(s, slp_load32(p + 4), offset, length, SLP_READ, &handle);
	if (status != SLP_OK) {
		owe_done(s, number, status);
		return;
	}
	memset(source, 0, sizeof(*source));
	source->used = source->told = true;
	++s->sources;
	source->generation = (uint16_t)(number >> 16);
	source->handle = slp_load32(p + 4);
	source->cookie = handle->cookie;
	source->base = offset;
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
	memset(coming, 0, sizeof(*coming));
	coming->generation = (uint16_t)(number >> 16);
	coming->told = true;
	if (status != SLP_OK) {
		owe_done(s, number, status);
		return;
	}
	coming->used = true;
	coming->handle = slp_load32(p + 4);
	coming->cookie = handle->cookie;
	coming->base = offset;
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
			s->coming[index].used = false;
	} else if (status == SLP_CANCELLED) {
		if (s->serving[index].used && s->serving[index].generation == generation)
			stop_serving(s, index);
	} else if (push) {
		if (s->pushes[index].used && s->pushes[index].generation == generation)
			end_push(s, index, (enum slp_status)status, true);
	} else {
		if (s->pulls[index].used && s->pulls[index].generation == generation)
			end_pull(s, &s->pulls[index], (enum slp_status)status, true);
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
