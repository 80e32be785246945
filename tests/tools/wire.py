"""Two network namespaces and a cable between them, for tests of plain Ethernet.

The test's own process moves into a fresh namespace, where `left` is; `right` is in another,
which a child holds. Nothing outlives the two: the kernel takes both apart with their processes.
Where there can be none a test is skipped, unless SLUICE_REQUIRE lists "netns".
"""
import ctypes
import os
import subprocess
import unittest

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
LEFT_MAC, RIGHT_MAC = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
os.environ["PATH"] += ":/usr/sbin:/sbin"


def _unshare():
    call = ctypes.CDLL(None, use_errno=True).unshare
    if call(CLONE_NEWNET) == 0:
        return
    user, group = os.geteuid(), os.getegid()
    if call(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        why = f"no network namespace: unshare: {os.strerror(ctypes.get_errno())}; run it as root"
        if "netns" in os.environ.get("SLUICE_REQUIRE", "").split(","):
            raise OSError(why)
        raise unittest.SkipTest("netns: " + why)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def ip(*arguments, within=()):
    return subprocess.run([*within, "ip", *arguments], check=True, capture_output=True, text=True).stdout


class Wire:
    _moved = False

    def __init__(self):
        if not Wire._moved:
            _unshare()
            Wire._moved = True
            ip("link", "set", "lo", "up")
        # The child says when it is in its namespace, and ends when its input does.
        self._holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo in; exec cat"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self._holder.stdout.readline()
        # Starts a command at the right end.
        self.there = ("nsenter", f"--net=/proc/{self._holder.pid}/ns/net")
        ip("link", "add", "left", "address", LEFT_MAC, "type", "veth", "peer", "name", "right", "address", RIGHT_MAC,
           "netns", str(self._holder.pid))
        ip("link", "set", "left", "up")
        ip("link", "set", "lo", "up", within=self.there)
        ip("link", "set", "right", "up", within=self.there)

    def close(self):
        # At once: with the namespace alone the kernel would take its time.
        subprocess.run(["ip", "link", "del", "left"], check=False, capture_output=True)
        self._holder.stdin.close()
        self._holder.wait(timeout=60)
        self._holder.stdout.close()
