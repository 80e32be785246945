// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Which of the peer's packet numbers were here, and what we tell it of them. */
#include "slp_session.h"

/* An acknowledgement leaves at the latest after so many frames. Those of streams count four
 * times: a sender has few of them under way. */
#define SLP_ACK_EVERY 64u
#define SLP_EAGER_COUNTS 4u
/* So often the ranges are said after the last arrival out of order; whoever misses all of
 * them sends again what was here. */
#define SLP_GAPS_SAID 4u

/* How far beyond the largest number that was here an honest peer's can be: so many were sent since
 * then of which none arrived, and so none was acknowledged.
 *   512  take the places that it has for content (SLP_SENT_FRAMES);
 *   144  go with its probes: three each, not more than 48 before one of the two is given up;
 *  1168  acknowledge frames of ours, one each: as many as we can have sent by the same count, and
 *	  had in the air before;
 *  2560  say that it has room again: for each record in SLP_STREAM_BYTES of messages.
 * The rest is for ends whose dead times differ. */
#define SLP_NUMBERS_AHEAD 16384u

static bool was_here(const struct slp_window *window, uint64_t number)
{
	uint64_t bit = number % SLP_SEEN_FRAMES;

	return window->bits[bit / 64] >> (bit % 64) & 1;
}

enum slp_drop slp_window_check(const struct slp_window *window, uint64_t number)
{
	if (number == 0)
		return SLP_DROP_NUMBER;
	if (number > window->largest)
		return number - window->largest > SLP_NUMBERS_AHEAD ? SLP_DROP_NUMBER : SLP_TAKEN;
	if (window->largest - number >= SLP_SEEN_FRAMES || was_here(window, number))
		return SLP_DROP_REPEATED;
	return SLP_TAKEN;
}

static void clear_between(struct slp_window *window, uint64_t from, uint64_t to)
{
	uint64_t number;

	if (to - from >= SLP_SEEN_FRAMES) {
		memset(window->bits, 0, sizeof(window->bits));
		return;
	}
	for (number = from; number < to; ++number)
		window->bits[number % SLP_SEEN_FRAMES / 64] &= ~((uint64_t)1 << number % 64);
}

void slp_window_add(struct slp_window *window, uint64_t number)
{
	if (number > window->largest) {
		clear_between(window, window->largest + 1, number);
		window->largest = number;
	}
	window->bits[number % SLP_SEEN_FRAMES / 64] |= (uint64_t)1 << number % 64;
}

void slp_seen_add(struct slp_session *s, uint64_t number, uint64_t now, uint8_t type, bool at_once)
{
	struct slp_seen *seen = &s->seen;
	bool next = number == seen->here.largest + 1;

	if (number > seen->here.largest)
		seen->largest_time = now;
	slp_window_add(&seen->here, number);
	/* One more of the run that is known; any other is counted when it is said. */
	seen->run = next && seen->run > 0 ? (uint16_t)slp_min(seen->run + 1u, SLP_SEEN_FRAMES) : 0;
	if (!next)
		seen->gaps_due = SLP_GAPS_SAID;
	if (type == SLP_ACK || type == SLP_BYE)
		return;
	seen->unacknowledged += type == SLP_EAGER ? SLP_EAGER_COUNTS : 1;
	/* Out of order: the sender should know soon what is missing, or that nothing is. */
	if (at_once || !next || seen->unacknowledged >= SLP_ACK_EVERY)
		seen->due = now;
	else
		seen->due = slp_min(seen->due, now + s->config.ack_delay_ns);
}

/* How many numbers in a row, from `number` down to `lowest`, were here (or not: `here` false). */
static uint32_t run_below(const struct slp_window *seen, uint64_t number, bool here, uint64_t lowest)
{
	uint64_t most = number - lowest + 1;
	uint32_t run = 0;

	while (number >= lowest) {
		uint32_t bit = number % 64;
		/* The number's own bit on top; what is not of the run is 1. */
		uint64_t word = seen->bits[number % SLP_SEEN_FRAMES / 64] << (63 - bit);
		uint64_t other = here ? ~word : word;
		uint32_t in_word = other ? (uint32_t)__builtin_clzll(other) : 64;

		if (in_word <= bit) {
			run += in_word;
			break;
		}
		run += bit + 1;
		if (number < bit + 1)
			break;
		number -= bit + 1;
	}
	return (uint32_t)slp_min(run, most);
}

static uint64_t lowest_known(const struct slp_window *seen)
{
	return seen->largest >= SLP_SEEN_FRAMES ? seen->largest - SLP_SEEN_FRAMES + 1 : 1;
}

void slp_seen_fill_base(struct slp_session *s, uint64_t now, struct slp_base *base)
{
	const struct slp_window *seen = &s->seen.here;
	uint64_t age;

	base->ce_count = s->seen.ce_count;
	if (seen->largest == 0)
		return;
	base->flags |= SLP_FLAG_ACK;
	base->ack = (uint32_t)seen->largest;
	if (s->seen.run == 0)
		s->seen.run = (uint16_t)run_below(seen, seen->largest, true, lowest_known(seen));
	base->ack_run = (uint16_t)(s->seen.run - 1);
	age = (now - s->seen.largest_time) / SLP_MICROSECOND;
	base->ack_age_us = (uint16_t)slp_min(age, 65535);
}

/* The ranges below the base's. Returns how many. */
uint32_t slp_seen_ranges(const struct slp_session *s, uint8_t *payload)
{
	const struct slp_window *seen = &s->seen.here;
	uint64_t lowest = lowest_known(seen), number = seen->largest;
	uint32_t pairs = 0;

	if (number == 0)
		return 0;
	number -= run_below(seen, number, true, lowest);
	while (number >= lowest && number > 0 && pairs < SLP_MAX_PAIRS) {
		uint32_t gap = run_below(seen, number, false, lowest), run;

		number -= gap;
		if (number < lowest || number == 0)
			break;
		run = run_below(seen, number, true, lowest);
		number -= run;
		slp_store16(payload + 4 * pairs, (uint16_t)gap);
		slp_store16(payload + 4 * pairs + 2, (uint16_t)run);
		++pairs;
	}
	return pairs;
}

bool slp_owes_answer(const struct slp_session *s)
{
	return s->state == SLP_UP && s->seen.due != SLP_NEVER;
}

void slp_answer_now(struct slp_session *s)
{
	if (slp_owes_answer(s))
		s->seen.due = 0;
}

/* Everything that we know has been said. */
void slp_seen_acknowledged(struct slp_session *s)
{
	s->seen.due = SLP_NEVER;
	s->seen.unacknowledged = 0;
}
