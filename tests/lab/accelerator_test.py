#!/usr/bin/env python3
"""KVM or emulation: the probe gives up on a guest that does not boot, ends it, and is not repeated."""
import json
import os
import pathlib
import subprocess
import tempfile
import types
import unittest
from unittest import mock

import modules
import accelerator
import initramfs
import qemu
from trouble import Trouble

# Each stands for QEMU; the console is where the argument after -chardev says.
HANGS = "#!/bin/sh\necho $$ >{folder}/pid\nexec sleep 1000\n"
FAILS = "#!/bin/sh\necho 'Could not access KVM kernel module' >&2\nexit 1\n"
BOOTS = "#!/bin/sh\nfor a; do case \"$a\" in file,id=console,path=*) echo 'sluice-lab: booted' >\"${a#file,id=console,path=}\";; esac; done\n"


class Probe(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.kernel = types.SimpleNamespace(image=self.folder / "vmlinux", label="test")
        for target, name, value in ((initramfs, "minimal", lambda init: b""), (accelerator, "PROBE_SECONDS", 3.0),
                                    (accelerator.os.path, "exists", lambda _: True), (accelerator.os, "access", lambda *_: True)):
            patch = mock.patch.object(target, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def choose(self, program, wanted="auto"):
        path = self.folder / "qemu"
        path.write_text(program.replace("{folder}", os.fspath(self.folder)), encoding="utf-8")
        path.chmod(0o755)
        with mock.patch.object(qemu, "emulator", lambda: os.fspath(path)):
            return accelerator.choose(wanted, self.kernel, self.folder)

    def test_a_guest_that_hangs_is_ended_and_emulation_is_chosen(self):
        chosen, why = self.choose(HANGS)
        self.assertEqual(chosen, "tcg")
        self.assertIn("did not boot within", why)
        with self.assertRaises(ProcessLookupError):
            os.kill(int((self.folder / "pid").read_text(encoding="utf-8")), 0)

    def test_a_signal_during_the_probe_ends_its_guest_and_removes_its_files(self):
        communicate, guests = subprocess.Popen.communicate, []

        def interrupted(guest, *arguments, **more):
            if not guests:
                guests.append(guest)
                raise Trouble("ended by a signal", 143)  # as lab.py's handler does
            return communicate(guest, *arguments, **more)

        with mock.patch.object(tempfile, "tempdir", os.fspath(self.folder)), mock.patch.object(subprocess.Popen, "communicate", interrupted), self.assertRaises(Trouble):
            self.choose(HANGS)
        self.assertEqual(guests[0].returncode, -9)
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name.startswith("sluice-lab-kvm.")], [])

    def test_an_emulator_that_fails_is_quoted(self):
        self.assertEqual(self.choose(FAILS), ("tcg", "KVM does not work here: Could not access KVM kernel module"))

    def test_a_guest_that_boots_is_the_proof(self):
        self.assertEqual(self.choose(BOOTS), ("kvm", "a guest booted with it"))

    def test_the_answer_is_kept_until_something_changes(self):
        self.choose(BOOTS)
        with mock.patch.object(accelerator, "_probe", self.fail), mock.patch.object(accelerator, "_emulator_age", lambda: json.loads((self.folder / "kvm.json").read_text())["key"][3]):
            self.assertEqual(self.choose(FAILS)[0], "kvm")
        with mock.patch.object(accelerator, "_boot_id", lambda: "another"):
            self.assertEqual(self.choose(FAILS)[0], "tcg")

    def test_a_broken_cache_costs_a_probe(self):
        for content in ("{", "[]", "null", '{"key": 1}'):
            with self.subTest(content=content):
                (self.folder / "kvm.json").write_text(content, encoding="utf-8")
                self.assertEqual(self.choose(BOOTS)[0], "kvm")

    def test_asked_for_emulation_nothing_is_probed(self):
        with mock.patch.object(accelerator, "_probe", self.fail):
            self.assertEqual(self.choose(FAILS, "tcg"), ("tcg", "as asked"))

    def test_nothing_is_probed_without_the_device(self):
        with mock.patch.object(accelerator.os.path, "exists", lambda _: False), mock.patch.object(accelerator, "_probe", self.fail):
            self.assertEqual(self.choose(FAILS), ("tcg", "there is no /dev/kvm"))


if __name__ == "__main__":
    modules.main()
