#!/usr/bin/env python3
"""The cache of kernels: which is taken, that an unfinished one is not, and what is said when there is none."""
import contextlib
import json
import lzma
import pathlib
import shutil
import struct
import tempfile
import types
import unittest
from unittest import mock

import modules
import kernel
from trouble import FAILED, NOTHING_TO_RUN_ON, Trouble

PACKAGE = "linux-image-6.1.0-56-amd64"


def boot_image(payload):
    """A bzImage in so far as the boot protocol's fields go."""
    head = bytearray(0x400)
    head[0x1F1] = 1
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", head, 0x248, 16, len(payload))
    return bytes(head) + b"\0" * 16 + payload + b"trailing"


class Cache(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.cache = pathlib.Path(self.folder.name) / "cache"
        self.said = []

    def add(self, version, kind="tcg"):
        folder = self.cache / f"{kernel.PREFIXES[kind]}{version}"
        release = version.split("_")[0]
        (folder / "lib" / "modules" / release).mkdir(parents=True)
        (folder / "lib" / "modules" / release / "modules.dep").touch()
        (folder / "vmlinux").write_bytes(b"ELF")
        (folder / "about.json").write_text(json.dumps({"release": release, "version": version.split("_")[1], "image": "vmlinux"}), encoding="utf-8")
        return folder

    def test_a_damaged_one_is_named_with_the_remedy(self):
        for damage in (lambda folder: (folder / "about.json").write_text("{", encoding="utf-8"), lambda folder: (folder / "about.json").write_text("[]", encoding="utf-8"),
                       lambda folder: (folder / "vmlinux").write_bytes(b""), lambda folder: (folder / "vmlinux").unlink(),
                       lambda folder: (folder / "lib" / "modules" / "6.1.0-56-amd64" / "modules.dep").unlink()):
            folder = self.add("6.1.0-56-amd64_6.1.192-2")
            damage(folder)
            with self.assertRaisesRegex(Trouble, f"{folder} is damaged: remove.*sluice lab prepare"):
                kernel.prepared(self.cache)
            shutil.rmtree(folder)

    def test_the_newest_is_taken_by_number(self):
        self.add("6.1.0-9-amd64_6.1.27-1")
        self.add("6.1.0-56-amd64_6.1.192-2")
        self.add("6.1.0-56-amd64_6.1.192-10")
        self.assertEqual(kernel.prepared(self.cache).version, "6.1.192-10")

    def test_the_newer_kind_is_another(self):
        self.add("6.1.0-56-amd64_6.1.192-2")
        self.assertIsNone(kernel.prepared(self.cache, "tcg-6.12"))
        self.add("6.12.117+deb12-amd64_6.12.117-1", "tcg-6.12")
        self.assertEqual(kernel.prepared(self.cache).version, "6.1.192-2")
        self.assertEqual(kernel.prepared(self.cache, "tcg-6.12").version, "6.12.117-1")

    def test_compressed_modules_are_plain_afterwards(self):
        (self.cache / "kernel").mkdir(parents=True)
        (self.cache / "kernel" / "veth.ko.xz").write_bytes(lzma.compress(b"ELF"))
        (self.cache / "kernel" / "plain.ko").write_bytes(b"plain")
        kernel._plain_modules(self.cache)
        self.assertEqual({path.name: path.read_bytes() for path in (self.cache / "kernel").iterdir()}, {"veth.ko": b"ELF", "plain.ko": b"plain"})

    def test_none_and_unfinished_ones_are_none(self):
        self.assertIsNone(kernel.prepared(self.cache))
        (self.cache / f"kernel.{kernel.LAYOUT}.6.1.0-56-amd64_6.1.192-2").mkdir(parents=True)
        (self.cache / "unfinished.abc" / "kernel").mkdir(parents=True)
        self.assertIsNone(kernel.prepared(self.cache))

    def test_headers_are_debians_of_the_same_version(self):
        with self.assertRaisesRegex(Trouble, "sluice lab prepare") as caught:
            kernel.headers(self.cache)
        self.assertEqual(caught.exception.code, NOTHING_TO_RUN_ON)
        self.add("6.1.0-56-amd64_6.1.192-2")
        with mock.patch.object(kernel, "SOURCES_FOLDER", self.cache):
            with self.assertRaisesRegex(Trouble, "apt-get install linux-headers-6.1.0-56-amd64"):
                kernel.headers(self.cache)
            (self.cache / "linux-headers-6.1.0-56-amd64").mkdir()
            self.assertEqual(kernel.headers(self.cache), self.cache / "linux-headers-6.1.0-56-amd64")

    def prepare(self, **replaced):
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(kernel, "candidate", lambda _: (PACKAGE, "6.1.192-2")))
            for name, function in replaced.items():
                stack.enter_context(mock.patch.object(kernel, name, function))
            return kernel.prepare(self.cache, self.said.append)

    def test_what_a_killed_prepare_left_is_removed(self):
        (self.cache / "unfinished.abc" / "kernel").mkdir(parents=True)
        with self.assertRaises(Trouble):
            self.prepare(download=mock.Mock(side_effect=Trouble("no network")))
        self.assertEqual([path.name for path in self.cache.iterdir()], ["lock"])

    def test_a_second_prepare_fetches_nothing(self):
        self.add("6.1.0-56-amd64_6.1.192-2")
        self.assertEqual(self.prepare(download=self.fail).release, "6.1.0-56-amd64")
        self.assertEqual(self.said, [])

    def test_a_prepare_that_fails_leaves_nothing_but_its_lock(self):
        def failing(*_):
            raise Trouble("no network")

        with self.assertRaisesRegex(Trouble, "no network"):
            self.prepare(download=failing)
        self.assertEqual([path.name for path in self.cache.iterdir()], ["lock"])

    def test_a_full_disk_is_said_before_and_while_it_is_written(self):
        with self.assertRaisesRegex(Trouble, "5 MiB free.*SLUICE_LAB_CACHE"), mock.patch.object(kernel.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=5 << 20)):
            self.prepare(download=self.fail)

        def full(*_):
            raise OSError(28, "No space left on device")

        with self.assertRaisesRegex(Trouble, "is full.*SLUICE_LAB_CACHE") as caught:
            self.prepare(download=lambda *_: "archive", _unpack=full)
        self.assertEqual(caught.exception.code, FAILED)

    def test_a_cache_that_cannot_be_written_is_said(self):
        # As one that root has made: its lock cannot be opened. Root may open any, but no folder.
        (self.cache / "lock").mkdir(parents=True)
        with self.assertRaisesRegex(Trouble, "cannot prepare the kernel in .*lock.*; .*SLUICE_LAB_CACHE") as caught:
            self.prepare(download=self.fail)
        self.assertEqual(caught.exception.code, FAILED)

    def test_a_download_that_takes_too_long_is_ended_and_said(self):
        self.cache.mkdir()
        program = self.cache / "apt-get"
        program.write_text("#!/bin/sh\nexec sleep 1000\n", encoding="ascii")
        program.chmod(0o755)
        with mock.patch.dict("os.environ", {"PATH": f"{self.cache}:/usr/bin:/bin"}), mock.patch.object(kernel, "DOWNLOAD_SECONDS", 1):
            with self.assertRaisesRegex(Trouble, "took more than 1 s: check the network") as caught:
                kernel.download("linux-image-amd64=1", self.cache)
        self.assertEqual(caught.exception.code, NOTHING_TO_RUN_ON)

    def test_a_cache_that_cannot_be_made_is_said(self):
        self.cache = pathlib.Path("/proc/sluice-lab")
        with self.assertRaisesRegex(Trouble, "SLUICE_LAB_CACHE"):
            self.prepare()

    def test_without_apt_there_is_nothing_to_run_on(self):
        with mock.patch.object(kernel.shutil, "which", lambda _: None), self.assertRaisesRegex(Trouble, "apt-get") as caught:
            kernel.candidate()
        self.assertEqual(caught.exception.code, NOTHING_TO_RUN_ON)


class BootImage(unittest.TestCase):
    def test_the_elf_inside_is_found(self):
        elf = b"\x7fELF" + bytes(range(256)) * 64
        # As the kernel's build does: a stream, and four bytes of its length behind it.
        self.assertEqual(kernel.vmlinux_of(boot_image(lzma.compress(elf, lzma.FORMAT_XZ) + struct.pack("<I", len(elf)))), elf)

    def test_what_is_not_understood_is_booted_as_it_is(self):
        for image in (b"", b"\0" * 0x400, boot_image(b"\x28\xb5\x2f\xfdzstd"), boot_image(b"\xfd7zXZ\0broken"), boot_image(lzma.compress(b"no elf", lzma.FORMAT_XZ))):
            self.assertIsNone(kernel.vmlinux_of(image))


if __name__ == "__main__":
    modules.main()
