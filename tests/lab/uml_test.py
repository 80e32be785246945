#!/usr/bin/env python3
"""User-Mode Linux's command line: ports and frames in their order, memory where it fits, nothing left in the log folder."""
import os
import pathlib
import tempfile
import types
import unittest
from unittest import mock

import modules
import uml
from trouble import Trouble


class CommandLine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.platform = uml.Uml(types.SimpleNamespace(image=self.folder / "linux"))

    def start(self, frames=None, memory=1024):
        line, how = self.platform.start(2, 7, {"control": 11, "stdout": 12, "terminal": 13}, frames, self.folder / "node2.console.log", {"memory": memory})
        os.close(how["stderr"])
        return line, how

    def test_ports_are_serial_lines_in_their_order(self):
        line, _ = self.start()
        self.assertEqual([word for word in line if word.startswith("ssl") and "fd" in word], ["ssl1=fd:11", "ssl2=fd:12", "ssl3=fd:13"])
        self.assertIn("mem=1024M", line)
        self.assertIn("initrd=/proc/self/fd/7", line)

    def test_frames_have_the_nodes_own_address(self):
        self.assertIn("vec0:transport=fd,fd=9,mac=52:54:00:77:00:02,mtu=9000", self.start(frames=9)[0])
        self.assertEqual([word for word in self.start()[0] if word.startswith("vec")], [])

    def test_memory_is_kept_on_tmpfs_if_it_fits(self):
        with mock.patch.object(uml.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=2 << 30)), mock.patch.object(uml.os, "access", lambda *_: True):
            self.assertEqual(self.start(memory=2048)[1]["env"]["TMPDIR"], "/dev/shm")
            with self.assertRaisesRegex(Trouble, "nor .* has 2049 MiB free.*smaller --memory"):
                self.start(memory=2049)
        with mock.patch.object(uml, "MEMORY_FOLDER", "/nowhere"):
            self.assertEqual(self.start()[1]["env"]["TMPDIR"], os.fspath(self.folder))

    def test_what_a_killed_kernel_left_is_removed(self):
        (self.folder / "uml.2").mkdir()
        (self.folder / "uml.2" / "pid").touch()
        self.platform.tidy(2, self.folder)
        self.assertFalse((self.folder / "uml.2").exists())

    def test_a_clock_rate_is_there_for_one_cpu(self):
        name, content = self.platform.extra_files()[0]
        self.assertEqual(name, "cpuinfo")
        self.assertEqual(content.count(b"processor\t"), 1)
        self.assertIn(b"cpu MHz", content)


if __name__ == "__main__":
    modules.main()
