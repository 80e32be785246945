#!/usr/bin/env python3
"""What an emulated guest is told of its clock: measured, the same twice, and left out where it cannot be known."""
import platform
import types
import unittest
from unittest import mock

import modules
import qemu
import timestamp

OPTIONS = {"cpus": 1, "memory": 512, "memory_nodes": 1, "artifacts": ""}
KERNEL = types.SimpleNamespace(image="/vmlinux")


def arguments(accelerator):
    line = qemu.command_line("qemu", KERNEL, accelerator, "/initrd", "/console", OPTIONS)
    return line[line.index("-append") + 1]


class Frequency(unittest.TestCase):
    @unittest.skipUnless(platform.machine() == "x86_64", "no time stamp counter")
    def test_two_measurements_agree(self):
        first, second = timestamp.frequency_khz(), timestamp.frequency_khz()
        self.assertGreater(first, 100_000)
        self.assertLess(abs(first - second), first / 100)

    def test_it_is_told_to_a_guest_that_reads_this_machines_counter(self):
        with mock.patch.object(timestamp, "frequency_khz", lambda: 2596142):
            self.assertIn(" tsc_early_khz=2596142", arguments("tcg"))
            self.assertNotIn("tsc_early_khz", arguments("kvm"))

    def test_where_it_cannot_be_known_nothing_is_said(self):
        with mock.patch.object(timestamp.platform, "machine", lambda: "aarch64"):
            self.assertIsNone(timestamp.frequency_khz())
            self.assertNotIn("tsc_early_khz", arguments("tcg"))
        with mock.patch.object(timestamp.mmap, "mmap", mock.Mock(side_effect=PermissionError)):
            self.assertIsNone(timestamp.frequency_khz())


if __name__ == "__main__":
    modules.main()
