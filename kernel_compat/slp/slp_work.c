// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The memory for what is under way: of the session itself, or lent as long as something is. Of many
 * sessions few have something under way. */
#include "slp_session.h"

size_t slp_state_bytes(void)
{
	return sizeof(struct slp_session);
}

size_t slp_work_bytes(void)
{
	return sizeof(struct slp_work);
}

size_t slp_session_bytes(void)
{
	return slp_state_bytes() + slp_work_bytes();
}

_Static_assert(sizeof(struct slp_session) % _Alignof(struct slp_work) == 0, "the work lies behind the session");

static void take(struct slp_session *s, struct slp_work *work)
{
	uint32_t i, at = 0;

	s->work = work;
	for (i = 0; i < SLP_STREAMS; at += s->tx[i].capacity, ++i) {
		s->tx[i].ring = work->tx_memory + at;
		s->rx[i].ring = work->rx_memory + at;
		s->tx[i].segments = work->segments[i];
		s->rx[i].later = work->later[i];
	}
}

void slp_work_init(struct slp_session *s)
{
	if (!s->config.ops->borrow)
		take(s, (struct slp_work *)(s + 1));
}

void slp_borrow(struct slp_session *s)
{
	take(s, s->config.ops->borrow(s->config.user));
}

/* Something is not yet acknowledged, or not yet taken. */
static bool streams_hold(const struct slp_session *s)
{
	uint32_t i;

	for (i = 0; i < SLP_STREAMS; ++i)
		if (s->tx[i].floor != s->tx[i].written || s->rx[i].floor != s->rx[i].arrived || s->rx[i].later_count > 0)
			return true;
	return false;
}

static bool under_way(const struct slp_session *s)
{
	return s->sent_first != s->sent_next || s->sinks > 0 || streams_hold(s);
}

void slp_rest(struct slp_session *s)
{
	struct slp_work *work = s->work;

	/* Within a call to the user he reads of it. */
	if (!work || !s->config.ops->give_back || s->depth > 0 || (s->state != SLP_DOWN && under_way(s)))
		return;
	s->work = 0;
	s->config.ops->give_back(s->config.user, work);
}
