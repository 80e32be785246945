// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The pull budget that the sessions of a node share: by peers in turn, and by the sessions of each
 * in turn. */
#include "slp_session.h"

/* A pull asks for so much at a time, if the node's budget has it. */
#define SLP_PULL_AHEAD(s) (SLP_TRANSFER_UNITS * slp_unit_bytes(s))
/* An eighth of the budget is kept for peers that owe less than a sixteenth of it: whoever comes
 * while others hold the rest begins at once. So at most sixteen owe more. */
#define SLP_RESERVE_PART 8u
#define SLP_LITTLE_PART 16u
/* What a new peer may owe: so little that many that bring nothing do not hold all that the node may
 * ask for at first. Each byte that comes adds SLP_TRUST. */
#define SLP_FIRST_OWED (SLP_FIRST_ASKED / 8)

/* What the node may ask for at first, and at least however much is marked. */
#define SLP_FIRST_ASKED (128 * (uint64_t)1024)
#define SLP_LEAST_ASKED (32 * (uint64_t)1024)
/* Units of both sizes, and the largest frame of usual networks. */
#define SLP_ASKED_AT_ONCE (6 * (uint64_t)SLP_UNIT_BYTES)

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
	node->pull_window = SLP_FIRST_ASKED;
	node->growing = true;
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

static uint64_t node_window(const struct slp_node *node)
{
	return slp_min(node->pull_window, node->pull_budget);
}

/* Most that the node may have asked for when this share asks for more. */
static uint64_t node_limit(const struct slp_node *node, const struct slp_share *share)
{
	uint64_t window = node_window(node);

	if (share->pulling < window / SLP_LITTLE_PART)
		return window;
	return window - window / SLP_RESERVE_PART;
}

uint64_t slp_node_ahead(const struct slp_session *s)
{
	uint64_t window = node_window(s->config.node);
	uint64_t most = slp_min(SLP_PULL_AHEAD(s), window - window / SLP_RESERVE_PART);

	return slp_max(slp_unit_bytes(s), slp_min(most, slp_min(s->share->limit, s->asked_limit)));
}

/* In pieces that fill frames, unless little is under way anyway. */
static uint64_t room_below(const struct slp_node *node, uint64_t limit)
{
	uint64_t room;

	if (node->pulling >= limit)
		return 0;
	room = limit - node->pulling;
	return node->pulling < limit / 2 ? room : room - room % SLP_ASKED_AT_ONCE;
}

uint64_t slp_node_room(const struct slp_session *s)
{
	const struct slp_share *share = s->share;

	if (share->pulling >= share->limit || s->asked >= s->asked_limit)
		return 0;
	return slp_min(room_below(s->config.node, node_limit(s->config.node, share)),
		       slp_min(share->limit - share->pulling, s->asked_limit - s->asked));
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
struct slp_session *slp_node_next(struct slp_node *node)
{
	uint32_t passed;

	if (room_below(node, node_window(node)) == 0)
		return 0; /* for nobody, and all keep their turn */
	for (passed = 0; passed <= SLP_LITTLE_PART && !link_empty(&node->hungry); ++passed) {
		struct slp_share *share = share_of(node->hungry.next);

		link_remove(&share->queued);
		if (link_empty(&share->hungry) || share->pulling >= share->limit)
			continue; /* it comes again when it may owe more */
		if (room_below(node, node_limit(node, share)) > 0) {
			struct slp_session *s = session_of(share->hungry.next);

			link_remove(&s->hungry);
			queue_share(node, share);
			return s;
		}
		queue_share(node, share);
	}
	return 0;
}

void slp_node_asked(struct slp_session *s, uint64_t bytes)
{
	struct slp_node *node = s->config.node;

	/* What was learned before a pause may be old. */
	if (node->pulling == 0)
		node->pull_window = slp_max(slp_min(node->pull_window, SLP_FIRST_ASKED), node->pull_window / 2);
	s->asked += bytes;
	s->share->pulling += bytes;
	s->config.node->pulling += bytes;
}

/* They are not owed any more. */
void slp_node_free(struct slp_session *s, uint64_t bytes)
{
	s->share->pulling -= bytes;
	s->config.node->pulling -= bytes;
	queue_share(s->config.node, s->share);
}

void slp_node_pass(struct slp_session *s)
{
	link_remove(&s->hungry);
}

/* ---- the window: as much of the budget as does not fill a switch's queue, by RFC 8257 */

void slp_node_brought(struct slp_node *node, uint64_t bytes, bool marked)
{
	uint64_t window = node_window(node);
	bool used = node->pulling >= window / 2;
	uint32_t share;

	node->round_brought += bytes;
	node->round_marked += marked ? bytes : 0;
	/* Half as much more for all that comes, until the first mark: it has waited behind what it
	 * tells of, and as much comes before it. */
	if (node->growing && node->round_marked == 0 && used)
		window += bytes / 2;
	if (node->round_brought >= window) {
		share = (uint32_t)(node->round_marked * 1024 / node->round_brought);
		node->mark_share = node->growing ? share : node->mark_share - node->mark_share / 16 + share / 16;
		if (share > 0) {
			window -= window * slp_max(node->mark_share, 16) / 2048;
			/* It grows all the same: a peer or a path that marks always takes a part, not all. */
			if (used && !node->growing)
				window += SLP_ASKED_AT_ONCE;
			node->growing = false;
		} else if (used && !node->growing) {
			window += slp_max(window / 8, SLP_ASKED_AT_ONCE);
		}
		node->round_brought = node->round_marked = 0;
	}
	node->pull_window = slp_min(slp_max(window, SLP_LEAST_ASKED), node->pull_budget);
}
