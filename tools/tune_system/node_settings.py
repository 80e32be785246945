"""Reads and sets the parameters of the machine, or network namespace, that this process is in. Runs on every node.

sysctl by /proc/sys, rings, coalescing and offloads by ethtool(8), the MTU by ip(8).
"""
import errno
import os
import re
import subprocess

import parameters

PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
LIMIT_SECONDS = 20  # of one call of ip or ethtool
# name -> (what ethtool -k calls it, what ethtool -K calls it)
_OFFLOADS = {"interface.tso": ("tcp-segmentation-offload", "tso"), "interface.gso": ("generic-segmentation-offload", "gso"),
             "interface.gro": ("generic-receive-offload", "gro")}
_RINGS = {"interface.ring_rx": ("RX", "rx"), "interface.ring_tx": ("TX", "tx")}
_COALESCING = {"interface.rx_usecs": "rx-usecs", "interface.tx_usecs": "tx-usecs"}


class Refused(Exception):
    """Why a parameter cannot be read or set here."""


def _run(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
                              env=dict(os.environ, PATH=PATH, LC_ALL="C"))
    except FileNotFoundError as error:
        raise Refused(f"{command[0]} is not there: install Debian's {'iproute2' if command[0] == 'ip' else 'ethtool'}") from error
    except subprocess.TimeoutExpired as error:
        raise Refused(f"`{' '.join(command)}` gave no answer in {LIMIT_SECONDS} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Refused(f"`{' '.join(command)}`: {said[-1] if said else 'failed'}")
    return done.stdout


def _in_first_namespace():
    """The first network namespace alone has net.core.netdev_max_backlog and its like."""
    return os.path.exists("/proc/sys/net/core/netdev_max_backlog")


def _sysctl_file(name):
    return "/proc/sys/" + name.replace(".", "/")


def _refusal(name, error):
    if error.errno == errno.ENOENT:
        if name.startswith(("net.core.", "net.ipv4.tcp_mem")) and not _in_first_namespace():
            return "this network namespace has no such value: the machine's own counts"
        return "this kernel has no such value"
    if error.errno in (errno.EACCES, errno.EPERM):
        if name.startswith("net.core.") and not _in_first_namespace():
            return "a network namespace may only read it: set it on the machine itself"
        return "not allowed: run it as root"
    return os.strerror(error.errno)


def _matched(pattern, text, what):
    found = re.search(pattern, text, re.MULTILINE)
    if found is None or found.group(1) == "n/a":
        raise Refused(f"this interface has no {what}")
    return found.group(1)


def read(name, interface=None):
    """The value now. Raises Refused with the reason."""
    parameter = parameters.REGISTRY[name]
    if not parameter.of_machine:
        return "0" if parameter.layer == parameters.APPLICATION else "built in"
    if parameter.layer == parameters.KERNEL:
        try:
            with open(_sysctl_file(name), encoding="ascii") as file:
                return " ".join(file.read().split())
        except OSError as error:
            raise Refused(_refusal(name, error)) from error
    if not interface:
        raise Refused("no interface is named; use --interface NAME, or `interface` of the node")
    if name in _RINGS:
        current = _run("ethtool", "-g", interface).partition("Current hardware settings:")[2]
        return _matched(rf"^{_RINGS[name][0]}:\s+(\S+)$", current, "ring to set")
    if name in _COALESCING:
        return _matched(rf"^{_COALESCING[name]}:\s+(\S+)$", _run("ethtool", "-c", interface), "coalescing to set")
    if name in _OFFLOADS:
        return "1" if _matched(rf"^{_OFFLOADS[name][0]}: (on|off)", _run("ethtool", "-k", interface), "such offload") == "on" else "0"
    if name == "interface.mtu":
        return _matched(r"\bmtu (\d+)", _run("ip", "link", "show", "dev", interface), "MTU")
    what = {"interface.speed": "Speed", "interface.duplex": "Duplex"}[name]
    return _matched(rf"^\s*{what}: (\w+)", _run("ethtool", interface), what.lower()).lower()


def command(name, value, interface=None):
    """The shell command that does what write() does, for a dry run."""
    if name in _RINGS:
        return f"ethtool -G {interface} {_RINGS[name][1]} {value}"
    if name in _COALESCING:
        return f"ethtool -C {interface} {_COALESCING[name]} {value}"
    if name in _OFFLOADS:
        return f"ethtool -K {interface} {_OFFLOADS[name][1]} {'on' if value == '1' else 'off'}"
    if name == "interface.mtu":
        return f"ip link set dev {interface} mtu {value}"
    return f"sysctl -w {name}='{value}'"


def write(name, value, interface=None):
    """Sets it, and reads it back. Raises Refused with the reason."""
    parameter = parameters.REGISTRY[name]
    if not parameter.of_machine:
        return
    if parameter.why_fixed:
        raise Refused(parameter.why_fixed)
    if parameter.layer == parameters.KERNEL:
        try:
            with open(_sysctl_file(name), "w", encoding="ascii") as file:
                file.write(value)
        except OSError as error:
            raise Refused(_refusal(name, error)) from error
    else:
        _run(*command(name, value, interface).split())
    now = read(name, interface)
    if now != value:
        raise Refused(f"it was set to '{value}' and is '{now}'")


def presence(name, interface=None):
    """(value or None, why it cannot be set or ""), without setting anything."""
    try:
        value = read(name, interface)
    except Refused as refused:
        return None, str(refused)
    parameter = parameters.REGISTRY[name]
    if parameter.why_fixed:
        return value, parameter.why_fixed
    if parameter.layer == parameters.KERNEL and not os.stat(_sysctl_file(name)).st_mode & 0o200:
        return value, _refusal(name, OSError(errno.EACCES, ""))
    if parameter.of_machine and not os.access(_sysctl_file("net.ipv4.tcp_rmem"), os.W_OK):
        return value, "not allowed: run it as root"
    return value, ""
