// SPDX-License-Identifier: GPL-2.0
/* Who may open sockets in a network namespace: who has CAP_NET_RAW there, as for packet sockets, since
 * frames are made and read; and, where its administrator has set net.sluice.unprivileged, anybody. */
#include <linux/capability.h>
#include <linux/slab.h>

#include "sluice_net.h"

static const struct ctl_table kSysctls[] = {
	{
		.procname = "unprivileged",
		.maxlen = sizeof(u8),
		.mode = 0644,
		.proc_handler = proc_dou8vec_minmax,
		.extra1 = SYSCTL_ZERO,
		.extra2 = SYSCTL_ONE,
	},
	{},
};

bool sluice_may_open(const struct net *net)
{
	return READ_ONCE(sluice_net_of(net)->unprivileged) || ns_capable(net->user_ns, CAP_NET_RAW);
}

int __net_init sluice_sysctl_init(struct net *net)
{
	struct sluice_net *sn = sluice_net_of(net);

	/* Each namespace has its own, which names its own byte. */
	sn->sysctls = kmemdup(kSysctls, sizeof(kSysctls), GFP_KERNEL);
	if (!sn->sysctls)
		return -ENOMEM;
	sn->sysctls[0].data = &sn->unprivileged;
	sn->sysctl_header = sluice_sysctl_register(net, "net/sluice", sn->sysctls, ARRAY_SIZE(kSysctls) - 1);
	if (sn->sysctl_header)
		return 0;
	kfree(sn->sysctls);
	return -ENOMEM;
}

void __net_exit sluice_sysctl_exit(struct net *net)
{
	struct sluice_net *sn = sluice_net_of(net);

	unregister_net_sysctl_table(sn->sysctl_header);
	kfree(sn->sysctls);
}
