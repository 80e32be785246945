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

    def start(self, frames=None, memory=1):
        line, how = self.platform.start(2, 7, {"control": 11, "stdout": 12, "terminal": 13}, frames, self.folder / "node2.console.log", {"memory": memory})
        os.close(how["stderr"])
        return line, how

    def test_ports_are_serial_lines_in_their_order(self):
        line, _ = self.start()
        self.assertEqual([word for word in line if word.startswith("ssl") and "fd" in word], ["ssl1=fd:11", "ssl2=fd:12", "ssl3=fd:13"])
        self.assertIn("mem=1M", line)
        self.assertIn("initrd=/proc/self/fd/7", line)

    def test_frames_have_the_nodes_own_address(self):
        self.assertIn("vec0:transport=fd,fd=9,mac=52:54:00:77:00:02,mtu=9000", self.start(frames=9)[0])
        self.assertEqual([word for word in self.start()[0] if word.startswith("vec")], [])

    def memory_is_kept_in(self, shm, log_folder, memory):
        """`shm`, `log_folder`: (flags, free MiB)."""
        rooms = {"/dev/shm": shm, os.fspath(self.folder): log_folder}
        with mock.patch.object(uml.os, "statvfs", lambda folder: types.SimpleNamespace(f_flag=rooms[folder][0], f_bavail=rooms[folder][1], f_frsize=1 << 20)), \
                mock.patch.object(uml.os, "access", lambda *_: True):
            return self.start(memory=memory)[1]["env"]["TMPDIR"]

    def test_memory_is_kept_on_tmpfs_if_it_fits(self):
        self.assertEqual(self.memory_is_kept_in((0, 2048), (0, 4096), 2048), "/dev/shm")
        self.assertEqual(self.memory_is_kept_in((0, 2047), (0, 4096), 2048), os.fspath(self.folder))
        with self.assertRaisesRegex(Trouble, "each lacks 2048 MiB.*smaller --memory"):
            self.memory_is_kept_in((0, 2047), (0, 2047), 2048)

    def test_memory_is_not_kept_where_nothing_may_be_executed(self):
        self.assertEqual(self.memory_is_kept_in((os.ST_NOEXEC, 4096), (0, 4096), 1), os.fspath(self.folder))
        with self.assertRaisesRegex(Trouble, "noexec"):
            self.memory_is_kept_in((os.ST_NOEXEC, 4096), (os.ST_NOEXEC, 4096), 1)

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
