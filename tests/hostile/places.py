"""Where a server of each path listens, and from where it is attacked."""
import os
import subprocess
import sys

import siege

# tests/tools/wire.py: network namespaces and cables.
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), os.pardir, "tools"))


def attacks_of(attacker, path):
    """{name: words about it, such as "any" or "crowd"}"""
    lines = subprocess.run([attacker, "--list"], check=True, capture_output=True, text=True).stdout.splitlines()
    return {words[1]: words[2].split(",") for words in map(str.split, lines) if words[0] == path}


class Place:
    """Of one path. Over l2: two network namespaces with a cable between, the server at its left end."""

    def __init__(self, path):
        self.path = path
        self.source = siege.STRANGER
        self.at = ((), ())
        self._count = 0
        self._wire = None

    def __enter__(self):
        if self.path == "l2":
            import wire
            self._wire = wire.Wire()
            self.at = ((), self._wire.there)
            self.source = "02:00:00:00:66:66"
        return self

    def __exit__(self, *_):
        if self._wire:
            self._wire.close()

    def listen(self):
        self._count += 1
        return {"tcp": "tcp://127.0.0.1:0", "udp": "l2://udp/127.0.0.1:0", "l2": "l2://left:0",
                "shm": f"shm:hostile-{os.getpid()}-{os.urandom(4).hex()}-{self._count}"}[self.path]

    @staticmethod
    def reach(address):
        """As somebody at the other end of the cable says it."""
        return address.replace("l2://left/", "l2://right/")
