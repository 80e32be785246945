// SPDX-License-Identifier: GPL-2.0
/* How many sessions there may be, of the machine, of one user, and of one MAC address that begins them, so that
 * whoever takes all that he can get leaves some to others. A session is some 60 KiB of the kernel's memory. Addresses can
 * be forged: then the limits of user and machine hold. */
#include <linux/hash.h>
#include <linux/jhash.h>
#include <linux/slab.h>

#include "sluice_sock.h"

unsigned int sluice_max_sessions = 4096;
module_param_named(max_sessions, sluice_max_sessions, uint, 0644);
MODULE_PARM_DESC(max_sessions, "sessions of the whole machine, some 60 KiB each (default 4096)");

unsigned int sluice_max_sessions_per_user = 1024;
module_param_named(max_sessions_per_user, sluice_max_sessions_per_user, uint, 0644);
MODULE_PARM_DESC(max_sessions_per_user, "of these, of one user who is not root (default 1024)");

unsigned int sluice_max_sessions_per_peer = 1024;
module_param_named(max_sessions_per_peer, sluice_max_sessions_per_peer, uint, 0644);
MODULE_PARM_DESC(max_sessions_per_peer, "of these, that one MAC address of a network namespace has begun (default 1024)");

#define SLUICE_SHARE_BUCKETS 256

/* Of a user, or of a MAC address in a network namespace. */
struct name {
	const struct net *net; /* null: a user */
	kuid_t uid;
	u8 mac[ETH_ALEN];
};

struct share {
	struct hlist_node node;
	struct name name;
	unsigned int sessions;
};

static DEFINE_SPINLOCK(lock);
static struct hlist_head shares[SLUICE_SHARE_BUCKETS];
static unsigned int total;

static struct hlist_head *bucket_of(const struct name *name)
{
	u32 hash = name->net ? jhash(name->mac, ETH_ALEN, hash_ptr(name->net, 32)) : __kuid_val(name->uid);

	return &shares[hash_32(hash, ilog2(SLUICE_SHARE_BUCKETS))];
}

static bool same(const struct name *a, const struct name *b)
{
	if (a->net || b->net)
		return a->net == b->net && ether_addr_equal(a->mac, b->mac);
	return uid_eq(a->uid, b->uid);
}

static struct share *find(const struct name *name)
{
	struct share *share;

	hlist_for_each_entry(share, bucket_of(name), node)
		if (same(&share->name, name))
			return share;
	return NULL;
}

/* That which is there, or `*fresh`. */
static struct share *find_or_add(const struct name *name, struct share **fresh)
{
	struct share *share = find(name);

	if (share)
		return share;
	share = *fresh;
	*fresh = NULL;
	share->name = *name;
	hlist_add_head(&share->node, bucket_of(name));
	return share;
}

/* The system's root has no share, but the whole. */
static bool exceeded(const struct share *user, const struct share *caller)
{
	u32 most = READ_ONCE(sluice_max_sessions), most_of_user = READ_ONCE(sluice_max_sessions_per_user);
	bool limited = !uid_eq(user->name.uid, GLOBAL_ROOT_UID);

	if (total >= most || (limited && user->sessions >= most_of_user))
		return true;
	if (!caller)
		return false;
	return sluice_crowded(total, most, caller->sessions, READ_ONCE(sluice_max_sessions_per_peer)) ||
	       (limited && sluice_crowded(user->sessions, most_of_user, caller->sessions, most_of_user));
}

static void forget_if_idle(struct share *share)
{
	if (!share || share->sessions)
		return;
	hlist_del(&share->node);
	kfree(share);
}

static struct name user_name(kuid_t uid)
{
	return (struct name){.uid = uid};
}

static struct name caller_name(const struct net *net, const u8 *mac)
{
	struct name name = {.net = net, .uid = INVALID_UID};

	ether_addr_copy(name.mac, mac);
	return name;
}

bool sluice_quota_take(kuid_t uid, const struct net *net, const u8 *mac)
{
	struct share *fresh[2] = {kzalloc(sizeof(**fresh), GFP_KERNEL_ACCOUNT), kzalloc(sizeof(**fresh), GFP_KERNEL_ACCOUNT)};
	struct share *user, *caller = NULL;
	struct name name = user_name(uid);
	bool taken = false;

	if (!fresh[0] || !fresh[1])
		goto out;
	spin_lock(&lock);
	user = find_or_add(&name, &fresh[0]);
	if (net) {
		name = caller_name(net, mac);
		caller = find_or_add(&name, &fresh[1]);
	}
	if (!exceeded(user, caller)) {
		++user->sessions;
		++total;
		if (caller)
			++caller->sessions;
		taken = true;
	}
	forget_if_idle(user);
	forget_if_idle(caller);
	spin_unlock(&lock);
out:
	kfree(fresh[0]);
	kfree(fresh[1]);
	return taken;
}

void sluice_quota_give_back(kuid_t uid, const struct net *net, const u8 *mac)
{
	struct name name = user_name(uid);
	struct share *share;

	spin_lock(&lock);
	share = find(&name);
	--share->sessions;
	--total;
	forget_if_idle(share);
	if (net) {
		name = caller_name(net, mac);
		share = find(&name);
		--share->sessions;
		forget_if_idle(share);
	}
	spin_unlock(&lock);
}
