// SPDX-License-Identifier: GPL-2.0
/* /dev/sluice: the other door to sockets, for processes that may not call socket() with the
 * family's number and that an administrator has given the device. Security modules, the
 * capability and net.sluice.unprivileged are asked as socket() asks them, and behind it sockets
 * are the same. A seccomp filter that knows families sees an ioctl() only: therefore the device
 * is root's alone until its mode is changed. */
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/net.h>

#include "sluice_main.h"
#include "sluice_sock.h"

static long door_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct socket *sock;
	struct file *opened;
	int fd, error;

	if (command != SLUICE_SOCKET)
		return -ENOTTY;
	if (argument & ~(unsigned long)(SOCK_CLOEXEC | SOCK_NONBLOCK))
		return -EINVAL;
	fd = get_unused_fd_flags(argument);
	if (fd < 0)
		return fd;
	/* The user's socket, not the kernel's: sock_create_lite() and sock_create_kern() ask no security module. */
	error = sock_create(sluice_family, SOCK_RDM, 0, &sock);
	if (error)
		goto err_put_fd;
	opened = sock_alloc_file(sock, argument, NULL); /* releases the socket if it fails */
	if (IS_ERR(opened)) {
		error = PTR_ERR(opened);
		goto err_put_fd;
	}
	fd_install(fd, opened);
	return fd;

err_put_fd:
	put_unused_fd(fd);
	return error;
}

static const struct file_operations kDoorOps = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = door_ioctl,
	.compat_ioctl = door_ioctl, /* the argument is no pointer */
	.llseek = noop_llseek,
};

static struct miscdevice door = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "sluice",
	.fops = &kDoorOps,
	.mode = 0600,
};

int sluice_door_open(void)
{
	return misc_register(&door);
}

void sluice_door_close(void)
{
	misc_deregister(&door);
}
