#!/usr/bin/env python3
"""Runs a command beside a wire: two network namespaces joined by a veth pair.

    benchmarks/wire.py --mtu 9000 -- bazel-bin/benchmarks/bare/udp_bulk

The command runs in the near namespace (interface `near`, 02:00:00:00:00:0a, 10.9.0.1,
fd09::1) and finds both in its environment, as files for setns(2): SLUICE_WIRE_NEAR and
SLUICE_WIRE_FAR (interface `far`, 02:00:00:00:00:0b, 10.9.0.2, fd09::2). They are gone when it
ends. With --rate a third namespace lies between, a bridge that lets so much through each way:
a limit at the sender's own interface would not hold frames that go around its queue
(PACKET_QDISC_BYPASS). With --delay it is a long line: benchmarks/bare/relay (--relay) takes the
bridge's place, with the rate, the delay, a queue of its own and, with --lost-one-in, loss. Frames
cross it one by one, as they cross a cable: TSO is off and GRO on. What the relay says of itself
goes to stderr; if it lost frames that the line would not have, or was late by more than --late-us
for one in a hundred, this fails. Needs root, or user namespaces; exit code 77 where there are
neither.
"""
import argparse
import ctypes
import json
import os
import re
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
    far_away = options.delay is not None
    wanted = {
        "ip": True, "tc": options.rate is not None and not far_away,
        "ethtool": options.offloads == "off" or far_away}
    for program in (name for name, needed in wanted.items() if needed):
        if shutil.which(program, path=path()) is None:
            refuse(
                f"{program} is not there: tools/setup installs it (Debian package"
                f" {PACKAGES[program]})")


def shell(command):
    done = subprocess.run(
        ["sh", "-ec", command], env=dict(os.environ, PATH=path()), capture_output=True, text=True,
        check=False)
    if done.returncode != 0:
        refuse(f"{command}: {done.stderr.strip()}")


def end(name, number, mtu, offloads):
    shell(
        f"ip address add 10.9.0.{number}/24 dev {name}; ip address add fd09::{number}/64 dev {name}"
        f" nodad;ip link set {name} mtu {mtu} up; ip link set lo up")
    if offloads == "off":
        shell(f"ethtool -K {name} tso off gso off gro off tx-udp-segmentation off")


def veth(near, near_network, far, far_network):
    shell(
        f"ip link add {near} netns {file_of(near_network)} type veth peer name {far} netns"
        f" {file_of(far_network)}")


def file_of(network):
    return f"/proc/{os.getpid()}/fd/{network}"


def limited(near, far, mtu, rate):
    """A bridge between the two, in a namespace that lives as long as this process; `rate` in tc's
    words."""
    middle = new_network()
    veth("near", near, "to_near", middle)
    veth("far", far, "to_far", middle)
    shell("ip link add joint type bridge; ip link set joint up")
    for port in ("to_near", "to_far"):
        shell(
            f"ip link set {port} mtu {mtu} master joint up; tc qdisc add dev {port} root tbf rate"
            f" {rate} burst 128k limit 300k")


class Relay:
    """A line with a delay between the two, as long as the program that forwards runs."""

    def __init__(self, near, far, options):
        self.middle, self.options, self.process = new_network(), options, None
        veth("near", near, "to_near", self.middle)
        veth("far", far, "to_far", self.middle)
        for port in ("to_near", "to_far"):
            # A device that could cut by itself is no place where the kernel joins frames (veth's
            # GRO).
            shell(
                f"echo 1 > /proc/sys/net/ipv6/conf/{port}/disable_ipv6; ethtool -K {port} tso off;"
                f" ip link set {port} mtu {options.mtu} up")

    def start(self, near):
        """When both ends are up. This process is in the near one afterwards."""
        options = self.options
        enter(self.middle)
        self.process = subprocess.Popen(
            [
                options.relay, "to_near", "to_far", "--mtu", str(options.mtu), "--bits-per-second",
                str(bits_per_second(options.rate)), "--delay-us", str(round(options.delay * 1e6)),
                "--lost-one-in", str(options.lost_one_in), "--queue-bytes",
                str(options.queue_bytes), "--seed", str(options.seed)],
            stdout=subprocess.PIPE,
            text=True)
        enter(near)
        if self.process.stdout.readline() != "forwards\n":
            self.process.wait()
            refuse(f"{options.relay} does not forward")

    def end(self):
        """What was wrong with the line, or None. Prints what the relay says of itself."""
        self.process.terminate()
        said, _ = self.process.communicate()
        print(f"wire.py: {said.strip()}", file=sys.stderr)
        if self.process.returncode != 0:
            return "the relay lost frames by itself; run this on a machine that is less busy"
        late = max(json.loads(said)[way]["late_us"]["p99"] for way in ("to_far", "to_near"))
        if self.options.late_us and late > self.options.late_us:
            return (
                f"the relay was {late} us late for one frame in a hundred; run this on a machine"
                " that is less busy")
        return None


def bits_per_second(rate):
    """Of tc's words: 1gbit, 100mbit."""
    parts = re.fullmatch(r"([0-9.]+)([kmg])bit", (rate or "100gbit").lower())
    if parts is None:
        raise argparse.ArgumentTypeError(f"{rate!r} is no rate such as 1gbit or 100mbit")
    return round(float(parts[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[parts[2]])


def seconds(delay):
    """Of tc's words: 10ms, 500us."""
    parts = re.fullmatch(r"([0-9.]+)(us|ms)", delay)
    if parts is None:
        raise argparse.ArgumentTypeError(f"{delay!r} is no delay such as 10ms or 500us")
    return float(parts[1]) * {"us": 1e-6, "ms": 1e-3}[parts[2]]


def lay(mtu, offloads, rate=None, join=None):
    """(near, far): descriptors of the two namespaces. This process ends up in the near one."""
    if os.geteuid() != 0 and LIBC.unshare(CLONE_NEWUSER) != 0:
        refuse("no user namespace, and not root")
    far = new_network()
    near = new_network()
    if join is not None:
        join(near, far)
    elif rate:
        limited(near, far, mtu, rate)
    else:
        veth("near", near, "far", far)
    for network, name, number, address in ((far, "far", 2, "0b"), (near, "near", 1, "0a")):
        enter(network)
        shell(f"ip link set {name} address 02:00:00:00:00:{address}")
        end(name, number, mtu, offloads)
        if join is not None:
            shell(f"ethtool -K {name} tso off tx-udp-segmentation off gro on")
    return near, far


def started(command, environment, network, near):
    """A command in one of the namespaces, in our process group; this process is in the near one
    afterwards."""
    enter(network)
    try:
        return subprocess.Popen(command.split(), env=environment, stdout=subprocess.DEVNULL)
    finally:
        enter(near)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--offloads", choices=["on", "off"], default="on")
    parser.add_argument(
        "--rate", metavar="RATE", help="what passes at most each way, for example 1gbit")
    parser.add_argument(
        "--delay", type=seconds, metavar="DELAY", help="one way, by a relay, for example 10ms")
    parser.add_argument("--relay", metavar="PROGRAM", default="bazel-bin/benchmarks/bare/relay")
    parser.add_argument(
        "--lost-one-in", type=int, default=0, metavar="N",
        help="frames, each way; 0: none (with --delay)")
    parser.add_argument(
        "--queue-bytes", type=int, default=0, metavar="N",
        help="that wait for the line at most; 0: rate times round trip")
    parser.add_argument("--seed", type=int, default=1, help="of the loss")
    parser.add_argument(
        "--late-us", type=int, default=2000,
        help="how late one frame in a hundred may be; 0: as late as it likes")
    parser.add_argument(
        "--sysctl", action="append", default=[], metavar="KEY=VALUE",
        help="of both ends, for example net.ipv4.tcp_congestion_control=reno")
    parser.add_argument(
        "--serve", metavar="COMMAND", help="runs in the far namespace as long as the command does")
    parser.add_argument(
        "--beside", metavar="COMMAND",
        help="runs in the near namespace as long as the command does: competing traffic")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    check_programs(options)
    # so that what was started is ended
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    relay = []
    join = (
        (lambda near, far: relay.append(Relay(near, far, options)))
        if options.delay is not None
        else None)
    near, far = lay(options.mtu, options.offloads, options.rate, join)
    for line in relay:
        line.start(near)
    for network in (far, near):
        enter(network)
        for key, value in (each.split("=", 1) for each in options.sysctl):
            shell(f"echo '{value}' > /proc/sys/{key.replace('.', '/')}")
    environment = dict(os.environ, SLUICE_WIRE_NEAR=file_of(near), SLUICE_WIRE_FAR=file_of(far))
    companions = []
    try:
        for command, network in ((options.serve, far), (options.beside, near)):
            if command:
                companions.append(started(command, environment, network, near))
                time.sleep(0.3)  # until it listens, or its traffic flows
        code = subprocess.run(options.command, env=environment, check=False).returncode
        if options.beside and companions[-1].poll() is not None:
            print(
                f"wire.py: what should have run beside it ended before: {options.beside}",
                file=sys.stderr)
            return code or 1
        wrong = relay.pop().end() if relay else None
        if wrong is not None:
            print(f"wire.py: {wrong}", file=sys.stderr)
            return code or 1
        return code
    finally:
        for companion in companions:
            companion.kill()
            companion.wait()
        for line in relay:
            line.process.kill()
            line.process.wait()


if __name__ == "__main__":
    sys.exit(main())
