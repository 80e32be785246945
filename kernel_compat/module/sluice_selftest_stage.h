/* SPDX-License-Identifier: GPL-2.0 */
/* What the module's tests of itself share: what they expect, an interface whose frames are kept, and sockets. */
#ifndef SLUICE_MODULE_SLUICE_SELFTEST_STAGE_H_
#define SLUICE_MODULE_SLUICE_SELFTEST_STAGE_H_

#include "sluice_sock.h"

/* ---- sluice_selftest_stage.c */

/* Whether all was so since it was last set. */
extern bool sluice_selftest_good;
void sluice_selftest_expect(bool condition, const char *what, const char *file, int line);
#define EXPECT(condition) sluice_selftest_expect(condition, #condition, kbasename(__FILE__), __LINE__)

/* Frames of the module that leave by it are kept. 0 or an error. */
extern struct net_device *sluice_selftest_interface;
int sluice_selftest_begin(void);
void sluice_selftest_end(void);

/* A frame that is here, or comes while we wait; a hang is ended. The caller frees it. */
struct sk_buff *sluice_selftest_frame(void);
void sluice_selftest_drop_frames(void);

/* Where nobody answers. */
extern const struct sluice_place sluice_selftest_nobody;

struct sluice_sock *sluice_selftest_open(struct socket **sock);
/* Closes it, looks at what is left, and lets go. */
void sluice_selftest_close(struct socket *sock, struct sluice_sock *ss);

/* ---- sluice_selftest_memory.c: the tests of registered memory */

void sluice_selftest_pinned_memory(void);
/* While the work queue is kept from looking. */
void sluice_selftest_doubted_memory(void);
/* Removed, or left to close, while somebody looks at it. */
void sluice_selftest_leaving_memory(void);
/* While another keeps the map of the process whose memory it is. */
void sluice_selftest_locked_map(void);

#endif /* SLUICE_MODULE_SLUICE_SELFTEST_STAGE_H_ */
