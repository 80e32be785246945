// SPDX-License-Identifier: GPL-2.0
/* How many sessions there may be, of the machine and of one user, so that whoever takes all
 * that he can get leaves some to others. A session is some 60 KiB of the kernel's memory. */
#include <linux/hash.h>
#include <linux/slab.h>

#include "sluice.h"

#define SLUICE_USER_BUCKETS 64

struct share {
	struct hlist_node node;
	kuid_t uid;
	unsigned int sessions;
};

static DEFINE_SPINLOCK(lock);
static struct hlist_head users[SLUICE_USER_BUCKETS];
static unsigned int total;

static struct hlist_head *bucket_of(kuid_t uid)
{
	return &users[hash_32(__kuid_val(uid), ilog2(SLUICE_USER_BUCKETS))];
}

static struct share *find(kuid_t uid)
{
	struct share *share;

	hlist_for_each_entry(share, bucket_of(uid), node)
		if (uid_eq(share->uid, uid))
			return share;
	return NULL;
}

/* The system's root has no share, but the whole. */
static bool exceeded(const struct share *share)
{
	return total >= READ_ONCE(sluice_max_sessions) ||
	       (!uid_eq(share->uid, GLOBAL_ROOT_UID) && share->sessions >= READ_ONCE(sluice_max_sessions_per_user));
}

static void forget_if_idle(struct share *share)
{
	if (share->sessions)
		return;
	hlist_del(&share->node);
	kfree(share);
}

/* Blocks: for memory. */
bool sluice_quota_take(kuid_t uid)
{
	struct share *fresh = kzalloc(sizeof(*fresh), GFP_KERNEL_ACCOUNT), *share;
	bool taken = false;

	if (!fresh)
		return false;
	spin_lock(&lock);
	share = find(uid);
	if (!share) {
		share = fresh;
		fresh = NULL;
		share->uid = uid;
		hlist_add_head(&share->node, bucket_of(uid));
	}
	if (!exceeded(share)) {
		++share->sessions;
		++total;
		taken = true;
	}
	forget_if_idle(share);
	spin_unlock(&lock);
	kfree(fresh);
	return taken;
}

void sluice_quota_give_back(kuid_t uid)
{
	struct share *share;

	spin_lock(&lock);
	share = find(uid);
	--share->sessions;
	--total;
	forget_if_idle(share);
	spin_unlock(&lock);
}
