// SPDX-License-Identifier: GPL-2.0
/* Addresses that processes pass: checked, and bound to a socket's port. */
#include <linux/moduleparam.h>

#include "sluice_sock.h"

int sluice_family = SLUICE_FAMILY;
module_param_named(family, sluice_family, int, 0444);
MODULE_PARM_DESC(family, "number of the socket family, one that is free (default 19)");

int sluice_address_read(const struct sockaddr *address, int length, struct sockaddr_sluice *out)
{
	if (length < (int)sizeof(*out))
		return -EINVAL;
	memcpy(out, address, sizeof(*out));
	return out->family == sluice_family ? 0 : -EAFNOSUPPORT;
}

void sluice_address_fill(struct sluice_sock *ss, struct sockaddr_sluice *out, const u8 *mac, u16 port)
{
	memset(out, 0, sizeof(*out));
	out->family = sluice_family;
	out->ifindex = ss->ifindex;
	out->port = port;
	ether_addr_copy(out->mac, mac);
}

int sluice_bind(struct sluice_sock *ss, u32 ifindex, u16 port)
{
	int error = sluice_port_take(ss, ifindex, port);

	if (!error)
		WRITE_ONCE(ss->bound, true);
	return error;
}

/* The peer that an address names, on a port that is taken now if none was. */
int sluice_aim(struct sluice_sock *ss, const struct sockaddr_sluice *at, struct sluice_place *place)
{
	int error = 0;

	if (!is_valid_ether_addr(at->mac) || at->port == 0)
		return -EINVAL;
	lock_sock(&ss->sk);
	if (!ss->bound)
		error = sluice_bind(ss, at->ifindex, 0);
	else if (at->ifindex && at->ifindex != ss->ifindex)
		error = -EINVAL;
	release_sock(&ss->sk);
	ether_addr_copy(place->mac, at->mac);
	place->port = at->port;
	return READ_ONCE(ss->gone) ? -ENODEV : error;
}
