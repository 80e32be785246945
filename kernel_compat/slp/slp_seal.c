// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Proof of the secret in the greeting, and sealed frames: which key, which nonce, which bytes.
 * The cipher itself is the user's (slp.h). */
#include "slp_session.h"

#define SLP_HELLO_PROVEN (SLP_HELLO_BYTES - SLP_TAG_BYTES) /* of the extension, before the tag */

/* ---- the greeting */

static bool greeting_tag(const struct slp_cipher *cipher, void *user, const uint8_t *frame, uint8_t out[SLP_TAG_BYTES])
{
	uint8_t text[SLP_BASE_BYTES + SLP_HELLO_PROVEN];

	slp_copy_base(text, frame);
	memcpy(text + SLP_BASE_BYTES, frame + SLP_BASE_BYTES, SLP_HELLO_PROVEN);
	return cipher->greet(user, text, sizeof(text), out);
}

void slp_greet(const struct slp_cipher *cipher, void *user, uint8_t *frame)
{
	uint8_t *tag = frame + SLP_BASE_BYTES + SLP_HELLO_PROVEN;

	/* Without a tag it is refused, which says so. */
	if (!greeting_tag(cipher, user, frame, tag))
		memset(tag, 0, SLP_TAG_BYTES);
	slp_stamp_base(frame);
}

bool slp_greeting_proven(const struct slp_cipher *cipher, void *user, const uint8_t *frame)
{
	const uint8_t *tag = frame + SLP_BASE_BYTES + SLP_HELLO_PROVEN;
	uint8_t expected[SLP_TAG_BYTES], differs = 0;
	uint32_t i;

	if (!greeting_tag(cipher, user, frame, expected))
		return false;
	/* In a time that does not tell how much of it was right. */
	for (i = 0; i < SLP_TAG_BYTES; ++i)
		differs |= (uint8_t)(expected[i] ^ tag[i]);
	return differs == 0;
}

/* ---- keys: of a direction, for 2^bits numbers each */

void slp_keys_init(struct slp_session *s)
{
	struct slp_keys *keys = &s->keys;
	uint32_t i;

	for (i = 0; i < SLP_KEY_SLOTS; ++i)
		keys->epoch[i] = SLP_NEVER;
	for (i = 0; i < SLP_OPEN_SLOTS; ++i)
		keys->order[i] = (uint8_t)(SLP_SEAL_SLOTS + i);
	keys->bits = (uint8_t)slp_min(s->ours.epoch_bits, s->peer.epoch_bits);
}

uint8_t slp_phase(const struct slp_session *s, uint64_t number)
{
	return number >> s->keys.bits & 1 ? SLP_FLAG_PHASE : 0;
}

static uint32_t direction_of(const struct slp_session *s, bool ours)
{
	return s->passive == ours;
}

static bool derive(struct slp_session *s, bool ours, uint32_t slot, uint64_t epoch)
{
	const struct slp_hello *client = s->passive ? &s->peer : &s->ours;
	const struct slp_hello *listener = s->passive ? &s->ours : &s->peer;
	uint8_t salt[2 * SLP_SALT_BYTES];
	uint8_t info[36] = {'s', 'l', 'p', '1', ' ', 'k', 'e', 'y'};

	memcpy(salt, client->salt, SLP_SALT_BYTES);
	memcpy(salt + SLP_SALT_BYTES, listener->salt, SLP_SALT_BYTES);
	slp_store32(info + 8, direction_of(s, ours));
	slp_store64(info + 12, epoch);
	slp_store64(info + 20, client->nonce);
	slp_store64(info + 28, listener->nonce);
	s->keys.epoch[slot] = SLP_NEVER;
	if (!s->config.cipher->derive(s->config.cipher_user, slot, salt, info, sizeof(info)))
		return false;
	s->keys.epoch[slot] = epoch;
	++s->counters.keys;
	return true;
}

static void describe(const struct slp_session *s, bool ours, uint32_t slot, uint64_t number, const uint8_t *frame,
		     struct slp_sealing *out)
{
	out->slot = slot;
	slp_store32(out->nonce, direction_of(s, ours));
	slp_store64(out->nonce + 4, number);
	slp_copy_base(out->header, frame);
}

/* ---- sealing */

uint32_t slp_seal_tx(struct slp_session *s, const struct slp_tx *tx, const struct slp_piece *memory, uint32_t pieces,
		     uint8_t *frame)
{
	uint64_t epoch = tx->number >> s->keys.bits;
	uint32_t slot = (uint32_t)(epoch % SLP_SEAL_SLOTS), count = 3, bytes, i;
	struct slp_piece plain[3 + SLP_MOST_PIECES] = {
		{tx->header + SLP_BASE_BYTES, tx->header_bytes - SLP_BASE_BYTES},
		{tx->piece[0], tx->piece_bytes[0]},
		{tx->piece[1], tx->piece_bytes[1]},
	};
	struct slp_sealing how;

	/* A number is a nonce: it seals once, whatever becomes of it. */
	if (!tx->sealed || tx->number <= s->keys.last_sealed || pieces > SLP_MOST_PIECES)
		return 0;
	s->keys.last_sealed = tx->number;
	if (s->keys.epoch[slot] != epoch && !derive(s, true, slot, epoch))
		return 0;
	for (i = 0; tx->from_memory && i < pieces; ++i)
		plain[count++] = memory[i];
	for (i = 0, bytes = 0; i < count; ++i)
		bytes += plain[i].bytes;
	memcpy(frame, tx->header, SLP_BASE_BYTES);
	describe(s, true, slot, tx->number, frame, &how);
	if (!s->config.cipher->seal(s->config.cipher_user, &how, plain, count, frame + SLP_BASE_BYTES))
		return 0;
	slp_stamp_base(frame);
	return SLP_BASE_BYTES + bytes + SLP_TAG_BYTES;
}

/* ---- opening */

/* The slot that has, or now gets, the key of an epoch. SLP_KEY_SLOTS: none. */
static uint32_t slot_to_open(struct slp_session *s, uint64_t epoch)
{
	struct slp_keys *keys = &s->keys;
	uint32_t i, spare = keys->order[SLP_OPEN_SLOTS - 1];

	for (i = SLP_SEAL_SLOTS; i < SLP_KEY_SLOTS; ++i)
		if (keys->epoch[i] == epoch)
			return i;
	return derive(s, false, spare, epoch) ? spare : SLP_KEY_SLOTS;
}

/* The key of the spare slot has opened a frame of a younger epoch: it is the one in use now. */
static void use_slot(struct slp_session *s, uint32_t slot)
{
	struct slp_keys *keys = &s->keys;
	uint64_t now = keys->epoch[keys->order[0]];

	if (slot != keys->order[SLP_OPEN_SLOTS - 1] || (now != SLP_NEVER && keys->epoch[slot] < now))
		return;
	keys->order[2] = keys->order[1];
	keys->order[1] = keys->order[0];
	keys->order[0] = (uint8_t)slot;
}

enum slp_drop slp_open_frame(struct slp_session *s, const struct slp_frame *frame, const struct slp_base *base,
			     uint64_t number)
{
	uint32_t bytes = slp_extension_bytes(base->type) + base->payload_bytes, slot;
	struct slp_sealing how;

	if ((base->flags & SLP_FLAG_PHASE) != slp_phase(s, number))
		return SLP_DROP_FORGED;
	slot = slot_to_open(s, number >> s->keys.bits);
	if (slot == SLP_KEY_SLOTS)
		return SLP_DROP_ROOM;
	describe(s, false, slot, number, frame->data, &how);
	if (!s->config.cipher->open(s->config.cipher_user, &how, frame, SLP_BASE_BYTES, bytes))
		return SLP_DROP_FORGED;
	use_slot(s, slot);
	slp_window_add(&s->keys.opened, number);
	return SLP_TAKEN;
}
