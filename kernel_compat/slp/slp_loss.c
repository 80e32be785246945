// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* What is in the air: acknowledged, lost, or asked for. */
#include "slp_session.h"

#define SLP_FIRST_REORDER 3u /* frames; RFC 9002, 6.1.1 */
#define SLP_MOST_REORDER 64u
#define SLP_LEAST_PROBE_DELAY (500 * SLP_MICROSECOND)
#define SLP_MOST_BACKOFF 10u
#define SLP_PROBES 2u
/* So many large frames in a row are lost, and none arrives, while small ones do: something
 * between the two takes no large ones. */
#define SLP_LARGE_LOST 8u
#define SLP_RTT_LIMIT (1000 * (uint64_t)SLP_MILLISECOND)
/* The least round trip is that of the last one to two spans. A way that has become longer for good
 * is then no queue any more. Longer than other flows keep a queue filled. */
#define SLP_MIN_RTT_SPAN (30000 * (uint64_t)SLP_MILLISECOND)

void slp_loss_init(struct slp_session *s)
{
	s->next_number = 1;
	s->srtt = s->config.initial_rtt_ns;
	s->rttvar = s->srtt / 2;
	s->min_rtt = s->span_min_rtt = s->last_span_min_rtt = SLP_NEVER;
	s->reorder = SLP_FIRST_REORDER;
	slp_congestion_init(s);
	s->loss_due = s->probe_due = SLP_NEVER;
}

static struct slp_sent *sent_at(struct slp_session *s, uint64_t count)
{
	return &s->work->sent[count % SLP_SENT_FRAMES];
}

/* What is settled stays where it is while something older is not: this closes up on the others.
 * Entries move. */
static void close_up(struct slp_session *s)
{
	uint64_t at, to = s->sent_first;

	for (at = s->sent_first; at != s->sent_next; ++at) {
		if (sent_at(s, at)->state == SLP_SENT_DONE)
			continue;
		if (to != at)
			*sent_at(s, to) = *sent_at(s, at);
		++to;
	}
	s->sent_next = to;
}

/* A place for what goes again or asks, so that `spare` are left then. Entries may move. */
bool slp_sent_place(struct slp_session *s, uint32_t spare)
{
	if (s->sent_next - s->sent_first + spare >= SLP_SENT_FRAMES && s->flying + s->lost + spare < SLP_SENT_FRAMES)
		close_up(s);
	return s->sent_next - s->sent_first + spare < SLP_SENT_FRAMES;
}

void slp_sent_add(struct slp_session *s, const struct slp_sent *entry)
{
	slp_need_work(s);
	*sent_at(s, s->sent_next++) = *entry;
	++s->flying;
	s->in_flight += slp_wire_bytes(s, entry);
}

static void pop_settled(struct slp_session *s)
{
	while (s->sent_first != s->sent_next && sent_at(s, s->sent_first)->state == SLP_SENT_DONE)
		++s->sent_first;
	/* Nothing is under way: from the beginning, so that a session which says little needs little. */
	if (s->sent_first == s->sent_next)
		s->sent_first = s->sent_next = 0;
}

static void land(struct slp_session *s, struct slp_sent *entry, enum slp_sent_state state)
{
	if (entry->state == SLP_SENT_FLYING) {
		--s->flying;
		s->in_flight -= slp_wire_bytes(s, entry);
	} else if (entry->state == SLP_SENT_LOST) {
		--s->lost;
	}
	entry->state = (uint8_t)state;
	if (state == SLP_SENT_LOST)
		++s->lost;
}

/* ---- content to be sent again */

static bool still_wanted(struct slp_session *s, const struct slp_sent *entry)
{
	const struct slp_source *source;

	if (entry->kind == SLP_SENT_EAGER)
		return true;
	if (entry->kind == SLP_SENT_PING)
		return false;
	source = slp_source_of(s, entry->index);
	return source->used && source->generation == entry->generation;
}

/* The oldest content that is lost, still wanted, and no longer than this; null: none. */
struct slp_sent *slp_next_lost(struct slp_session *s, uint32_t eager_bytes, uint32_t data_bytes)
{
	uint64_t at;

	for (at = s->sent_first; s->lost > 0 && at != s->sent_next; ++at) {
		struct slp_sent *entry = sent_at(s, at);

		if (entry->state != SLP_SENT_LOST)
			continue;
		if (!still_wanted(s, entry))
			land(s, entry, SLP_SENT_DONE);
		else if (entry->bytes <= (entry->kind == SLP_SENT_EAGER ? eager_bytes : data_bytes))
			return entry;
	}
	pop_settled(s);
	return 0;
}

/* Its content goes into a younger frame, for which this makes room. */
void slp_sent_again(struct slp_session *s, struct slp_sent *entry)
{
	uint64_t *place = &s->given_up[s->given_up_next++ % SLP_GIVEN_UP];

	s->given_up_live += *place == 0;
	*place = entry->number;
	land(s, entry, SLP_SENT_DONE);
	pop_settled(s);
	(void)slp_sent_place(s, 0);
}

void slp_forget_transfer(struct slp_session *s, uint16_t index, uint16_t generation)
{
	uint64_t at;

	for (at = s->sent_first; s->lost > 0 && at != s->sent_next; ++at) {
		struct slp_sent *entry = sent_at(s, at);

		if (entry->state == SLP_SENT_LOST && entry->kind == SLP_SENT_DATA && entry->index == index &&
		    entry->generation == generation)
			land(s, entry, SLP_SENT_DONE);
	}
	pop_settled(s);
}

/* Of a transfer: before it all is acknowledged, since what is not is in a frame that flies or
 * is lost. `none`: nothing is. */
uint64_t slp_oldest_offset(const struct slp_session *s, uint16_t index, uint16_t generation, uint64_t none)
{
	uint64_t at;

	for (at = s->sent_first; at != s->sent_next; ++at) {
		const struct slp_sent *entry = &s->work->sent[at % SLP_SENT_FRAMES];

		if (entry->state != SLP_SENT_DONE && entry->kind == SLP_SENT_DATA && entry->index == index &&
		    entry->generation == generation)
			none = slp_min(none, entry->offset);
	}
	return none;
}

/* ---- acknowledgements */

/* Large frames that vanish while small ones arrive. */
static void note_size(struct slp_session *s, const struct slp_sent *entry, bool arrived)
{
	bool large = slp_wire_bytes(s, entry) > slp_small_frame(s);

	if (arrived && large)
		s->large_lost = 0, s->small_answered = false;
	if (arrived && !large && s->large_lost > 0)
		s->small_answered = true;
	if (!arrived && large)
		++s->large_lost;
	if (s->large_lost < SLP_LARGE_LOST || !s->small_answered || s->frame_limit <= slp_small_frame(s))
		return;
	s->frame_limit = (uint32_t)slp_max(s->frame_limit / 2, slp_small_frame(s));
	s->large_lost = 0;
	s->small_answered = false;
	++s->counters.frames_halved;
}

static void note_least(struct slp_session *s, uint64_t sample, uint64_t now)
{
	if (now >= s->span_end) {
		s->last_span_min_rtt = s->span_min_rtt;
		s->span_min_rtt = SLP_NEVER;
		s->span_end = now + SLP_MIN_RTT_SPAN;
	}
	s->span_min_rtt = slp_min(s->span_min_rtt, sample);
	s->min_rtt = slp_min(s->span_min_rtt, s->last_span_min_rtt);
	s->round_min_rtt = slp_min(s->round_min_rtt, sample);
}

static void take_rtt(struct slp_session *s, uint64_t now, uint64_t sample, uint64_t age)
{
	uint64_t adjusted, off;

	if (sample > SLP_RTT_LIMIT)
		return;
	s->latest_rtt = sample;
	note_least(s, sample, now);
	/* RFC 9002, 5.3. */
	adjusted = sample >= s->min_rtt + age ? sample - age : sample;
	off = s->srtt > adjusted ? s->srtt - adjusted : adjusted - s->srtt;
	if (s->largest_acked == 0) {
		s->srtt = adjusted;
		s->rttvar = adjusted / 2;
		return;
	}
	s->rttvar = (3 * s->rttvar + off) / 4;
	s->srtt = (7 * s->srtt + adjusted) / 8;
}

static uint64_t first_at_least(struct slp_session *s, uint64_t number)
{
	uint64_t low = s->sent_first, high = s->sent_next;

	while (low < high) {
		uint64_t middle = low + (high - low) / 2;

		if (sent_at(s, middle)->number < number)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* It was only late: be more patient. */
static void note_spurious(struct slp_session *s, uint64_t number)
{
	uint64_t distance = s->largest_acked > number ? s->largest_acked - number : 0;

	++s->counters.spurious;
	slp_not_lost(s);
	s->reorder = slp_min(slp_max(s->reorder, distance + 1), SLP_MOST_REORDER);
}

static void look_among_given_up(struct slp_session *s, uint64_t low, uint64_t high)
{
	uint32_t i;

	for (i = 0; s->given_up_live > 0 && i < SLP_GIVEN_UP; ++i) {
		if (s->given_up[i] < low || s->given_up[i] > high)
			continue;
		note_spurious(s, s->given_up[i]);
		s->given_up[i] = 0;
		--s->given_up_live;
	}
}

static void acked(struct slp_session *s, struct slp_sent *entry)
{
	note_size(s, entry, true);
	if (entry->state == SLP_SENT_LOST)
		note_spurious(s, entry->number);
	else
		++s->round_acked;
	land(s, entry, SLP_SENT_DONE);
	if (entry->kind == SLP_SENT_EAGER)
		slp_stream_acked(s, entry);
	else if (entry->kind == SLP_SENT_DATA)
		slp_source_acked(s, entry);
}

/* Numbers [low, high] are there. Returns whether that was news. */
static bool ack_range(struct slp_session *s, uint64_t low, uint64_t high)
{
	uint64_t at;
	bool news = false;

	look_among_given_up(s, low, high);
	for (at = first_at_least(s, low); at < s->sent_next && sent_at(s, at)->number <= high; ++at) {
		if (sent_at(s, at)->state == SLP_SENT_DONE)
			continue;
		acked(s, sent_at(s, at));
		news = true;
	}
	return news;
}

static void lose(struct slp_session *s, struct slp_sent *entry)
{
	++s->round_lost;
	note_size(s, entry, false);
	land(s, entry, entry->kind == SLP_SENT_PING ? SLP_SENT_DONE : SLP_SENT_LOST);
}

static uint64_t patience(const struct slp_session *s)
{
	uint64_t rtt = slp_max(s->srtt, s->latest_rtt);

	return slp_max(rtt + rtt / 8, 50 * SLP_MICROSECOND); /* RFC 9002, 6.1.2 */
}

static void detect_losses(struct slp_session *s, uint64_t now)
{
	uint64_t at, wait = patience(s);

	s->loss_due = SLP_NEVER;
	for (at = s->sent_first; at != s->sent_next; ++at) {
		struct slp_sent *entry = sent_at(s, at);

		if (entry->number >= s->largest_acked)
			break;
		if (entry->state != SLP_SENT_FLYING)
			continue;
		if (entry->number + s->reorder <= s->largest_acked || entry->time + wait <= now)
			lose(s, entry);
		else
			s->loss_due = slp_min(s->loss_due, entry->time + wait);
	}
	pop_settled(s);
}

/* Most frames of a transfer say what the one before them said. Time has passed: the timers see that. */
static bool said_before(const struct slp_session *s, const struct slp_base *base, uint32_t count)
{
	return count == 0 && s->largest_acked > 0 && base->ack == (uint32_t)s->largest_acked &&
	       base->ack_run == s->acked_run && base->ce_count == s->peer_ce;
}

enum slp_drop slp_on_ack(struct slp_session *s, uint64_t now, const struct slp_base *base, const uint8_t *pairs,
			 uint32_t count)
{
	uint64_t largest, low, age = (uint64_t)base->ack_age_us * SLP_MICROSECOND;
	uint64_t newest;
	bool news;
	uint32_t i;

	if (!(base->flags & SLP_FLAG_ACK))
		return count > 0 ? SLP_DROP_CONTENT : SLP_TAKEN;
	if (said_before(s, base, count)) {
		slp_set_probe_timer(s, now);
		return SLP_TAKEN;
	}
	largest = slp_expand_number(slp_max(s->largest_acked, 1), base->ack);
	if (largest == 0 || largest >= s->next_number || base->ack_run >= largest)
		return SLP_DROP_ACK;
	for (i = 0, low = largest - base->ack_run; i < count; ++i) {
		uint32_t gap = slp_load16(pairs + 4 * i), run = slp_load16(pairs + 4 * i + 2);

		if (gap == 0 || run == 0 || gap + run >= low)
			return SLP_DROP_ACK;
		low -= gap + run;
	}
	newest = first_at_least(s, largest);
	if (newest < s->sent_next && sent_at(s, newest)->number == largest && largest > s->largest_acked &&
	    sent_at(s, newest)->state != SLP_SENT_DONE && sent_at(s, newest)->time >= s->sample_from)
		take_rtt(s, now, now - sent_at(s, newest)->time, age);
	if (largest >= s->largest_acked) {
		s->largest_acked = largest;
		s->acked_run = base->ack_run;
	}
	low = largest - base->ack_run;
	news = ack_range(s, low, largest);
	for (i = 0; i < count; ++i) {
		uint64_t high = low - slp_load16(pairs + 4 * i) - 1;

		low = high + 1 - slp_load16(pairs + 4 * i + 2);
		news = ack_range(s, low, high) || news;
	}
	{
		uint16_t marks = (uint16_t)(base->ce_count - s->peer_ce);

		if (marks < 0x8000) {
			s->round_marked += marks;
			s->counters.marked_by_peer += marks;
			s->peer_ce = base->ce_count;
		}
	}
	if (news)
		s->backoff = 0;
	detect_losses(s, now);
	if (s->largest_acked >= s->round_end && s->round_acked > 0)
		slp_round_ended(s);
	slp_set_probe_timer(s, now);
	return SLP_TAKEN;
}

/* ---- timers */

uint64_t slp_probe_delay(const struct slp_session *s)
{
	uint64_t spread = slp_max(4 * s->rttvar, 100 * SLP_MICROSECOND);
	uint64_t peer_wait = (uint64_t)s->peer.ack_delay_us * SLP_MICROSECOND;

	return slp_max(s->srtt + spread + peer_wait, SLP_LEAST_PROBE_DELAY);
}

/* The peer's answer is missing: for something in the air, or for credit. */
bool slp_answer_missing(const struct slp_session *s)
{
	const struct slp_stream_tx *tx = &s->tx[SLP_MESSAGES];

	return s->flying > 0 || (tx->sent == tx->limit && tx->written > tx->sent);
}

static uint64_t probe_wait(const struct slp_session *s)
{
	/* Many chances before the peer is given up. */
	return slp_min(slp_probe_delay(s) << s->backoff, s->config.dead_ns / 16);
}

void slp_set_probe_timer(struct slp_session *s, uint64_t now)
{
	s->probe_due = slp_answer_missing(s) ? now + probe_wait(s) : SLP_NEVER;
}

void slp_on_loss_timer(struct slp_session *s, uint64_t now)
{
	uint64_t at;
	uint32_t left = SLP_PROBES;
	bool full;

	if (s->loss_due <= now)
		detect_losses(s, now);
	if (s->probe_due > now)
		return;
	if (!slp_answer_missing(s)) {
		s->probe_due = SLP_NEVER;
		return;
	}
	++s->counters.probes;
	if (s->backoff < SLP_MOST_BACKOFF)
		++s->backoff;
	/* The oldest goes again, which answers most if it was lost; and something small, to
	 * learn whether it is the size. */
	full = !slp_sent_place(s, 0);
	for (at = s->sent_first; at != s->sent_next && (left > 0 || full); ++at) {
		struct slp_sent *entry = sent_at(s, at);

		if (entry->state != SLP_SENT_FLYING || (left == 0 && entry->kind != SLP_SENT_PING))
			continue;
		lose(s, entry);
		left -= left > 0;
	}
	pop_settled(s);
	s->probes = SLP_PROBES;
	s->ping_due = true;
	slp_set_probe_timer(s, now);
	if (s->probe_due == SLP_NEVER) /* all of it is to be sent again: the timer runs from then */
		s->probe_due = now + probe_wait(s);
}
