#!/usr/bin/env python3
"""Runs a command beside a wire: two network namespaces joined by a veth pair.

    benchmarks/wire.py --mtu 9000 -- bazel-bin/benchmarks/bare/udp_bulk

The command runs in the near namespace (interface `near`, 02:00:00:00:00:0a, 10.9.0.1,
fd09::1) and finds both in its environment, as files for setns(2): SLUICE_WIRE_NEAR and
SLUICE_WIRE_FAR (interface `far`, 02:00:00:00:00:0b, 10.9.0.2, fd09::2). They are gone when it
ends. With --rate a third namespace lies between, a bridge that lets so much through each way:
a limit at the sender's own interface would not hold frames that go around its queue (PACKET_QDISC_BYPASS).
Needs root, or user namespaces; exit code 77 where there are neither.
"""
import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time

CLONE_NEWNET, CLONE_NEWUSER = 0x40000000, 0x10000000
EXIT_NOTHING_TO_RUN_ON = 77
PACKAGES = {"ip": "iproute2", "tc": "iproute2", "ethtool": "ethtool"}
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


def path():
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def check_programs(options):
    """Before anything is made: that the programs for these options are there."""
    wanted = {"ip": True, "tc": options.rate is not None, "ethtool": options.offloads == "off"}
    for program in (name for name, needed in wanted.items() if needed):
        if shutil.which(program, path=path()) is None:
            refuse(f"{program} is not there: tools/setup installs it (Debian package {PACKAGES[program]})")


def shell(command):
    done = subprocess.run(["sh", "-ec", command], env=dict(os.environ, PATH=path()), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        refuse(f"{command}: {done.stderr.strip()}")


def end(name, number, mtu, offloads):
    shell(f"ip address add 10.9.0.{number}/24 dev {name}; ip address add fd09::{number}/64 dev {name} nodad;"
          f"ip link set {name} mtu {mtu} up; ip link set lo up")
    if offloads == "off":
        shell(f"ethtool -K {name} tso off gso off gro off tx-udp-segmentation off")


def veth(near, near_network, far, far_network):
    shell(f"ip link add {near} netns {file_of(near_network)} type veth peer name {far} netns {file_of(far_network)}")


def file_of(network):
    return f"/proc/{os.getpid()}/fd/{network}"


def limited(near, far, mtu, rate):
    """A bridge between the two, in a namespace that lives as long as this process; `rate` in tc's words."""
    middle = new_network()
    veth("near", near, "to_near", middle)
    veth("far", far, "to_far", middle)
    shell("ip link add joint type bridge; ip link set joint up")
    for port in ("to_near", "to_far"):
        shell(f"ip link set {port} mtu {mtu} master joint up; tc qdisc add dev {port} root tbf rate {rate} burst 128k limit 300k")


def lay(mtu, offloads, rate=None):
    """(near, far): descriptors of the two namespaces. This process ends up in the near one."""
    if os.geteuid() != 0 and LIBC.unshare(CLONE_NEWUSER) != 0:
        refuse("no user namespace, and not root")
    far = new_network()
    near = new_network()
    if rate:
        limited(near, far, mtu, rate)
    else:
        veth("near", near, "far", far)
    for network, name, number, address in ((far, "far", 2, "0b"), (near, "near", 1, "0a")):
        enter(network)
        shell(f"ip link set {name} address 02:00:00:00:00:{address}")
        end(name, number, mtu, offloads)
    return near, far


def started(command, environment, network, near):
    """A command in one of the namespaces, in our process group; this process is in the near one afterwards."""
    enter(network)
    try:
        return subprocess.Popen(command.split(), env=environment, stdout=subprocess.DEVNULL)
    finally:
        enter(near)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--offloads", choices=["on", "off"], default="on")
    parser.add_argument("--rate", metavar="RATE", help="what passes at most each way, for example 1gbit")
    parser.add_argument("--serve", metavar="COMMAND", help="runs in the far namespace as long as the command does")
    parser.add_argument("--beside", metavar="COMMAND", help="runs in the near namespace as long as the command does: competing traffic")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    check_programs(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is ended
    near, far = lay(options.mtu, options.offloads, options.rate)
    environment = dict(os.environ, SLUICE_WIRE_NEAR=file_of(near), SLUICE_WIRE_FAR=file_of(far))
    companions = []
    try:
        for command, network in ((options.serve, far), (options.beside, near)):
            if command:
                companions.append(started(command, environment, network, near))
                time.sleep(0.3)  # until it listens, or its traffic flows
        code = subprocess.run(options.command, env=environment, check=False).returncode
        if options.beside and companions[-1].poll() is not None:
            print(f"wire.py: what should have run beside it ended before: {options.beside}", file=sys.stderr)
            return code or 1
        return code
    finally:
        for companion in companions:
            companion.kill()
            companion.wait()


if __name__ == "__main__":
    sys.exit(main())
