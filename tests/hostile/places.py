"""Where a server of each path listens, and from where it is attacked."""
import os
import subprocess
import sys
import time

import siege

# tests/tools/wire.py: network namespaces and cables.
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), os.pardir, "tools"))

# In a guest, where the programs run in their runfiles.
MODULE = os.path.join("kernel_compat", "module", "sluice.ko")


def unload():
    """What holds a session, or memory, holds the module. A socket that was just closed may still be sending for a second."""
    end = time.monotonic() + 60
    while subprocess.run(["/sbin/rmmod", "sluice"], capture_output=True, check=False).returncode != 0:
        if time.monotonic() > end:
            raise siege.Failed("the module does not unload: something of an attack has stayed")


def attacks_of(attacker, path):
    """{name: words about it, such as "any" or "crowd"}"""
    lines = subprocess.run([attacker, "--list"], check=True, capture_output=True, text=True).stdout.splitlines()
    return {words[1]: words[2].split(",") for words in map(str.split, lines) if words[0] == path}


class Place:
    """Of one path. Over l2 and kmod: two network namespaces with a cable between, the server at its left end. Over kmod: in a
    guest, with the module loaded, which has to go again at the end."""

    def __init__(self, path):
        self.path = path
        self.source = siege.STRANGER
        self.at = ((), ())
        self._count = 0
        self._wire = None

    def __enter__(self):
        if self.path == "kmod":
            subprocess.run(["/sbin/modprobe", "veth"], check=True)
            subprocess.run(["/sbin/insmod", MODULE], check=True)
        if self.path in ("l2", "kmod"):
            import wire
            self._wire = wire.Wire()
            self.at = ((), self._wire.there)
            self.source = "02:00:00:00:66:66"
        return self

    def __exit__(self, *_):
        if self._wire:
            self._wire.close()
        if self.path == "kmod":
            unload()

    def listen(self):
        self._count += 1
        return {"tcp": "tcp://127.0.0.1:0", "udp": "l2://udp/127.0.0.1:0", "l2": "l2://left:0", "kmod": "kmod://left:0",
                "shm": f"shm:hostile-{os.getpid()}-{os.urandom(4).hex()}-{self._count}"}[self.path]

    @staticmethod
    def reach(address):
        """As somebody at the other end of the cable says it."""
        return address.replace("://left/", "://right/")
