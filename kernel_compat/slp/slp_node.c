// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The pull budget that the sessions of a node share, in turns. */
#include "slp_session.h"

void slp_node_init(struct slp_node *node, uint64_t pull_budget)
{
	memset(node, 0, sizeof(*node));
	node->pull_budget = pull_budget;
}

void slp_node_wait(struct slp_session *s)
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

void slp_node_give_back(struct slp_session *s, uint64_t bytes)
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
