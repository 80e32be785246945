#!/usr/bin/env python3
"""The programs of `sluice bench --only module` in a guest: over the kernel module and a veth pair, and a file over the RDMA
device. Each verifies what came, or notices a flipped bit; no time is asserted. Run from the runfiles, as root, by guest_test."""
import json
import os
import subprocess
import sys
import unittest

WIRE = [sys.executable, "-B", os.path.join("benchmarks", "wire.py"), "--mtu", "1500", "--"]
MODULE = os.path.join("kernel_compat", "module", "sluice.ko")


def run(program, before, *flags):
    return subprocess.run([*before, os.path.join("benchmarks", program), *flags], capture_output=True, text=True, timeout=200, check=False)


class InTheGuest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        subprocess.run(["/sbin/modprobe", "veth"], check=True)
        subprocess.run(["/sbin/insmod", MODULE], check=True)
        cls.addClassCleanup(cls.unload)

    @classmethod
    def unload(cls):
        # A socket that was just closed may still be sending for a second: then the module is in use.
        for _ in range(1000):
            if subprocess.run(["/sbin/rmmod", "sluice"], capture_output=True, check=False).returncode == 0:
                return
        raise AssertionError("the module does not unload")

    def counted(self, program, before, *flags):
        done = run(program, before, *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        line = json.loads(done.stdout)
        self.assertEqual((line["name"], line["verified"]), (program, True))
        return line

    def test_messages_go_by_the_module(self):
        line = self.counted("l2_pair", WIRE, "--mode", "kmod_sleep", "--size", "64", "-n", "20")
        self.assertGreater(line["one_way_ns"]["min"], 0)

    def test_memory_goes_by_the_module_and_a_flipped_bit_is_noticed(self):
        flags = ("--mode", "kmod_bulk_adaptive", "--size", "1000000", "-n", "1")
        self.assertGreater(self.counted("l2_pair", WIRE, *flags)["bytes_per_second"], 0)
        done = run("l2_pair", WIRE, *flags, "--corrupt")
        self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)

    def test_a_file_goes_by_the_module_and_by_the_device_and_arrives_as_it_was(self):
        by_module = self.counted("file_transfer", WIRE, "--mode", "kmod_adaptive", "--size", "3000001", "-n", "1")
        by_device = self.counted("file_transfer", [], "--mode", "rdma_adaptive", "--size", "3000001", "-n", "1")
        self.assertEqual(by_module["sha256"], by_device["sha256"])
        done = run("file_transfer", WIRE, "--mode", "kmod_adaptive", "--size", "3000001", "-n", "1", "--corrupt")
        self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)


if __name__ == "__main__":
    unittest.main()
