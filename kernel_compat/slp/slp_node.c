// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The pull budget that the sessions of a node share: by peers in turn, and by the sessions of each
 * in turn. Who does not bring what he was asked for loses it to the others, and is trusted with
 * less until he brings it. */
#include "slp_session.h"

/* A pull asks for so much at a time, if the node's budget has it. */
#define SLP_PULL_AHEAD(s) (SLP_TRANSFER_UNITS * slp_unit_bytes(s))
/* An eighth of the budget is kept for peers that owe less than a sixteenth of it: whoever comes
 * while others hold the rest begins at once. So at most sixteen owe more. */
#define SLP_RESERVE_PART 8u
#define SLP_LITTLE_PART 16u
/* What a new peer may owe: twice the window that its sender begins with. Each byte that comes
 * adds one, so that this doubles in a round trip as that window does. */
#define SLP_FIRST_OWED (128 * (uint64_t)1024)
/* What may be owed after nothing came: enough to show that something does. */
#define SLP_LEAST_OWED (8 * (uint64_t)SLP_UNIT_BYTES)
/* Half of what is owed has to come in four times the delay after which an answer is missing; the
 * least is what a busy machine takes to run a process again, the most keeps who claims a long
 * round trip from holding the budget. */
#define SLP_LEAST_STALL (10 * (uint64_t)SLP_MILLISECOND)
#define SLP_MOST_STALL (250 * (uint64_t)SLP_MILLISECOND)
/* Sessions that are given budget in one call. */
#define SLP_SERVED_AT_ONCE 16u

/* ---- lists */

static void link_init(struct slp_link *head)
{
	head->next = head->before = head;
}

static bool link_empty(const struct slp_link *head)
{
	return head->next == head;
}

static void link_append(struct slp_link *head, struct slp_link *link)
{
	link->next = head;
	link->before = head->before;
	head->before->next = link;
	head->before = link;
}

static void link_remove(struct slp_link *link)
{
	if (!link->next)
		return;
	link->before->next = link->next;
	link->next->before = link->before;
	link->next = link->before = 0;
}

static struct slp_share *share_of(struct slp_link *queued)
{
	return (struct slp_share *)(void *)((uint8_t *)queued - offsetof(struct slp_share, queued));
}

static struct slp_session *session_of(struct slp_link *hungry)
{
	return (struct slp_session *)(void *)((uint8_t *)hungry - offsetof(struct slp_session, hungry));
}

/* ---- beginnings and limits */

void slp_node_init(struct slp_node *node, uint64_t pull_budget)
{
	memset(node, 0, sizeof(*node));
	node->pull_budget = pull_budget;
	link_init(&node->hungry);
}

void slp_share_init(struct slp_share *share)
{
	memset(share, 0, sizeof(*share));
	share->limit = SLP_FIRST_OWED;
	link_init(&share->hungry);
}

void slp_node_join(struct slp_session *s)
{
	slp_share_init(&s->own_share);
	s->share = s->config.share ? s->config.share : &s->own_share;
	s->asked_limit = s->stall_due = SLP_NEVER;
}

/* Most that the node may have asked for when this share asks for more. */
static uint64_t node_limit(const struct slp_node *node, const struct slp_share *share)
{
	if (share->pulling < node->pull_budget / SLP_LITTLE_PART)
		return node->pull_budget;
	return node->pull_budget - node->pull_budget / SLP_RESERVE_PART;
}

uint64_t slp_node_ahead(const struct slp_session *s)
{
	const struct slp_node *node = s->config.node;
	uint64_t most = slp_min(SLP_PULL_AHEAD(s), node->pull_budget - node->pull_budget / SLP_RESERVE_PART);

	return slp_max(slp_unit_bytes(s), slp_min(most, slp_min(s->share->limit, s->asked_limit)));
}

uint64_t slp_node_room(const struct slp_session *s)
{
	const struct slp_share *share = s->share;
	const struct slp_node *node = s->config.node;
	uint64_t limit = node_limit(node, share);

	if (node->pulling >= limit || share->pulling >= share->limit || s->asked >= s->asked_limit)
		return 0;
	return slp_min(limit - node->pulling, slp_min(share->limit - share->pulling, s->asked_limit - s->asked));
}

/* ---- who waits */

/* A share is in the node's list while a session of it waits, and it may owe more. */
static void queue_share(struct slp_node *node, struct slp_share *share)
{
	if (!share->queued.next && !link_empty(&share->hungry) && share->pulling < share->limit)
		link_append(&node->hungry, &share->queued);
}

void slp_node_wait(struct slp_session *s)
{
	s->pulls_short = true;
	/* Who owes all that it may is called when something of it comes. */
	if (!s->hungry.next && s->asked < s->asked_limit)
		link_append(&s->share->hungry, &s->hungry);
	queue_share(s->config.node, s->share);
}

void slp_node_forget(struct slp_session *s)
{
	link_remove(&s->hungry);
	if (link_empty(&s->share->hungry))
		link_remove(&s->share->queued);
	s->stall_due = SLP_NEVER;
}

/* The next session in turn for which there is budget; null: none. Those that it passes over owe
 * more than a little, so they are sixteen at most. */
static struct slp_session *next_hungry(struct slp_node *node)
{
	uint32_t passed;

	if (node->pulling >= node->pull_budget)
		return 0;
	for (passed = 0; passed <= SLP_LITTLE_PART && !link_empty(&node->hungry); ++passed) {
		struct slp_share *share = share_of(node->hungry.next);

		link_remove(&share->queued);
		if (link_empty(&share->hungry) || share->pulling >= share->limit)
			continue; /* it comes again when it may owe more */
		if (node->pulling < node_limit(node, share)) {
			struct slp_session *s = session_of(share->hungry.next);

			link_remove(&s->hungry);
			queue_share(node, share);
			return s;
		}
		queue_share(node, share);
	}
	return 0;
}

/* So many of the node's bytes are free again. */
static void release(struct slp_session *s, uint64_t bytes)
{
	struct slp_node *node = s->config.node;
	struct slp_session *next;
	uint32_t left = SLP_SERVED_AT_ONCE;

	s->share->pulling -= bytes;
	node->pulling -= bytes;
	queue_share(node, s->share);
	if (bytes == 0)
		return;
	while (left > 0 && (next = next_hungry(node)) != 0) {
		uint64_t before = next->asked;

		slp_transfers_work(next);
		/* Who was given something brings it or loses it, and the others have their turn then. */
		left -= next->asked > before;
		if (next != s && next->config.ops->wake)
			next->config.ops->wake(next->config.user);
	}
}

/* ---- what is owed */

void slp_node_asked(struct slp_session *s, uint64_t bytes)
{
	s->asked += bytes;
	s->share->pulling += bytes;
	s->config.node->pulling += bytes;
}

/* They will not come, or have. What was written off is the oldest. */
void slp_node_give_back(struct slp_session *s, uint64_t bytes)
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

void slp_node_brought(struct slp_session *s, uint64_t bytes)
{
	uint64_t budget = s->config.node->pull_budget;

	s->round_brought += bytes;
	s->share->limit = slp_max(s->share->limit, slp_min(s->share->limit + bytes, budget));
	if (s->asked_limit != SLP_NEVER)
		s->asked_limit = s->asked_limit + bytes < budget ? s->asked_limit + bytes : SLP_NEVER;
	slp_node_give_back(s, bytes);
}

/* ---- what does not come */

static uint64_t stall_delay(const struct slp_session *s)
{
	return slp_min(slp_max(4 * slp_probe_delay(s), SLP_LEAST_STALL), SLP_MOST_STALL);
}

void slp_node_watch(struct slp_session *s, uint64_t now)
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
	link_remove(&s->hungry); /* it has nothing to wait for but its peer */
	release(s, lost);
}

void slp_node_on_timer(struct slp_session *s, uint64_t now)
{
	uint64_t due = s->stall_due;

	if (due > now)
		return;
	s->stall_due = SLP_NEVER;
	/* Much too late: this end was away, and what the peer has sent is still to be read. */
	if (s->round_brought < s->round_asked / 2 && now - due < stall_delay(s))
		write_off(s);
	slp_node_watch(s, now);
}
