/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR Apache-2.0 */
/* The kernel module's sockets as user space sees them: addresses, options, requests.
 * Knows neither the module's insides nor the library's. kernel_compat/README.md explains. */
#ifndef SLUICE_UAPI_SLUICE_H_
#define SLUICE_UAPI_SLUICE_H_

#include <linux/ioctl.h>
#include <linux/types.h>

/* socket(SLUICE_FAMILY, SOCK_RDM, 0), for who has CAP_NET_RAW in the network namespace, and for
 * everybody where net.sluice.unprivileged is 1; EPERM to others. The number is free in every kernel since Econet went
 * (Linux 3.5); the module's parameter `family` sets another, told by
 * /sys/module/sluice/parameters/family. */
#define SLUICE_FAMILY 19

/* A port of an interface. bind(): `mac` zero or the interface's own, `port` 0 for any that is
 * free from 32768 on. Ports under 1024 need CAP_NET_BIND_SERVICE. */
struct sockaddr_sluice {
	__u16 family;
	__u16 port; /* of this machine's byte order */
	__u32 ifindex;
	__u8 mac[6];
	__u8 zero[2];
};

/* Bytes of the largest message: SLP_MAX_MESSAGE. */
#define SLUICE_MAX_MESSAGE 5632
/* Peers of one socket at a time. */
#define SLUICE_MAX_PEERS 256

/* getsockopt() and setsockopt() at this level, each an int unless it says otherwise. */
#define SOL_SLUICE 0x534c
#define SLUICE_SPIN_US 1 /* recvmsg() polls so long before it sleeps: 0 (default) to 1000000 */
#define SLUICE_PEERS 2	 /* as many peers at most, 1 to SLUICE_MAX_PEERS (default 64) */
#define SLUICE_DEAD_MS 3 /* silence that ends a session made after this: 100 to 3600000 (default 3000) */
#define SLUICE_STATUS 4	 /* get only: struct sluice_status of the connected peer */
#define SLUICE_RING 5	 /* once: entries of the completion ring, a power of two up to SLUICE_MAX_RING */
#define SLUICE_MAX_RING 4096
/* get only, a __u64: bytes of memory of this socket that the kernel copied to send them, as often as it did and told; what went
 * from the process's own pages is not among them, nor what a driver copied that tells nobody (macsec, veth with XDP). */
#define SLUICE_COPIED_OUT 6
/* 1: sessions made after this ask their peer for CRC32C of payloads, which then both ends send and check (default 0). A
 * peer that asks gets them from the kernel in any case. Memory is then copied into frames, and read twice. */
#define SLUICE_CHECKSUMS 7
/* Of SLUICE_PEERS, sessions that one MAC address may begin: 1 to SLUICE_MAX_PEERS, or 0 (default): half of them. The last quarter is
 * for addresses that have next to none. */
#define SLUICE_PEERS_OF_ONE 8

struct sluice_status {
	__u32 state; /* enum slp_state */
	__u32 why;   /* enum slp_status */
	__u64 frames_sent, frames_received, bytes_sent, bytes_received;
	__u64 resent, probes, dropped;
	__u64 rtt_ns, window_bytes;
	__u32 mtu;
	__u32 zero;
};

/* ---- memory: ioctl()s. A peer that is all zero is the connected one. */

#define SLUICE_MAX_REGIONS 128
/* Pins the pages of [address, address + length), which the process can write to, and which are anonymous, shared
 * (memfd, /dev/shm) or huge: EOPNOTSUPP for those of files, of which a private mapping, or a copy, will do. As long as
 * the socket lives or until SLUICE_UNREGISTER. They count against RLIMIT_MEMLOCK, as those of
 * RDMA do. `region` comes back. If the process unmaps a page of it, puts another in its place, or
 * ends, all of the region is gone: unpinned, peers are refused, what is under way ends with
 * SLUICE_MEMORY_GONE, and calls that name it get EFAULT. Its number is taken until SLUICE_UNREGISTER. */
struct sluice_register {
	__u64 address, length;
	__u32 region;
	__u32 zero;
};

#define SLUICE_MAY_READ 1
#define SLUICE_MAY_WRITE 2
/* Where the first byte of a handle may be, for the peer: up to here. */
#define SLUICE_MAX_BASE ((1ull << 62) - 1)
/* Lets a peer reach part of a region; `handle` comes back, and names it to that peer alone. For the peer the part begins at `base` of
 * the handle. Drawn at random, up to SLUICE_MAX_BASE, it is what a peer cannot guess that was not told. */
struct sluice_open {
	struct sockaddr_sluice peer;
	__u64 user_data; /* of the completions of notices */
	__u64 offset, length;
	__u32 region;
	__u32 rights;
	__u32 handle;
	__u32 zero;
	__u64 base;
};

struct sluice_close {
	struct sockaddr_sluice peer;
	__u32 handle;
	__u32 zero;
};

#define SLUICE_PULL 1	     /* the peer's bytes come here */
#define SLUICE_PUSH 2	     /* ours go there */
#define SLUICE_PUSH_NOTICE 3 /* and the peer gets a completion with `notice` */
struct sluice_transfer {
	struct sockaddr_sluice peer;
	__u64 user_data;     /* of the completion; names it to SLUICE_CANCEL */
	__u64 offset, length; /* in our region */
	__u64 peer_offset;   /* in the peer's handle */
	__u32 region;
	__u32 handle;	     /* the peer's */
	__u32 kind;
	__u32 notice;
};

#define SLUICE_REGISTER _IOWR(0xb5, 1, struct sluice_register)
/* When it, SLUICE_CLOSE or a completion has come, nothing of that memory is sent any more, unless a device or a queue has kept
 * frames for ten seconds: then the session with that peer ends. EBUSY: a handle or a transfer is using it. */
#define SLUICE_UNREGISTER _IOW(0xb5, 2, __u32)
#define SLUICE_OPEN _IOWR(0xb5, 3, struct sluice_open)
#define SLUICE_CLOSE _IOW(0xb5, 4, struct sluice_close) /* when it returns, the peer does not reach it */
#define SLUICE_TRANSFER _IOW(0xb5, 5, struct sluice_transfer) /* EAGAIN: wait for a completion */
#define SLUICE_CANCEL _IOW(0xb5, 6, __u64) /* by user_data; its completion is there when it returns */
/* Ends the session with a peer of a socket that is not connected; what it may still send begins
 * another. Does not wait for frames of what the peer was allowed: SLUICE_UNREGISTER does. ENOENT: there is none. */
#define SLUICE_HANG_UP _IOW(0xb5, 7, struct sockaddr_sluice)

/* Of /dev/sluice, not of a socket: returns the descriptor of a new one, as socket() does, for whom
 * socket() would make one; a filter of socket families does not see it, and refuses this number. The
 * argument is 0 or of SOCK_CLOEXEC and SOCK_NONBLOCK. */
#define SLUICE_SOCKET _IO(0xb5, 8)

/* ---- the completion ring: SLUICE_RING, then mmap() of the socket at offset 0 */

/* A handle was closed since its memory is gone. Not told if the ring has no room. */
#define SLUICE_HANDLE_GONE 4
#define SLUICE_MEMORY_GONE 0x100

struct sluice_completion {
	__u64 user_data;
	__u64 length;
	__u32 kind; /* SLUICE_PULL, SLUICE_PUSH: ours has ended; SLUICE_PUSH_NOTICE: a peer's; SLUICE_HANDLE_GONE */
	__u32 status; /* enum slp_status: 0 is good; SLUICE_MEMORY_GONE */
	__u32 notice; /* of SLUICE_HANDLE_GONE: the handle */
	__u16 port; /* the peer */
	__u8 mac[6];
	__u8 zero[4];
};

/* The kernel writes entries[head & mask] and then head; who reads then writes tail. A transfer
 * reserves its entry. A peer whose notice finds no room loses its session. */
struct sluice_ring {
	__u32 head;
	__u32 entries_at; /* bytes from the ring's beginning */
	__u32 mask;
	__u32 zero[13];
	__u32 tail; /* on a line of its own */
	__u32 more[15];
};

#endif /* SLUICE_UAPI_SLUICE_H_ */
