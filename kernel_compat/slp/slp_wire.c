// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Bytes to numbers and back. */
#include "slp_wire.h"

const char *const slp_drop_names[SLP_DROPS] = {
	"taken",       "runt",	   "version",  "type",	 "flags",  "length",	 "header_crc",
	"payload_crc", "session",  "state",    "unsealed", "forged", "repeated", "number",
	"ack",	       "content",  "transfer", "range",	 "room",
};

void slp_copy_base(uint8_t out[SLP_BASE_BYTES], const uint8_t *frame)
{
	memcpy(out, frame, SLP_BASE_BYTES);
	out[1] &= (uint8_t)~SLP_FLAG_CE;
	memset(out + 28, 0, 4);
}

static uint32_t header_crc(const uint8_t *frame, uint32_t extension)
{
	uint8_t base[SLP_BASE_BYTES];

	slp_copy_base(base, frame);
	return slp_crc32c(slp_crc32c(0, base, SLP_BASE_BYTES), frame + SLP_BASE_BYTES, extension);
}

enum slp_drop slp_decode_base(const uint8_t *frame, size_t present, size_t bytes, struct slp_base *out)
{
	uint32_t extension, tag;

	if (bytes < SLP_BASE_BYTES || present < SLP_BASE_BYTES)
		return SLP_DROP_RUNT;
	if (frame[0] >> 5 != SLP_VERSION)
		return SLP_DROP_VERSION;
	out->type = frame[0] & 31;
	out->flags = frame[1];
	if (out->type == 0 || out->type >= SLP_TYPES)
		return SLP_DROP_TYPE;
	if (out->flags & ~SLP_FLAGS_KNOWN)
		return SLP_DROP_FLAGS;
	if (out->flags & SLP_FLAG_SEALED ? out->type <= SLP_NACK || (out->flags & SLP_FLAG_PCRC)
					 : out->flags & SLP_FLAG_PHASE)
		return SLP_DROP_FLAGS;
	extension = slp_extension_bytes(out->type);
	if (present < SLP_BASE_BYTES + extension)
		return SLP_DROP_RUNT;
	out->payload_bytes = slp_load16(frame + 6);
	tag = out->flags & SLP_FLAG_SEALED ? SLP_TAG_BYTES : 0;
	if (bytes < SLP_BASE_BYTES + extension + out->payload_bytes + tag)
		return SLP_DROP_LENGTH;
	/* A sealed frame's checksum covers what is sent: the extension as it is encrypted. */
	if (slp_load32(frame + 28) != header_crc(frame, extension))
		return SLP_DROP_HEADER_CRC;
	out->source_port = slp_load16(frame + 2);
	out->destination_port = slp_load16(frame + 4);
	out->connection = slp_load32(frame + 8);
	out->number = slp_load32(frame + 12);
	out->ack = slp_load32(frame + 16);
	out->ack_run = slp_load16(frame + 20);
	out->ack_age_us = slp_load16(frame + 22);
	out->credit_kib = slp_load16(frame + 24);
	out->ce_count = slp_load16(frame + 26);
	out->payload_crc = slp_load32(frame + 32);
	out->session = slp_load32(frame + 36);
	if (!(out->flags & SLP_FLAG_PCRC) && out->payload_crc != 0)
		return SLP_DROP_CONTENT;
	return SLP_TAKEN;
}

void slp_encode_base(uint8_t *frame, const struct slp_base *base)
{
	frame[0] = (uint8_t)(SLP_VERSION << 5 | base->type);
	frame[1] = base->flags;
	slp_store16(frame + 2, base->source_port);
	slp_store16(frame + 4, base->destination_port);
	slp_store16(frame + 6, base->payload_bytes);
	slp_store32(frame + 8, base->connection);
	slp_store32(frame + 12, base->number);
	slp_store32(frame + 16, base->ack);
	slp_store16(frame + 20, base->ack_run);
	slp_store16(frame + 22, base->ack_age_us);
	slp_store16(frame + 24, base->credit_kib);
	slp_store16(frame + 26, base->ce_count);
	slp_store32(frame + 32, base->payload_crc);
	slp_store32(frame + 36, base->session);
	slp_stamp_base(frame);
}

void slp_stamp_base(uint8_t *frame)
{
	slp_store32(frame + 28, header_crc(frame, slp_extension_bytes(frame[0] & 31)));
}

void slp_encode_hello(uint8_t *p, const struct slp_hello *hello)
{
	slp_store64(p, hello->nonce);
	slp_store64(p + 8, hello->peer_nonce);
	slp_store64(p + 16, hello->cookie);
	slp_store32(p + 24, hello->connection);
	slp_store16(p + 28, hello->min_version);
	slp_store16(p + 30, hello->max_version);
	slp_store16(p + 32, hello->capabilities);
	slp_store16(p + 34, hello->mtu);
	slp_store16(p + 36, hello->stream_kib);
	slp_store16(p + 38, hello->transfers);
	slp_store16(p + 40, hello->handles);
	slp_store16(p + 42, hello->ack_delay_us);
	p[44] = hello->epoch_bits;
	memset(p + 45, 0, 11);
	memcpy(p + 56, hello->salt, 16);
	memcpy(p + 72, hello->tag, 16);
}

void slp_decode_hello(const uint8_t *p, struct slp_hello *out)
{
	out->nonce = slp_load64(p);
	out->peer_nonce = slp_load64(p + 8);
	out->cookie = slp_load64(p + 16);
	out->connection = slp_load32(p + 24);
	out->min_version = slp_load16(p + 28);
	out->max_version = slp_load16(p + 30);
	out->capabilities = slp_load16(p + 32);
	out->mtu = slp_load16(p + 34);
	out->stream_kib = slp_load16(p + 36);
	out->transfers = slp_load16(p + 38);
	out->handles = slp_load16(p + 40);
	out->ack_delay_us = slp_load16(p + 42);
	out->epoch_bits = p[44];
	memcpy(out->salt, p + 56, 16);
	memcpy(out->tag, p + 72, 16);
}

static bool of_a_name(uint8_t c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

static bool all_zero(const uint8_t *p, size_t bytes)
{
	while (bytes > 0)
		if (p[--bytes] != 0)
			return false;
	return true;
}

bool slp_encode_find(uint8_t frame[SLP_FIND_FRAME], const struct slp_find *find)
{
	uint8_t *name = frame + SLP_BASE_BYTES + 8;
	uint32_t i;

	memset(frame, 0, SLP_FIND_FRAME);
	frame[0] = (uint8_t)(SLP_VERSION << 5 | find->type);
	slp_store16(frame + 2, find->source_port);
	slp_store16(frame + 4, find->destination_port);
	slp_store64(frame + SLP_BASE_BYTES, find->nonce);
	for (i = 0; i < SLP_NAME_BYTES && find->name[i]; ++i) {
		char c = find->name[i];

		name[i] = (uint8_t)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
		if (!of_a_name(name[i]))
			return false;
	}
	if (i == 0 || find->name[i])
		return false;
	slp_stamp_base(frame);
	return true;
}

enum slp_drop slp_decode_find(const uint8_t *frame, size_t present, size_t bytes, struct slp_find *out)
{
	const uint8_t *name = frame + SLP_BASE_BYTES + 8;
	uint32_t i = 0;

	if (bytes < SLP_BASE_BYTES || present < SLP_BASE_BYTES)
		return SLP_DROP_RUNT;
	if (frame[0] >> 5 != SLP_VERSION)
		return SLP_DROP_VERSION;
	out->type = frame[0] & 31;
	if (out->type != SLP_FIND && out->type != SLP_FOUND)
		return SLP_DROP_TYPE;
	if (frame[1] & ~SLP_FLAG_CE)
		return SLP_DROP_FLAGS;
	if (bytes < SLP_FIND_FRAME || present < SLP_FIND_FRAME)
		return SLP_DROP_RUNT;
	if (slp_load32(frame + 28) != header_crc(frame, SLP_FIND_BYTES))
		return SLP_DROP_HEADER_CRC;
	out->source_port = slp_load16(frame + 2);
	out->destination_port = slp_load16(frame + 4);
	out->nonce = slp_load64(frame + SLP_BASE_BYTES);
	memset(out->name, 0, sizeof(out->name));
	while (i < SLP_NAME_BYTES && of_a_name(name[i]))
		++i;
	if (i == 0 || !all_zero(name + i, SLP_NAME_BYTES - i) || !all_zero(frame + 6, 22) || !all_zero(frame + 32, 8))
		return SLP_DROP_CONTENT;
	if (out->nonce == 0 || out->source_port == 0 || (out->type == SLP_FOUND && out->destination_port == 0))
		return SLP_DROP_CONTENT;
	memcpy(out->name, name, i);
	return SLP_TAKEN;
}

uint64_t slp_expand_number(uint64_t expected, uint32_t low)
{
	uint64_t window = (uint64_t)1 << 32;
	uint64_t candidate = (expected & ~(window - 1)) | low;

	if (candidate + window / 2 <= expected && candidate + window > candidate)
		return candidate + window;
	if (candidate > expected + window / 2 && candidate >= window)
		return candidate - window;
	return candidate;
}
