#!/usr/bin/env python3
"""The archive that a guest starts from: its format, its modules in loading order, and the command in it."""
import os
import pathlib
import stat
import subprocess
import tempfile
import types
import unittest
from unittest import mock

import modules
import initramfs
from trouble import NOTHING_TO_RUN_ON, Trouble

MODULES_DEP = """\
kernel/a/9p.ko: kernel/a/9pnet.ko kernel/a/netfs.ko
kernel/a/9pnet.ko:
kernel/a/netfs.ko:
kernel/a/9pnet_virtio.ko: kernel/a/9pnet.ko kernel/a/virtio.ko kernel/a/virtio_ring.ko
kernel/a/virtio.ko:
kernel/a/virtio_ring.ko: kernel/a/virtio.ko
kernel/a/virtio_pci.ko: kernel/a/virtio.ko kernel/a/virtio_ring.ko
kernel/a/virtio_console.ko: kernel/a/virtio.ko kernel/a/virtio_ring.ko
kernel/a/virtio_net.ko: kernel/a/virtio.ko kernel/a/virtio_ring.ko
kernel/a/overlay.ko:
kernel/a/sch_netem.ko:
kernel/a/dummy.ko:
kernel/a/crc32_generic.ko:
kernel/b/rdma_rxe.ko: kernel/b/ib_uverbs.ko kernel/b/ib_core.ko
kernel/b/ib_uverbs.ko: kernel/b/ib_core.ko
kernel/b/ib_core.ko:
kernel/b/rdma_ucm.ko: kernel/b/ib_uverbs.ko kernel/b/ib_core.ko
kernel/b/not-needed.ko: kernel/b/ib_core.ko
"""


def entries(archive):
    """name -> (mode, content), read as cpio(5) says."""
    found, at = {}, 0
    while True:
        head = archive[at:at + 110]
        assert head[:6] == b"070701", head
        fields = [int(head[6 + 8 * index:14 + 8 * index], 16) for index in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = archive[at + 110:at + 110 + name_size - 1].decode()
        start = at + 110 + name_size + (-(110 + name_size) % 4)
        if name == "TRAILER!!!":
            return found
        found[name] = (mode, archive[start:start + size])
        at = start + size + (-size % 4)


class Archive(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        root = pathlib.Path(self.folder.name)
        (root / "modules.dep").write_text(MODULES_DEP, encoding="utf-8")
        for line in MODULES_DEP.splitlines():
            path = root / line.split(":")[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(path.name.encode())
        self.kernel = types.SimpleNamespace(modules=root)
        busybox = mock.patch.object(initramfs, "busybox", lambda: b"\x7fELF static")
        busybox.start()
        self.addCleanup(busybox.stop)

    def build(self, nodes=1, settings=None, command=b"exec true\n"):
        return entries(initramfs.build(self.kernel, b"#!/bin/sh\n", nodes, settings or {"NODE": 1}, command, b"fault"))

    def order(self, archive):
        return (archive["lab/modules.first"][1] + archive["lab/modules.second"][1]).decode().split()

    def test_every_module_comes_after_what_it_needs_and_once(self):
        loaded = self.order(self.build())
        self.assertEqual(len(loaded), len(set(loaded)))
        for line in MODULES_DEP.splitlines():
            path, _, needs = line.partition(":")
            name = os.path.basename(path)
            for need in needs.split() if name in loaded else ():
                self.assertLess(loaded.index(os.path.basename(need)), loaded.index(name))

    def test_the_checksum_that_soft_roce_asks_for_by_name_is_loaded_before_it(self):
        loaded = self.order(self.build())
        self.assertLess(loaded.index("crc32_generic.ko"), loaded.index("rdma_rxe.ko"))

    def test_no_module_is_carried_that_is_not_needed(self):
        archive = self.build()
        self.assertNotIn("lab/not-needed.ko", archive)
        self.assertEqual({name for name in archive if name.endswith(".ko")}, {f"lab/{name}" for name in self.order(archive)})

    def test_frames_need_their_driver_only_with_two_nodes(self):
        self.assertNotIn("virtio_net.ko", self.order(self.build(nodes=1)))
        self.assertIn("virtio_net.ko", self.order(self.build(nodes=2)))

    def test_init_and_busybox_can_be_executed(self):
        archive = self.build()
        for name in ("init", "bin/busybox"):
            self.assertEqual(archive[name][0], stat.S_IFREG | 0o755)
        self.assertEqual(archive["bin/sh"], (stat.S_IFLNK | 0o777, b"busybox"))

    def test_the_folder_of_each_file_comes_before_it(self):
        seen = set()
        for name in self.build():
            self.assertIn(os.path.dirname(name), seen | {""})
            seen.add(name)

    def test_settings_survive_a_shell(self):
        value = "it's $HOME; `id` \"x\" \\ ü"
        text = self.build(settings={"ARTIFACTS": value})["lab/settings"][1]
        shown = subprocess.run(["sh", "-c", text.decode() + 'printf %s "$ARTIFACTS"'], capture_output=True, check=True).stdout
        self.assertEqual(shown.decode(), value)

    def test_what_is_built_in_is_not_carried(self):
        (self.kernel.modules / "modules.dep").write_text(MODULES_DEP.replace("kernel/b/rdma_rxe.ko:", "kernel/b/other.ko:"), encoding="utf-8")
        (self.kernel.modules / "modules.builtin").write_text("kernel/b/rdma_rxe.ko\n", encoding="utf-8")
        self.assertNotIn("rdma_rxe.ko", self.order(self.build()))

    def test_a_kernel_without_soft_roce_is_named(self):
        (self.kernel.modules / "modules.dep").write_text(MODULES_DEP.replace("kernel/b/rdma_rxe.ko:", "kernel/b/other.ko:"), encoding="utf-8")
        with self.assertRaisesRegex(Trouble, "no module rdma_rxe.*sluice lab prepare"):
            self.build()


class Command(unittest.TestCase):
    def run_script(self, arguments, environment):
        script = initramfs.command_script(arguments, environment)
        return subprocess.run(["sh", "-c", script], capture_output=True, check=False, env={"PATH": os.environ["PATH"], "OTHER": "gone"})

    def test_arguments_and_environment_arrive_byte_for_byte(self):
        arguments = ["printf", "%s|", "", "a b", "it's", "$HOME", "line\nline", "ü", os.fsdecode(b"\xff")]
        done = self.run_script(arguments, {"PATH": os.environ["PATH"]})
        self.assertEqual(done.stdout, b"|a b|it's|$HOME|line\nline|\xc3\xbc|\xff|")
        environment = {"PATH": os.environ["PATH"], "BASH_FUNC_x%%": "() {  :\n}", "Q": "'\""}
        done = self.run_script(["env", "-0"], environment)
        self.assertEqual(dict(entry.split("=", 1) for entry in done.stdout.decode().strip("\0").split("\0")), environment)

    def test_a_program_may_have_an_equals_sign_in_its_name(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "mode=fast"
            program.write_text('#!/bin/sh\nprintf "%s|" ran "$@"; exit 42\n', encoding="ascii")
            program.chmod(0o755)
            done = self.run_script([os.fspath(program), "a b", "c=d"], {"PATH": os.environ["PATH"]})
        self.assertEqual((done.stdout, done.returncode), (b"ran|a b|c=d|", 42))

    def test_it_runs_where_we_are_with_our_mask_and_status(self):
        done = self.run_script(["sh", "-c", "pwd; umask; exit 41"], {"PATH": os.environ["PATH"]})
        mask = os.umask(0)
        os.umask(mask)
        self.assertEqual(done.stdout.decode().split(), [os.getcwd(), f"{mask:04o}"])
        self.assertEqual(done.returncode, 41)


class Busybox(unittest.TestCase):
    def test_one_that_needs_libraries_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "busybox"
            path.write_bytes(b"\x7fELF" + b"\0" * 600 + b"/lib64/ld-linux-x86-64.so.2\0")
            path.chmod(0o755)
            with mock.patch.dict(os.environ, {"PATH": folder}), self.assertRaisesRegex(Trouble, "busybox-static") as caught:
                initramfs.busybox()
            self.assertEqual(caught.exception.code, NOTHING_TO_RUN_ON)


if __name__ == "__main__":
    modules.main()
