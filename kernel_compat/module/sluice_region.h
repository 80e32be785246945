/* SPDX-License-Identifier: GPL-2.0 */
/* Memory of a process: registered, pinned, watched. Knows no session and no frame but as bytes. */
#ifndef SLUICE_MODULE_SLUICE_REGION_H_
#define SLUICE_MODULE_SLUICE_REGION_H_

#include "sluice.h"

struct sluice_sock;

enum sluice_region_state {
	SLUICE_REGION_GOOD,
	SLUICE_REGION_DOUBTED, /* the process is changing its map: not touched until it was looked at */
	SLUICE_REGION_GONE,    /* the process has other pages there, or none: nothing is pinned any more */
};

/* Pages that are pinned, and counted, as long as the region or a frame that carries some of them lives. */
struct sluice_pins {
	refcount_t references; /* of the region and of loans */
	struct page **pages;
	unsigned long pinned, counted;
	struct mm_struct *mm; /* whose pinned_vm they are counted in */
	/* A process ends, and frames of its pages need not: they count as the user's, too, as those of MSG_ZEROCOPY do. Beyond
	 * that limit none are lent. */
	struct mmpin user;
	bool may_lend;
	bool used; /* by a region: peers may have written to them */
	struct sluice_sock *owner; /* of `work`, while it waits */
	struct work_struct work;
};

/* Memory of a process, registered. */
struct sluice_region {
	struct mmu_interval_notifier notifier; /* tells of changes to the process's map */
	struct sluice_sock *owner;
	struct mm_struct *mm; /* held */
	struct sluice_pins *pins; /* null: gone */
	struct page **pages;	  /* the pins' */
	unsigned long address; /* of the first page */
	unsigned long count;
	u64 length;
	u32 first; /* byte of the first page where it begins */
	/* Under the socket's lock: */
	u32 uses; /* spans */
	struct list_head spans; /* of these, those that are not over */
	u32 lent; /* of these, spans that are over but for frames that devices hold */
	bool listed; /* in the socket's table */
	enum sluice_region_state state;
	unsigned long doubt_first, doubt_end; /* pages of SLUICE_REGION_DOUBTED */
};

/* ---- sluice_region.c */

int sluice_region_add(struct sluice_sock *ss, struct sluice_register *request);
int sluice_region_remove(struct sluice_sock *ss, u32 index);
void sluice_regions_free(struct sluice_sock *ss);

/* ---- sluice_watch.c */

/* From here on changes to the process's map are noticed; before a page is pinned. Blocks. */
int sluice_region_watch(struct sluice_region *region);
void sluice_region_unwatch(struct sluice_region *region);
/* Its pages are the system's again; what is left of it is its place in the table. Blocks. */
void sluice_region_release(struct sluice_region *region);
/* Decides about a region in doubt. It is nobody else's to free. Blocks, but for no other process's map. False: that
 * is locked, and it is still in doubt. */
bool sluice_region_settle(struct sluice_region *region);
void sluice_memory_work(struct work_struct *work);

/* ---- sluice_pages.c */

/* Room for so many, with nothing pinned yet; null: RLIMIT_MEMLOCK, or no memory. */
struct sluice_pins *sluice_pins_new(unsigned long count);
/* -EOPNOTSUPP: a file's. The pages so far stay pinned. Blocks. */
int sluice_pins_fill(struct sluice_pins *pins, unsigned long address);
/* The region's own reference. Blocks. */
void sluice_pins_give_up(struct sluice_region *region);
/* In any context; takes over a reference to `ss`, which lasts until the pages are the system's again, if they are now. */
void sluice_pins_put_later(struct sluice_pins *pins, struct sluice_sock *ss);
/* `at`: of the frame, which may be in several pieces. */
void sluice_region_write(struct sluice_region *region, u64 offset, const struct sk_buff *skb, u32 at, u32 bytes);
void sluice_region_read(struct sluice_region *region, u64 offset, u8 *to, u32 bytes);
u32 sluice_region_crc(const struct sluice_region *region, u64 offset, u32 bytes);

#endif /* SLUICE_MODULE_SLUICE_REGION_H_ */
