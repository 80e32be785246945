// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Transfers: bytes that go from one end's memory to a place in the other's. A pull is asked
 * for by the end that bytes come to, a push by the end that they come from. */
#include "slp_session.h"

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
	slp_need_work(s);
	pull->bits = s->work->pull_bits[slot];
	memset(pull->bits, 0, sizeof(s->work->pull_bits[slot]));
	slp_sink_begin(s, pull);
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

	slp_sink_end(s, pull);
	slp_owed_give_back(s, back);
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
void slp_sink_placed(struct slp_session *s, struct slp_sink *sink, uint32_t number, uint64_t placed,
		     bool marked)
{
	if (!(number & SLP_TRANSFER_PUSH)) {
		if (sink->placed == sink->total) {
			/* What was granted is here: slp_end_pull() has nothing more to give back. */
			slp_owed_brought(s, placed, marked);
			slp_end_pull(s, sink, SLP_OK, true);
		} else {
			slp_owed_brought(s, placed, marked);
			if (!s->pulls_short)
				slp_grant_more(s, number & 0xffff);
		}
		return;
	}
	if (sink->placed < sink->total)
		return;
	slp_sink_end(s, sink);
	slp_owe_done(s, number, SLP_OK);
	if (s->config.ops->written && s->state == SLP_UP) {
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
			slp_settle(s);
			return true;
		}
		if (push->used && push->cookie == cookie) {
			slp_end_push(s, i, SLP_CANCELLED, false);
			if (push->told)
				slp_owe_done(s, slp_transfer_number(i, push->generation, true), SLP_CANCELLED);
			slp_settle(s);
			return true;
		}
	}
	return false;
}

/* ---- transfers of the peer's */

void slp_stop_serving(struct slp_session *s, uint32_t index)
{
	struct slp_source *source = &s->serving[index];

	slp_source_end(s, (uint16_t)index);
	slp_forget_transfer(s, (uint16_t)index, source->generation);
}

/* ---- the end */

/* The session is over. */
void slp_transfers_end(struct slp_session *s, enum slp_status why)
{
	uint32_t i;

	for (i = 0; i < SLP_HANDLES; ++i)
		s->handles[i].open = false;
	for (i = 0; i < SLP_TRANSFERS; ++i) {
		if (s->serving[i].used)
			slp_stop_serving(s, i);
		slp_sink_end(s, &s->coming[i]);
		if (s->pulls[i].used)
			slp_end_pull(s, &s->pulls[i], why, true);
		if (s->pushes[i].used)
			slp_end_push(s, i, why, true);
	}
	s->owed_count = 0;
	slp_node_forget(s);
}

void slp_settle(struct slp_session *s)
{
	if (s->ending) {
		s->ending = false;
		slp_transfers_end(s, s->why);
		if (s->config.ops->state)
			s->config.ops->state(s->config.user, SLP_DOWN, s->why);
	}
	slp_rest(s);
}
