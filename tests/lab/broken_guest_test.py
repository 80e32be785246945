#!/usr/bin/env python3
"""Guests that hang, die or talk nonsense before they come up: the run ends, says what it can, keeps the log, leaves nothing.

The kernel is a stand-in: User-Mode Linux is a program, so any program will do.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import modules
import source_kernel

LIMIT_SECONDS = 60


class BrokenGuest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        root = pathlib.Path(self.folder.name)
        self.cache, self.temporary, self.tools = root / "cache", root / "tmp", root / "bin"
        self.temporary.mkdir()
        self.tools.mkdir()
        (self.tools / "busybox").write_bytes(b"\x7fELF static")
        (self.tools / "busybox").chmod(0o755)

    def lab(self, program, *flags, timeout="10s", kernel="uml", lines=1):
        folder = self.cache / f"uml.{source_kernel._key('uml')}.6.1.1-1"
        folder.mkdir(parents=True)
        (folder / "linux").write_text(program, encoding="utf-8")
        (folder / "linux").chmod(0o755)
        (folder / "about.json").write_text(json.dumps({"release": "6.1.1", "version": "6.1.1-1", "image": "linux", "builtin": True}), encoding="utf-8")
        if kernel == "damaged":
            (folder / "about.json").write_text("{", encoding="utf-8")
        done = subprocess.run([sys.executable, "-B", os.path.join(modules.LAB, "lab.py"), "run", "--kernel", "uml", "--memory", "512M", "--timeout", timeout, *flags, "--", "/bin/true"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS,
                              env={"PATH": f"{self.tools}:{os.environ['PATH']}", "HOME": self.folder.name, "SLUICE_LAB_CACHE": os.fspath(self.cache), "TMPDIR": os.fspath(self.temporary)})
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), lines, done.stderr)
        return done

    def hanging(self, boots):
        """A guest that hangs while it boots, `boots` times; then it comes up, and its command ends with status 7."""
        return f"""#!{sys.executable}
import os, pathlib, signal, sys
count = pathlib.Path({os.fspath(self.temporary)!r}) / "boots"
earlier = int(count.read_text()) if count.exists() else 0
count.write_text(str(earlier + 1))
control = next(os.fdopen(int(word[8:]), "r+b", buffering=0) for word in sys.argv if word.startswith("ssl1=fd:"))
control.write(b"step the network\\n")
if earlier < {boots}:
    signal.pause()
control.write(b"ready\\n")
assert control.readline() == b"go\\n"
control.write(b"started\\nleft 0\\nbefore \\nafter \\nlog 0\\nended 7 0 0\\n")
assert control.readline() == b"bye\\n"
"""

    def test_one_that_hangs_is_ended_with_all_its_processes_at_the_deadline(self):
        marker = self.temporary / "pids"
        done = self.lab(f"#!/bin/sh\nsleep 1000 &\necho $$ $! >{marker}\nwait\n", timeout="3s")
        self.assertEqual(done.returncode, 124)
        self.assertIn("not finished after 3 s", done.stderr)
        for pid in marker.read_text(encoding="ascii").split():
            self.assertFalse(os.path.exists(f"/proc/{pid}"), "a process of the guest lives on")
        self.assertTrue(next(self.temporary.glob("sluice-lab.*/node1.console.log")).exists())

    def test_a_report_that_cannot_be_written_does_not_hide_the_status(self):
        # As on a full disk: the artifacts folder has no place for it.
        artifacts = self.temporary / "artifacts"
        (artifacts / "run.json").mkdir(parents=True)
        done = self.lab(self.hanging(0), "--artifacts", os.fspath(artifacts), timeout="60s")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, "cannot write to .*/artifacts: Is a directory; the run's status was 7: .*--artifacts")

    def test_one_that_hangs_at_boot_is_started_again_and_that_is_said(self):
        done = self.lab(self.hanging(2), "--boot-timeout", "3s", timeout="60s", lines=2)
        self.assertEqual(done.returncode, 7, done.stderr)
        again = "sluice lab: node 1 did not come up within 3 s (its last step: the network): it is started again"
        self.assertEqual(done.stderr.splitlines(), [again, again])
        self.assertEqual(list(self.temporary.glob("sluice-lab.*")), [])

    def test_one_that_never_comes_up_has_three_attempts_and_names_where_it_stands(self):
        done = self.lab(self.hanging(1000), "--boot-timeout", "3s", timeout="12s", lines=3)
        self.assertEqual(done.returncode, 124, done.stderr)
        self.assertIn("not finished after 12 s and ended; node 1 had not come up (its last step: the network); logs: ", done.stderr)
        self.assertEqual((self.temporary / "boots").read_text(encoding="ascii"), "3")
        folder = next(self.temporary.glob("sluice-lab.*"))
        self.assertEqual(sorted(path.name for path in folder.glob("*.console.log")), ["node1.boot1.console.log", "node1.boot2.console.log", "node1.console.log"])

    def test_one_that_dies_when_it_is_told_to_stop_was_late_all_the_same(self):
        program = self.hanging(0)
        end = program.index('control.write(b"started')
        done = self.lab(program[:end] + 'control.write(b"started\\n")\nassert control.readline() == b"stop\\n"\nsys.exit(3)\n', timeout="3s")
        self.assertEqual(done.returncode, 124, done.stderr)
        self.assertIn("not finished after 3 s and ended; logs: ", done.stderr)

    def test_one_that_dies_is_quoted(self):
        done = self.lab("#!/bin/sh\necho 'Checking for tmpfs...' >&2\necho 'no room for physical memory' >&2\nexit 1\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("node 1 ended before its command did: no room for physical memory; log: ", done.stderr)

    def test_one_whose_kernel_panics_is_a_complaint(self):
        done = self.lab("#!/bin/sh\necho 'Kernel panic - not syncing: No working init found.' >&2\nexit 1\n")
        self.assertEqual(done.returncode, 99)
        self.assertIn("No working init", done.stderr)

    def test_a_program_that_is_none_is_said(self):
        done = self.lab("\x01\x02")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot start User-Mode Linux", done.stderr)

    def test_a_damaged_cache_is_said_with_the_remedy(self):
        done = self.lab("#!/bin/sh\n", kernel="damaged")
        self.assertEqual(done.returncode, 1)
        self.assertIn("is damaged: remove that folder and run 'sluice lab prepare'", done.stderr)
        shutil.rmtree(self.cache)


if __name__ == "__main__":
    modules.main()
