#!/usr/bin/env python3
"""In a guest with a network card: what a network namespace has not, and veth cannot. net.core and rings are set and put back.

On node 2, which only holds the other end of the wire, it does nothing: its one argument is "peer".
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv[1])
RMEM_MAX, RING = "net.core.rmem_max", "interface.ring_rx"
INTERFACE = "lab0"


class Settings(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = folder.name
        self.config = os.path.join(self.cache, "system.toml")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(f'[front]\naddress = "127.0.0.1"\ninterface = "{INTERFACE}"\n[[node]]\nname = "n1"\naddress = "127.0.0.2"\n')

    def run_tool(self, *arguments, expect=0):
        done = subprocess.run([sys.executable, "-B", PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=120,
                              env=dict(os.environ, SLUICE_CACHE_DIR=self.cache))
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def shown(self):
        lines = self.run_tool("--show", "--interface", INTERFACE).splitlines()
        return {line.split()[0]: line.split()[2] for line in lines}

    def choose(self, values):
        os.makedirs(os.path.join(self.cache, "system"), exist_ok=True)
        with open(os.path.join(self.cache, "system", "default.json"), "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "chosen": values}, file)

    def test_the_maximum_of_net_core_and_a_ring_are_set_and_put_back(self):
        before = self.shown()
        wanted = {RMEM_MAX: "1048576", RING: str(int(before[RING]) // 2)}
        self.choose(wanted)
        # n1 has no interface, so no ring: it is refused before anything is changed.
        self.assertIn("no interface is named", self.run_tool("--config", self.config, "--apply", expect=1))
        self.assertEqual(self.shown(), before)
        with open(self.config, "a", encoding="utf-8") as file:
            file.write(f'interface = "{INTERFACE}"\n')
        self.run_tool("--config", self.config, "--apply")
        self.assertEqual({name: self.shown()[name] for name in wanted}, wanted)
        self.run_tool("--undo")
        self.assertEqual(self.shown(), before)


if __name__ == "__main__" and PROGRAM != os.path.abspath("peer"):
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
