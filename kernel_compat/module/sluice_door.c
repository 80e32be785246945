// SPDX-License-Identifier: GPL-2.0
/* /dev/sluice: the other door to sockets, for processes that may not call socket() with the
 * family's number, and for kernels where it is not registered (family=0). Who may come in is
 * asked as for socket(), by the same function; behind it sockets are the same. */
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/net.h>
#include <linux/nsproxy.h>

#include "sluice.h"

/* As __sock_create() does it: the socket holds the module, which sock_release() lets go. */
static int make_socket(struct socket **out)
{
	struct socket *sock;
	int error = sock_create_lite(sluice_family_ops.family, SOCK_RDM, 0, &sock);

	if (error)
		return error;
	error = sluice_family_ops.create(current->nsproxy->net_ns, sock, 0, 0);
	if (error) {
		sock_release(sock); /* it has no operations, and so no module to let go */
		return error;
	}
	__module_get(THIS_MODULE);
	*out = sock;
	return 0;
}

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
	error = make_socket(&sock);
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
	.mode = 0666,
};

int sluice_door_open(void)
{
	return misc_register(&door);
}

void sluice_door_close(void)
{
	misc_deregister(&door);
}
