#!/usr/bin/env python3
"""`sluice lab` where it cannot run: as a process, without a guest. What it says, its exit code, and nothing left."""
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import modules
import kernel
import lab

LIMIT_SECONDS = 60


class Refusals(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        root = pathlib.Path(self.folder.name)
        self.tools, self.cache, self.temporary = root / "bin", root / "cache", root / "tmp"
        for path in (self.tools, self.cache, self.temporary):
            path.mkdir()

    def environment(self, path=None):
        return {"PATH": os.fspath(path or self.tools), "HOME": self.folder.name, "SLUICE_LAB_CACHE": os.fspath(self.cache), "TMPDIR": os.fspath(self.temporary)}

    def start(self, *arguments):
        return subprocess.Popen([sys.executable, "-B", os.path.join(modules.LAB, "lab.py"), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=self.environment(), preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def lab(self, *arguments, path=None):
        done = subprocess.run([sys.executable, "-B", os.path.join(modules.LAB, "lab.py"), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env=self.environment(path), timeout=LIMIT_SECONDS, check=False)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertEqual(list(self.temporary.iterdir()), [], "a temporary file was left")
        return done

    def test_a_command_that_does_not_exist(self):
        done = self.lab("run", "--", "no-such-command")
        self.assertEqual(done.returncode, 127)
        self.assertIn("'no-such-command' is in no folder of PATH", done.stderr)
        self.assertEqual(self.lab("run", "--", "./missing").returncode, 127)

    def test_a_command_that_cannot_be_executed(self):
        for name in ("/etc/passwd", "/etc"):
            done = self.lab("run", "--", name)
            self.assertEqual(done.returncode, 126)
            self.assertIn("cannot be executed", done.stderr)

    def add_tool(self, name, content):
        (self.tools / name).write_bytes(content)
        (self.tools / name).chmod(0o755)

    def add_tools(self):
        self.add_tool("qemu-system-x86_64", b"#!/bin/false\n")
        self.add_tool("busybox", b"#!/bin/false\n")

    def test_no_kernel_and_no_apt(self):
        self.add_tools()
        done = self.lab("run", "--", "/bin/true")
        self.assertEqual(done.returncode, 77)
        self.assertIn("apt-get", done.stderr)

    def test_no_emulator(self):
        done = self.lab("run", "--kernel", "tcg", "--memory", "512M", "--", "/bin/true")
        self.assertEqual(done.returncode, 77)
        self.assertIn("apt-get install qemu-system-x86", done.stderr)

    def test_no_busybox(self):
        self.add_tool("qemu-system-x86_64", b"#!/bin/false\n")
        self.add_tool("busybox", b"\x7fELF needs /lib64/ld-linux-x86-64.so.2")
        done = self.lab("run", "--", "/bin/true")
        self.assertEqual(done.returncode, 77)
        self.assertIn("busybox-static", done.stderr)

    def test_logs_that_cannot_be_written(self):
        self.add_tools()
        self.add_kernel()
        done = self.lab("run", "--kernel", "tcg", "--memory", "512M", "--artifacts", "/proc/nowhere", "--", "/bin/true")
        self.assertEqual(done.returncode, 1)
        self.assertIn("--artifacts", done.stderr)

    def test_more_memory_than_there_is(self):
        self.add_tools()
        self.add_kernel()
        done = self.lab("run", "--kernel", "tcg", "--memory", "1000G", "--", "/bin/true")
        self.assertEqual(done.returncode, 1)
        self.assertIn("smaller --memory", done.stderr)

    def test_a_folder_that_the_guest_does_not_have(self):
        done = self.lab("run", "--", "/dev/shm/program")
        self.assertEqual(done.returncode, 1)
        self.assertIn("is not in the guest", done.stderr)

    def test_a_shell_needs_a_terminal(self):
        done = self.lab("shell")
        self.assertEqual(done.returncode, 1)
        self.assertIn("terminal", done.stderr)

    def test_a_socket_of_another_program_is_no_run(self):
        # As /proc/net/unix lists them; real ones may be those of other labs on this machine.
        table = "".join(f"0000000000000000: 00000002 00000000 00010000 0005 01 123 @sluice-lab-{os.getuid()}-{end}\n" for end in ("77", "mine", "", "7x"))
        with mock.patch("builtins.open", mock.mock_open(read_data=table)):
            self.assertEqual(lab._only_run(), 77)

    def test_a_signal_while_a_kernel_is_fetched_leaves_nothing(self):
        started = self.temporary / "started"
        os.mkfifo(started)
        self.add_tool("dpkg-deb", b"#!/bin/sh\n")
        self.add_tool("apt-cache", b"#!/bin/sh\necho 'Depends: linux-image-6.1.0-1-amd64'\necho 'Version: 6.1.1-1'\n")
        self.add_tool("apt-get", f"#!/bin/sh\necho $$ >'{started}'\nexec /bin/sleep 1000\n".encode())
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number=number), self.start("prepare") as process:
                with open(started, encoding="ascii") as said:
                    download = os.pidfd_open(int(said.read()))
                process.send_signal(number)
                out, errors = process.communicate(timeout=LIMIT_SECONDS)
                self.assertEqual((process.returncode, out), (128 + number, ""), errors)
                self.assertEqual([line for line in errors.splitlines() if "fetching" not in line], ["sluice lab: ended by a signal; nothing of it is left"])
                self.assertTrue(select.select([download], [], [], LIMIT_SECONDS)[0], "the download went on")
                os.close(download)
                self.assertEqual([path.name for path in self.cache.iterdir()], ["lock"])

    def test_a_fault_needs_a_run(self):
        done = self.lab("fault", "--run", "1", "link-down")
        self.assertEqual(done.returncode, 1)
        self.assertIn("process 1 does not answer", done.stderr)

    def add_kernel(self):
        folder = self.cache / f"kernel.{kernel.LAYOUT}.6.1.0-1-amd64_6.1.1-1"
        (folder / "lib" / "modules" / "6.1.0-1-amd64").mkdir(parents=True)
        (folder / "lib" / "modules" / "6.1.0-1-amd64" / "modules.dep").touch()
        (folder / "vmlinux").write_bytes(b"ELF")
        (folder / "about.json").write_text('{"release": "6.1.0-1-amd64", "version": "6.1.1-1", "image": "vmlinux"}', encoding="utf-8")


if __name__ == "__main__":
    modules.main()
