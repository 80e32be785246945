// SPDX-License-Identifier: GPL-2.0
/* The module comes and goes. Each step that init took, exit undoes, in reverse. */
#include <linux/module.h>
#include <linux/rtnetlink.h>

#include "sluice_main.h"
#include "sluice_sock.h"

static int __net_init net_init(struct net *net)
{
	struct sluice_net *sn = sluice_net_of(net);
	int i, error;

	spin_lock_init(&sn->lock);
	for (i = 0; i < SLUICE_PORT_BUCKETS; ++i)
		INIT_HLIST_HEAD(&sn->ports[i]);
	atomic_set(&sn->refusals, 0);
	sn->refusals_since = jiffies;
	sn->counters = alloc_percpu(struct sluice_counters);
	if (!sn->counters)
		return -ENOMEM;
	error = sluice_proc_init(net);
	if (error)
		goto err_free_counters;
	error = sluice_sysctl_init(net);
	if (error)
		goto err_remove_proc;
	return 0;

err_remove_proc:
	sluice_proc_exit(net);
err_free_counters:
	free_percpu(sn->counters);
	return error;
}

/* No socket is left: each holds the namespace until it is freed. */
static void __net_exit net_exit(struct net *net)
{
	struct sluice_net *sn = sluice_net_of(net);
	int i;

	sluice_sysctl_exit(net);
	sluice_proc_exit(net);
	for (i = 0; i < SLUICE_PORT_BUCKETS; ++i)
		WARN_ON_ONCE(!hlist_empty(&sn->ports[i]));
	free_percpu(sn->counters);
}

static struct pernet_operations net_ops = {
	.init = net_init,
	.exit = net_exit,
	.id = &sluice_net_id,
	.size = sizeof(struct sluice_net),
};

static struct packet_type packets = {.func = sluice_receive};

static int on_netdevice(struct notifier_block *block, unsigned long event, void *pointer)
{
	struct net_device *dev = netdev_notifier_info_to_dev(pointer);

	if (event == NETDEV_UNREGISTER || event == NETDEV_CHANGEADDR)
		sluice_ports_cut(dev_net(dev), dev->ifindex, event == NETDEV_UNREGISTER);
	return NOTIFY_DONE;
}

static struct notifier_block netdevices = {.notifier_call = on_netdevice};

/* What init opened: /dev/sluice may be missing. */
static bool door_is_open;

/* From here on there may be sockets, and no way back: a door that does not open while the other
 * does is done without. */
static int __init open_doors(void)
{
	int error;

	sluice_family_ops.family = sluice_family;
	error = SLUICE_STEP(sock_register(&sluice_family_ops));
	if (error) {
		pr_info("sluice: socket family %d is another protocol's; load with family=NUMBER, one that is free, as 18, 22 or 25\n", sluice_family);
		return error;
	}
	door_is_open = SLUICE_STEP(sluice_door_open()) == 0;
	return 0;
}

static int __init sluice_init(void)
{
	int error;

	if (sluice_family <= AF_UNSPEC || sluice_family >= AF_MAX || sluice_ethertype_number < ETH_P_802_3_MIN)
		return -EINVAL;
	sluice_workqueue = sluice_selftest_refuses() ? NULL : alloc_workqueue("sluice", 0, 0);
	if (!sluice_workqueue)
		return -ENOMEM;
	error = -ENOMEM;
	sluice_memory_workqueue = sluice_selftest_refuses() ? NULL : alloc_workqueue("sluice_memory", WQ_UNBOUND, 0);
	if (!sluice_memory_workqueue)
		goto err_destroy_workqueue;
	error = SLUICE_STEP(register_pernet_subsys(&net_ops));
	if (error)
		goto err_destroy_memory_workqueue;
	/* No cache of its own: 6.1 loses that cache's name if its place in sysfs fails. */
	error = SLUICE_STEP(proto_register(&sluice_proto, 0));
	if (error)
		goto err_unregister_pernet;
	error = SLUICE_STEP(register_netdevice_notifier(&netdevices));
	if (error)
		goto err_unregister_proto;
	packets.type = htons(sluice_ethertype_number);
	dev_add_pack(&packets);
	error = open_doors();
	if (error)
		goto err_remove_pack;
	sluice_selftest();
	return 0;

err_remove_pack:
	dev_remove_pack(&packets);
	unregister_netdevice_notifier(&netdevices);
err_unregister_proto:
	proto_unregister(&sluice_proto);
err_unregister_pernet:
	unregister_pernet_subsys(&net_ops);
err_destroy_memory_workqueue:
	destroy_workqueue(sluice_memory_workqueue);
err_destroy_workqueue:
	destroy_workqueue(sluice_workqueue);
	return error;
}

/* No socket is left: each holds the module. One that was just freed may still be in the last
 * lines of its work, which destroy_workqueue() waits for; its memory went by RCU, in the
 * kernel's own code, before the module's count fell. */
static void __exit sluice_exit(void)
{
	if (door_is_open)
		sluice_door_close();
	sock_unregister(sluice_family);
	dev_remove_pack(&packets);
	unregister_netdevice_notifier(&netdevices);
	destroy_workqueue(sluice_memory_workqueue);
	destroy_workqueue(sluice_workqueue);
	sluice_loans_end();
	proto_unregister(&sluice_proto);
	unregister_pernet_subsys(&net_ops);
}

module_init(sluice_init);
module_exit(sluice_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("SLP: reliable messages and direct placement over Ethernet frames");
/* No alias of the family: socket() would load the module for any user. It is there when an administrator has loaded it. */
