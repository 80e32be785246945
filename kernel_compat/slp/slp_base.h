/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
 * The few things that SLP's core takes from where it is built: integer types, memcpy and
 * memset. Nothing else of a C library, and no floating point. 64-bit machines. */
#ifndef SLUICE_SLP_BASE_H_
#define SLUICE_SLP_BASE_H_

#ifdef __KERNEL__
#include <linux/limits.h>
#include <linux/string.h>
#include <linux/types.h>
#ifndef UINT64_MAX
#define UINT64_MAX U64_MAX
#endif
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

static inline uint16_t slp_load16(const uint8_t *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t slp_load32(const uint8_t *p)
{
	return slp_load16(p) | (uint32_t)slp_load16(p + 2) << 16;
}

static inline uint64_t slp_load64(const uint8_t *p)
{
	return slp_load32(p) | (uint64_t)slp_load32(p + 4) << 32;
}

static inline void slp_store16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)v;
	p[1] = (uint8_t)(v >> 8);
}

static inline void slp_store32(uint8_t *p, uint32_t v)
{
	slp_store16(p, (uint16_t)v);
	slp_store16(p + 2, (uint16_t)(v >> 16));
}

static inline void slp_store64(uint8_t *p, uint64_t v)
{
	slp_store32(p, (uint32_t)v);
	slp_store32(p + 4, (uint32_t)(v >> 32));
}

static inline uint64_t slp_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t slp_max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* CRC32C (Castagnoli; RFC 3720, B.4), continued from `crc`; 0 to begin. */
uint32_t slp_crc32c(uint32_t crc, const void *data, size_t bytes);
/* The same on every machine. */
uint32_t slp_crc32c_by_table(uint32_t crc, const void *data, size_t bytes);

/* SipHash-2-4 (Aumasson and Bernstein, 2012) of `bytes` bytes under a key of 16. */
uint64_t slp_siphash(const uint8_t key[16], const void *data, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif /* SLUICE_SLP_BASE_H_ */
