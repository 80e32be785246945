/* SPDX-License-Identifier: GPL-2.0 */
/* Coming and going of the module: the other door, and tests of its own in debug builds. */
#ifndef SLUICE_MODULE_SLUICE_MAIN_H_
#define SLUICE_MODULE_SLUICE_MAIN_H_

#include "sluice.h"

/* ---- sluice_door.c */

int sluice_door_open(void);
void sluice_door_close(void);

/* ---- sluice_selftest.c, in debug builds */

#ifdef SLUICE_SELFTEST
int sluice_selftest_refuses(void);
void sluice_selftest(void);
#else
static inline int sluice_selftest_refuses(void)
{
	return 0;
}
static inline void sluice_selftest(void)
{
}
#endif
/* A step of loading, which a debug build may be told to refuse. */
#define SLUICE_STEP(call) (sluice_selftest_refuses() ?: (call))

#endif /* SLUICE_MODULE_SLUICE_MAIN_H_ */
