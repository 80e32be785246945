// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* CRC32C by the processor's instruction where there is one, else by eight table look-ups per
 * eight bytes; and SipHash-2-4. */
#include "slp_base.h"
#include "slp_crc_table.h"

uint32_t slp_crc32c_by_table(uint32_t crc, const void *data, size_t bytes)
{
	const uint8_t *p = data;

	crc = ~crc;
	for (; bytes >= 8; bytes -= 8, p += 8) {
		uint32_t low = crc ^ slp_load32(p);
		uint32_t high = slp_load32(p + 4);

		crc = slp_crc_table[7][low & 255] ^ slp_crc_table[6][low >> 8 & 255] ^
		      slp_crc_table[5][low >> 16 & 255] ^ slp_crc_table[4][low >> 24] ^
		      slp_crc_table[3][high & 255] ^ slp_crc_table[2][high >> 8 & 255] ^
		      slp_crc_table[1][high >> 16 & 255] ^ slp_crc_table[0][high >> 24];
	}
	for (; bytes > 0; --bytes, ++p)
		crc = crc >> 8 ^ slp_crc_table[0][(crc ^ *p) & 255];
	return ~crc;
}

/* A kernel has its own ways to choose by processor; there the table does. */
#if defined(__x86_64__) && !defined(__KERNEL__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t bytes)
{
	uint64_t state = ~crc;

	for (; bytes >= 8; bytes -= 8, p += 8)
		state = __builtin_ia32_crc32di(state, slp_load64(p));
	crc = (uint32_t)state;
	for (; bytes > 0; --bytes, ++p)
		crc = __builtin_ia32_crc32qi(crc, *p);
	return ~crc;
}

uint32_t slp_crc32c(uint32_t crc, const void *data, size_t bytes)
{
	if (__builtin_cpu_supports("sse4.2"))
		return by_instruction(crc, data, bytes);
	return slp_crc32c_by_table(crc, data, bytes);
}
#else
uint32_t slp_crc32c(uint32_t crc, const void *data, size_t bytes)
{
	return slp_crc32c_by_table(crc, data, bytes);
}
#endif

static uint64_t rotate(uint64_t v, unsigned int by)
{
	return v << by | v >> (64 - by);
}

static void sip_rounds(uint64_t v[4], int rounds)
{
	while (rounds-- > 0) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = rotate(v[1], 13) ^ v[0];
		v[3] = rotate(v[3], 16) ^ v[2];
		v[0] = rotate(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = rotate(v[1], 17) ^ v[2];
		v[3] = rotate(v[3], 21) ^ v[0];
		v[2] = rotate(v[2], 32);
	}
}

uint64_t slp_siphash(const uint8_t key[16], const void *data, size_t bytes)
{
	const uint8_t *p = data;
	uint64_t k0 = slp_load64(key), k1 = slp_load64(key + 8);
	uint64_t v[4] = {0x736f6d6570736575u ^ k0, 0x646f72616e646f6du ^ k1,
			 0x6c7967656e657261u ^ k0, 0x7465646279746573u ^ k1};
	uint64_t last = (uint64_t)(bytes & 255) << 56;
	size_t left = bytes, i;

	for (; left >= 8; left -= 8, p += 8) {
		uint64_t word = slp_load64(p);

		v[3] ^= word;
		sip_rounds(v, 2);
		v[0] ^= word;
	}
	for (i = 0; i < left; ++i)
		last |= (uint64_t)p[i] << (8 * i);
	v[3] ^= last;
	sip_rounds(v, 2);
	v[0] ^= last;
	v[2] ^= 0xff;
	sip_rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}
