// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* What the frames that left carried, and what its acknowledgement frees: places of streams, and
 * sources of transfers. */
#include "slp_session.h"

/* ---- sources */

struct slp_source *slp_source_of(struct slp_session *s, uint16_t index)
{
	return index & SLP_TRANSFER_PUSH ? &s->pushes[index & ~SLP_TRANSFER_PUSH] : &s->serving[index];
}

_Static_assert(2 * SLP_TRANSFERS <= 32, "slp_session.sources has a bit for each");

static uint32_t turn_bit(uint16_t index)
{
	return (uint32_t)1 << (index & SLP_TRANSFER_PUSH ? SLP_TRANSFERS + (index & ~SLP_TRANSFER_PUSH) : index);
}

uint16_t slp_source_at(uint32_t turn)
{
	return (uint16_t)(turn < SLP_TRANSFERS ? turn : (turn - SLP_TRANSFERS) | SLP_TRANSFER_PUSH);
}

void slp_source_begin(struct slp_session *s, uint16_t index)
{
	slp_source_of(s, index)->used = true;
	s->sources |= turn_bit(index);
}

void slp_source_end(struct slp_session *s, uint16_t index)
{
	slp_source_of(s, index)->used = false;
	s->sources &= ~turn_bit(index);
}

void slp_source_acked(struct slp_session *s, const struct slp_sent *entry)
{
	struct slp_source *source = slp_source_of(s, entry->index);

	if (!source->used || source->generation != entry->generation)
		return;
	source->acked += entry->bytes;
	/* The memory of a pull is free again; that of a push when its DONE says so. */
	if (!(entry->index & SLP_TRANSFER_PUSH) && source->acked == source->total)
		slp_source_end(s, entry->index);
}

/* ---- streams */

void slp_stream_acked(struct slp_session *s, const struct slp_sent *entry)
{
	struct slp_stream_tx *tx = &s->tx[entry->index];
	struct slp_segment *segment = &tx->segments[entry->generation % SLP_SEGMENTS];

	bool moved = false;

	segment->left = (uint16_t)(segment->left - entry->bytes);
	while (tx->first_segment != tx->next_segment && tx->segments[tx->first_segment % SLP_SEGMENTS].left == 0) {
		tx->floor += tx->segments[tx->first_segment % SLP_SEGMENTS].bytes;
		++tx->first_segment;
		moved = true;
	}
	if (moved && entry->index == SLP_CONTROL)
		s->control_freed = true;
}
