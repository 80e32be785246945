// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* What pulls have asked for comes, or does not: who does not bring it loses it to the others, and is
 * trusted with less until he brings it. */
#include "slp_session.h"

/* What may be owed after nothing came: enough to show that something does. */
#define SLP_LEAST_OWED (8 * (uint64_t)SLP_UNIT_BYTES)
/* Half of what is owed has to come in four times the delay after which an answer is missing; the
 * least is what a busy machine takes to run a process again, the most keeps who claims a long
 * round trip from holding the budget. */
#define SLP_LEAST_STALL (10 * (uint64_t)SLP_MILLISECOND)
#define SLP_MOST_STALL (250 * (uint64_t)SLP_MILLISECOND)
/* What a peer may owe grows by so much for each byte that comes: to three times as much in a round
 * trip, since it begins with less than its sender's window, which doubles. */
#define SLP_TRUST 2u
/* Sessions that are given budget in one call. */
#define SLP_SERVED_AT_ONCE 16u

/* So many of the node's bytes are free again. */
static void release(struct slp_session *s, uint64_t bytes)
{
	struct slp_node *node = s->config.node;
	struct slp_session *next;
	uint32_t left = SLP_SERVED_AT_ONCE;

	slp_node_free(s, bytes);
	if (bytes == 0)
		return;
	while (left > 0 && (next = slp_node_next(node)) != 0) {
		uint64_t before = next->asked;

		slp_transfers_work(next);
		/* Who was given something brings it or loses it, and the others have their turn then. */
		left -= next->asked > before;
		if (next != s && next->config.ops->wake)
			next->config.ops->wake(next->config.user);
	}
}

/* They will not come, or have. What was written off is the oldest. */
void slp_owed_give_back(struct slp_session *s, uint64_t bytes)
{
	uint64_t free = slp_min(bytes, s->written_off);

	s->asked -= bytes;
	s->written_off -= free;
	if (s->asked == s->written_off)
		s->stall_due = SLP_NEVER;
	release(s, bytes - free);
	/* Another pull of the session may have waited for just this. */
	if (s->pulls_short && !s->hungry.next)
		slp_transfers_work(s);
}

void slp_owed_brought(struct slp_session *s, uint64_t bytes, bool marked)
{
	uint64_t budget = s->config.node->pull_budget;

	slp_node_brought(s->config.node, bytes, marked);
	s->round_brought += bytes;
	s->share->limit = slp_max(s->share->limit, slp_min(s->share->limit + SLP_TRUST * bytes, budget));
	if (s->asked_limit != SLP_NEVER)
		s->asked_limit = s->asked_limit + bytes < budget ? s->asked_limit + bytes : SLP_NEVER;
	slp_owed_give_back(s, bytes);
}

/* ---- what does not come */

static uint64_t stall_delay(const struct slp_session *s)
{
	return slp_min(slp_max(4 * slp_probe_delay(s), SLP_LEAST_STALL), SLP_MOST_STALL);
}

void slp_owed_watch(struct slp_session *s, uint64_t now)
{
	if (s->stall_due != SLP_NEVER || s->asked == s->written_off)
		return;
	s->round_asked = s->asked - s->written_off;
	s->round_brought = 0;
	s->stall_due = now + stall_delay(s);
}

/* What the session owes does not count any more; nor may it owe more than comes in two such times. */
static void write_off(struct slp_session *s)
{
	uint64_t lost = s->asked - s->written_off;
	struct slp_share *share = s->share;

	++s->counters.pulls_stalled;
	s->written_off = s->asked;
	s->asked_limit = slp_max(2 * s->round_brought, SLP_LEAST_OWED);
	share->limit = slp_max(share->limit - slp_min(share->limit, lost), SLP_LEAST_OWED);
	slp_node_pass(s); /* it has nothing to wait for but its peer */
	release(s, lost);
}

void slp_owed_on_timer(struct slp_session *s, uint64_t now)
{
	uint64_t due = s->stall_due;

	if (due > now)
		return;
	s->stall_due = SLP_NEVER;
	/* Much too late: this end was away, and what the peer has sent is still to be read. */
	if (s->round_brought < s->round_asked / 2 && now - due < stall_delay(s))
		write_off(s);
	slp_owed_watch(s, now);
}
