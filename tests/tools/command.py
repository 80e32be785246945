"""Runs the built command the way a user does, and audits what it leaves behind.

A test script calls `main()`; its first argument is the binary. It says how many tests were skipped.
"""
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

# An upper bound on a hang, not on speed.
LIMIT_SECONDS = 240
PR_SET_CHILD_SUBREAPER = 36

BINARY = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else ""


def depth(test, operations):
    """Flags for so many operations under way, where a test of `sluice perf` has more than one."""
    return () if test.endswith("_lat") else ("-t", str(operations))


def environment(**extra):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    kept.update(extra)
    return kept


class CommandTest(unittest.TestCase):
    """Each test has a folder of its own; at its end no process and no file may be left."""

    def setUp(self):
        # Orphans of the command become our children, so that they can be found.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.shm_before = set(os.listdir("/dev/shm"))
        self.expected_files = set()
        self.addCleanup(self.audit)

    def audit(self):
        with self.assertRaises(ChildProcessError, msg="a process was left behind"):
            os.waitpid(-1, os.WNOHANG)
        left = {name for name in os.listdir("/dev/shm") if "sluice" in name} - self.shm_before
        self.assertEqual(left, set(), "files were left in /dev/shm")
        self.assertEqual(set(os.listdir(self.folder)), self.expected_files)

    def file(self, name):
        """Path of a file that the command is expected to make."""
        self.expected_files.add(name)
        return os.path.join(self.folder, name)

    def run_command(self, *arguments, expect=0, within=(), **extra):
        """`within`: a command that runs it, for example in another network."""
        done = subprocess.run([*within, BINARY, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=LIMIT_SECONDS, env=environment(**extra), check=False)
        self.assertEqual(done.returncode, expect, f"{arguments}\n{done.stdout}\n{done.stderr}")
        return done

    def start(self, *arguments, within=()):
        process = subprocess.Popen([*within, BINARY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   stdin=subprocess.DEVNULL, env=environment())
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LIMIT_SECONDS)

    def perf(self, *arguments, expect=0):
        """Runs `sluice perf` and returns its JSON."""
        path = self.file("result.json")
        self.run_command("perf", *arguments, "--json", path, expect=expect)
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


def main():
    assert BINARY and os.access(BINARY, os.X_OK), "usage: TEST.py BINARY"
    result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2, exit=False).result
    if result.skipped:
        print(f"sluice-skips {len(result.skipped)}", flush=True)  # tools/test adds them up
    sys.exit(not result.wasSuccessful())
