"""A cluster out of network namespaces on this machine: a front end and N nodes, each line shaped by TBF.

One node hangs directly on the front end, more of them on a bridge in a namespace of its own. A namespace lives as
long as the agent in it, so nothing is left after the run, whatever ended it.
"""
import subprocess

import node as nodes
import parameters
from trouble import NOTHING_TO_RUN_ON, USAGE, Trouble

INTERFACE = "net0"
MOST_NODES = 64
# Bytes that pass at once after a pause, and that wait. A smaller burst is nearer to a real line, which has none; but
# TBF then needs a timer for each few packets, and a busy machine is late for some: with 4k a stream had 0.5 to 0.8 Gb/s
# of 1. With 32k a ping-pong of messages below that size is not shaped: it has pauses.
BURST, LIMIT = "32k", "300k"
LIMIT_SECONDS = 60


def _shell(node, script):
    """Runs it in the namespace of a node."""
    command = ["nsenter", f"--net=/proc/{node.pid}/ns/net", "sh", "-ec", f"PATH=$PATH:/usr/sbin:/sbin; {script}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    except FileNotFoundError as error:
        raise Trouble("nsenter is not there; install Debian's util-linux", NOTHING_TO_RUN_ON) from error
    if done.returncode != 0:
        raise Trouble(f"the network of {node.name} cannot be made: {done.stderr.strip()}; install iproute2 (tools/setup), and run it as "
                      "root or where user namespaces are allowed", NOTHING_TO_RUN_ON)


def _address(number, ipv6):
    return f"fd09::{number:x}" if ipv6 else f"10.9.0.{number}"


class Lab:
    def __init__(self, table, ipv6=False):
        """`table`: [lab] of the configuration."""
        count, self._rate, self._mtu, self._burst = table["nodes"], table["rate"], table["mtu"], table["burst"]
        if ipv6 and self._mtu < parameters.IPV6_LEAST_MTU:
            raise Trouble(f"[lab].mtu: {self._mtu} is too small for IPv6; take "
                          f"{parameters.IPV6_LEAST_MTU} or more, or IPv4", USAGE)
        names = ["front"] + [f"n{number}" for number in range(1, count + 1)]
        self.nodes = [nodes.Node(name, _address(number, ipv6), "new", INTERFACE) for number, name in enumerate(names, 1)]
        self._switch = nodes.Node("switch", None, "new") if count > 1 else None

    def start(self):
        everything = self.nodes + ([self._switch] if self._switch else [])
        nodes.start_all(everything)
        try:
            if self._switch is None:
                self._cable(self.nodes[0], INTERFACE, self.nodes[1], INTERFACE)
            else:
                self._bridge()
            for number, node in enumerate(self.nodes, 1):
                _shell(node, f"ip link set lo up; ip address add {_address(number, False)}/24 dev {INTERFACE}; "
                             f"ip address add {_address(number, True)}/64 dev {INTERFACE} nodad; "
                             f"ip link set {INTERFACE} mtu {self._mtu} up; {self._shaped(INTERFACE)}")
        except BaseException:
            self.stop()
            raise
        return self

    def _shaped(self, interface):
        return f"tc qdisc add dev {interface} root tbf rate {self._rate} burst {self._burst} limit {LIMIT}" if self._rate else ":"

    @staticmethod
    def _cable(left, left_name, right, right_name):
        _shell(left, f"ip link add {left_name} type veth peer name {right_name} netns {right.pid}")

    def _bridge(self):
        """Both ends of each line are shaped: what a node sends at its own interface, what it gets at the bridge's port."""
        _shell(self._switch, "ip link add joint type bridge; ip link set joint up")
        for node in self.nodes:
            port = f"to_{node.name}"
            self._cable(node, INTERFACE, self._switch, port)
            _shell(self._switch, f"ip link set {port} mtu {self._mtu} master joint up; {self._shaped(port)}")

    def stop(self):
        nodes.stop_all(self.nodes + ([self._switch] if self._switch else []))
