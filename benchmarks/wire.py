#!/usr/bin/env python3
"""Runs a command beside a wire: two network namespaces joined by a veth pair.

    benchmarks/wire.py --mtu 9000 -- bazel-bin/benchmarks/bare/udp_bulk

The command runs in the near namespace (interface `near`, 02:00:00:00:00:0a, 10.9.0.1,
fd09::1) and finds both in its environment, as files for setns(2): SLUICE_WIRE_NEAR and
SLUICE_WIRE_FAR (interface `far`, 02:00:00:00:00:0b, 10.9.0.2, fd09::2). They are gone when it
ends. Needs root, or user namespaces; exit code 77 where there are neither.
"""
import argparse
import ctypes
import os
import subprocess
import sys
import time

CLONE_NEWNET, CLONE_NEWUSER = 0x40000000, 0x10000000
EXIT_NOTHING_TO_RUN_ON = 77
LIBC = ctypes.CDLL(None, use_errno=True)


def refuse(what):
    print(f"wire.py: {what}", file=sys.stderr)
    sys.exit(EXIT_NOTHING_TO_RUN_ON)


def new_network():
    if LIBC.unshare(CLONE_NEWNET) != 0:
        refuse(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    os.set_inheritable(network, True)
    return network


def enter(network):
    if LIBC.setns(network, CLONE_NEWNET) != 0:
        refuse(f"setns: {os.strerror(ctypes.get_errno())}")


def shell(command):
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    done = subprocess.run(["sh", "-ec", command], env=dict(os.environ, PATH=path), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        refuse(f"{command}: {done.stderr.strip()}")


def end(name, number, mtu, offloads):
    shell(f"ip address add 10.9.0.{number}/24 dev {name}; ip address add fd09::{number}/64 dev {name} nodad;"
          f"ip link set {name} mtu {mtu} up; ip link set lo up")
    if offloads == "off":
        shell(f"ethtool -K {name} tso off gso off gro off tx-udp-segmentation off")


def lay(mtu, offloads):
    """(near, far): descriptors of the two namespaces. This process ends up in the near one."""
    if os.geteuid() != 0 and LIBC.unshare(CLONE_NEWUSER) != 0:
        refuse("no user namespace, and not root")
    far = new_network()
    near = new_network()
    shell(f"ip link add near address 02:00:00:00:00:0a type veth peer name far address 02:00:00:00:00:0b netns /proc/{os.getpid()}/fd/{far}")
    end("near", 1, mtu, offloads)
    enter(far)
    end("far", 2, mtu, offloads)
    enter(near)
    return near, far


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--offloads", choices=["on", "off"], default="on")
    parser.add_argument("--serve", metavar="COMMAND", help="runs in the far namespace as long as the command does")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    near, far = lay(options.mtu, options.offloads)
    environment = dict(os.environ, SLUICE_WIRE_NEAR=f"/proc/{os.getpid()}/fd/{near}", SLUICE_WIRE_FAR=f"/proc/{os.getpid()}/fd/{far}")
    server = None
    if options.serve:
        enter(far)
        server = subprocess.Popen(options.serve.split(), env=environment, stdout=subprocess.DEVNULL)
        enter(near)
        time.sleep(0.3)  # until it listens
    try:
        return subprocess.run(options.command, env=environment, check=False).returncode
    finally:
        if server is not None:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    sys.exit(main())
