/* SPDX-License-Identifier: GPL-2.0 */
/* What differs between the kernels that the module is built for, 6.1 to 6.12, each under one name that
 * the module's files use. They know no version; nothing else is here. */
#ifndef SLUICE_COMPAT_COMPAT_H_
#define SLUICE_COMPAT_COMPAT_H_

#include <linux/skbuff.h>
#include <linux/sysctl.h>
#include <linux/version.h>
#include <net/net_namespace.h>

/* A table that ends with an entry of zeros, which newer kernels do without: `entries` does not count it. */
static inline struct ctl_table_header *sluice_sysctl_register(struct net *net, const char *path, struct ctl_table *table,
							       size_t entries)
{
#ifdef register_net_sysctl /* 6.6: a macro that counts */
	return register_net_sysctl_sz(net, path, table, entries);
#else
	return register_net_sysctl(net, path, table);
#endif
}

/* How the kernel says that a frame has let go of its pages: SLUICE_UBUF_DONE(name, function) defines what
 * sluice_ubuf_init(ubuf, name) sets. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
#define SLUICE_UBUF_DONE(name, function) static const struct ubuf_info_ops name = {.complete = (function)}
#define sluice_ubuf_init(ubuf, name) ((ubuf)->ops = &(name))
#else
typedef void (*sluice_ubuf_done)(struct sk_buff *skb, struct ubuf_info *ubuf, bool as_it_was);
#define SLUICE_UBUF_DONE(name, function) static const sluice_ubuf_done name = (function)
#define sluice_ubuf_init(ubuf, name) ((ubuf)->callback = (name))
#endif

#endif /* SLUICE_COMPAT_COMPAT_H_ */
