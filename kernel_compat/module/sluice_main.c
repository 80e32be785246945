// SPDX-License-Identifier: GPL-2.0
/* The module comes and goes. Each step that init took, exit undoes, in reverse. */
#include <linux/module.h>
#include <linux/rtnetlink.h>

#include "sluice_main.h"
#include "sluice_sock.h"

static int family = SLUICE_FAMILY;
module_param(family, int, 0444);
MODULE_PARM_DESC(family, "number of the socket family, one that is free (default 19)");

unsigned short sluice_ethertype_number = SLP_ETHERTYPE;
module_param_named(ethertype, sluice_ethertype_number, ushort, 0444);
MODULE_PARM_DESC(ethertype, "EtherType of the frames (default 0x88b5)");

unsigned int sluice_max_sessions = 4096;
module_param_named(max_sessions, sluice_max_sessions, uint, 0644);
MODULE_PARM_DESC(max_sessions, "sessions of the whole machine, some 60 KiB each (default 4096)");

unsigned int sluice_max_sessions_per_user = 1024;
module_param_named(max_sessions_per_user, sluice_max_sessions_per_user, uint, 0644);
MODULE_PARM_DESC(max_sessions_per_user, "of these, of one user who is not root (default 1024)");

unsigned int sluice_max_sessions_per_peer = 1024;
module_param_named(max_sessions_per_peer, sluice_max_sessions_per_peer, uint, 0644);
MODULE_PARM_DESC(max_sessions_per_peer, "of these, that one MAC address of a network namespace has begun (default 1024)");

struct workqueue_struct *sluice_workqueue, *sluice_memory_workqueue;
extern struct pernet_operations sluice_net_ops;

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

	sluice_family_ops.family = family;
	error = SLUICE_STEP(sock_register(&sluice_family_ops));
	if (error) {
		pr_info("sluice: socket family %d is another protocol's; load with family=NUMBER, one that is free, as 18, 22 or 25\n", family);
		return error;
	}
	door_is_open = SLUICE_STEP(sluice_door_open()) == 0;
	return 0;
}

static int __init sluice_init(void)
{
	int error;

	if (family <= AF_UNSPEC || family >= AF_MAX || sluice_ethertype_number < ETH_P_802_3_MIN)
		return -EINVAL;
	sluice_workqueue = sluice_selftest_refuses() ? NULL : alloc_workqueue("sluice", 0, 0);
	if (!sluice_workqueue)
		return -ENOMEM;
	error = -ENOMEM;
	sluice_memory_workqueue = sluice_selftest_refuses() ? NULL : alloc_workqueue("sluice_memory", WQ_UNBOUND, 0);
	if (!sluice_memory_workqueue)
		goto err_destroy_workqueue;
	error = SLUICE_STEP(register_pernet_subsys(&sluice_net_ops));
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
	unregister_pernet_subsys(&sluice_net_ops);
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
	sock_unregister(family);
	dev_remove_pack(&packets);
	unregister_netdevice_notifier(&netdevices);
	destroy_workqueue(sluice_memory_workqueue);
	destroy_workqueue(sluice_workqueue);
	sluice_loans_end();
	proto_unregister(&sluice_proto);
	unregister_pernet_subsys(&sluice_net_ops);
}

module_init(sluice_init);
module_exit(sluice_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("SLP: reliable messages and direct placement over Ethernet frames");
/* No alias of the family: socket() would load the module for any user. It is there when an administrator has loaded it. */
