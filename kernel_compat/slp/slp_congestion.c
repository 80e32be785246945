// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* How much may be in the air: what the window learns from each round trip. */
#include "slp_session.h"

#define SLP_FIRST_WINDOW 65536u
/* Nobody asked for what a push brings, nor knows how many begin at once: four small frames, and
 * half as much more in each round trip, or as much more above SLP_SOME_PUSH. */
#define SLP_FIRST_PUSH (4 * SLP_USUAL_FRAME)
#define SLP_SOME_PUSH 32768u
/* Who loses less than a 32nd of the last frames has a bad cable, not a queue that overflows. Up to
 * a quarter the round trip decides: a queue that overflows was full, and that takes time to pass.
 * A round alone says nothing: in a short one a single loss is a large share. */
#define SLP_LOSS_SHARE 32u
#define SLP_LOSS_MUCH 4u
#define SLP_LOSS_LEAST 3u
#define SLP_LOSS_FRAMES 256u
/* A round trip longer than the least by an eighth and this: 25 KB of a queue at 10 Gb/s, and more
 * than what timers and batches of an idle machine add. */
#define SLP_QUEUED_FOR (20 * SLP_MICROSECOND)

void slp_congestion_init(struct slp_session *s)
{
	s->round_min_rtt = SLP_NEVER;
	s->window = s->pace_credit = SLP_FIRST_WINDOW;
	s->slow_start_limit = SLP_NEVER;
	s->push_window = SLP_FIRST_PUSH;
}

/* The doubling is over: from now on the window is that of pushes as well. */
static void end_doubling(struct slp_session *s)
{
	if (s->pushed)
		s->window = slp_min(s->window, s->push_window);
	s->push_window = SLP_NEVER;
}

/* One frame: what 64 senders of 9,000 bytes have in the air fills no switch. */
static uint64_t least_window(const struct slp_session *s)
{
	return slp_max(s->frame_limit, 2 * SLP_USUAL_FRAME);
}

/* Frames had to wait in a queue, or nothing says that they had not. */
static bool queued(const struct slp_session *s)
{
	return s->round_marked > 0 || s->round_min_rtt == SLP_NEVER ||
	       s->round_min_rtt > s->min_rtt + s->min_rtt / 8 + SLP_QUEUED_FOR;
}

static bool losing(struct slp_session *s)
{
	s->recent_lost += s->round_lost;
	s->recent_frames += s->round_acked + s->round_lost;
	if (s->recent_frames > SLP_LOSS_FRAMES) {
		s->recent_frames /= 2;
		s->recent_lost /= 2;
	}
	return s->round_lost > 0 && s->recent_lost >= SLP_LOSS_LEAST &&
	       s->recent_lost * (queued(s) ? SLP_LOSS_SHARE : SLP_LOSS_MUCH) > s->recent_frames;
}

void slp_round_ended(struct slp_session *s)
{
	uint64_t marked = slp_min(s->round_marked, s->round_acked);
	uint32_t share = s->round_acked ? (uint32_t)(marked * 1024 / s->round_acked) : 0;
	/* A queue that grows shows in time before it shows in loss. */
	bool slow = s->min_rtt != SLP_NEVER && s->round_min_rtt != SLP_NEVER &&
		    s->round_min_rtt > 2 * s->min_rtt + 100 * SLP_MICROSECOND;
	uint64_t limit = (uint64_t)SLP_SENT_FRAMES * s->frame_limit;

	/* RFC 8257, 3.3: alpha with g = 1/16; one reduction in a round. */
	s->mark_share = s->mark_share - s->mark_share / 16 + share / 16;
	if (share > 0 && s->mark_share < share / 16)
		s->mark_share = share / 16;
	if (s->push_window != SLP_NEVER && share > 0) {
		s->mark_share = share; /* RFC 8257 begins with all: the doubling went too far */
		end_doubling(s);
	}
	if (losing(s)) {
		if (s->push_window != SLP_NEVER)
			end_doubling(s);
		s->window /= 2;
		s->slow_start_limit = s->window;
	} else if (share > 0) {
		s->window -= s->window * slp_max(s->mark_share, 16) / 2048;
		s->slow_start_limit = s->window;
	} else if (slow) {
		s->slow_start_limit = slp_min(s->slow_start_limit, s->window);
		/* A receiver that is seldom called is slow, too: up to what any session begins with. */
		if (s->round_full && s->push_window < SLP_FIRST_WINDOW)
			s->push_window += SLP_USUAL_FRAME;
	} else if (s->round_full) {
		/* Only a window that was used has shown that there is room for more. */
		s->window += s->window < s->slow_start_limit ? s->window : s->frame_limit;
		if (s->push_window < limit)
			s->push_window += s->push_window > SLP_SOME_PUSH ? s->push_window : s->push_window / 2;
	}
	s->window = slp_min(slp_max(s->window, least_window(s)), limit);
	s->round_acked = s->round_lost = s->round_marked = 0;
	s->round_min_rtt = SLP_NEVER;
	s->round_full = false;
	s->round_end = s->next_number;
}

void slp_not_lost(struct slp_session *s)
{
	if (s->round_lost > 0)
		--s->round_lost;
	else if (s->recent_lost > 0)
		--s->recent_lost;
}
