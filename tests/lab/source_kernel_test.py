#!/usr/bin/env python3
"""Kernels built from source: which is taken, what is said when none can be, and what a failed build leaves. No build runs here."""
import json
import os
import pathlib
import select
import tempfile
import types
import unittest
from unittest import mock

import modules
import kernel
import source_kernel
from trouble import NOTHING_TO_RUN_ON, Trouble

# What is changed in the source for User-Mode Linux, as it stands there.
PTRACE = "ptrace(1, pid, NULL,\n\t(void *) PTRACE_O_TRACESYSGOOD) < 0) a;\nptrace(1, pid, NULL,\n\t(void *)PTRACE_O_TRACESYSGOOD) < 0) b;\n"
REGISTERS = ("int have_xstate_support;\n\tiov.iov_len = FP_SIZE * sizeof(unsigned long);\n\tif (ptrace(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &iov) < 0)\n"
             "\tiov.iov_len = FP_SIZE * sizeof(unsigned long);\n\tif (ptrace(PTRACE_GETREGSET, 0, NT_X86_XSTATE, &iov) < 0)\n\t\thave_xstate_support = 1;\n")
KNOWN = {"arch/um/os-Linux/skas/process.c": PTRACE, "arch/x86/um/user-offsets.c": "DEFINE_LONGS(HOST_FP_SIZE, 2696);\n", "arch/x86/um/os-Linux/registers.c": REGISTERS}
LIMIT_SECONDS = 20  # a bound on a hang, not on speed
# Stands for make: its first call is the configuration, its second the build.
MAKE = """#!/bin/sh
for word; do case "$word" in O=*) objects=${{word#O=}};; KCONFIG_ALLCONFIG=*) wanted=${{word#KCONFIG_ALLCONFIG=}};; esac; done
if [ -n "$wanted" ]; then {configure}; exit; fi
{build}
"""
CONFIGURE = 'cp "$wanted" "$objects/.config"'
BUILD = ('mkdir -p "$objects/include/config" "$objects/scripts/mod" "$objects/tools/objtool" "$objects/arch/x86/boot" "$objects/arch/x86/include/generated"; '
         'echo 6.1.1-test >"$objects/include/config/kernel.release"; echo kernel >"$objects/linux"; echo packed >"$objects/arch/x86/boot/bzImage"; '
         'for made in Module.symvers Makefile scripts/mod/modpost tools/objtool/objtool tools/objtool/objtool.o scripts/mod/modpost.o include/config/auto.conf.cmd vmlinux.o arch/x86/kernel.o '
         'arch/x86/include/generated/made.h; do echo made >"$objects/$made"; done')
# What there is of the source, and what of it and of BUILD is kept for modules.
SOURCE = ("Makefile", "Kbuild", "include/linux/module.h", "scripts/Makefile.build", "arch/x86/Makefile", "arch/x86/um/shared/sysdep.h", "arch/x86/kernel/code.c",
          "arch/um/Makefile-skas", "arch/um/include/asm/page.h", "arch/arm/Makefile", "arch/arm/include/asm/page.h", "drivers/net/driver.h")
KEPT = [".config", "GNUmakefile", "Makefile", "Module.symvers", "arch/x86/Makefile", "arch/x86/include/generated/made.h", "arch/x86/um/shared/sysdep.h", "arch/um/Makefile-skas",
        "arch/um/include/asm/page.h", "include/config/kernel.release", "include/linux/module.h", "scripts/Makefile.build", "scripts/mod/modpost", "tools/objtool/objtool"]


def ends(pid):
    """Blocks: for LIMIT_SECONDS if it does not."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], LIMIT_SECONDS)[0])
    finally:
        os.close(descriptor)


class SourceKernel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = pathlib.Path(folder.name) / "cache"
        self.tools = pathlib.Path(folder.name) / "bin"
        self.tools.mkdir()
        self.said = []

    def add(self, version, key=None, kind="uml"):
        folder = self.cache / f"{kind}.{key or source_kernel._key(kind)}.{version}"
        folder.mkdir(parents=True)
        (folder / "linux").write_bytes(b"ELF")
        (folder / "about.json").write_text(json.dumps({"release": "6.1", "version": version, "image": "linux", "builtin": True}), encoding="utf-8")

    def unpack(self, _, work):
        source = work / "linux-source-6.1"
        for name, text in {**dict.fromkeys(SOURCE, "source\n"), **KNOWN}.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(text, encoding="utf-8")
        return source

    def prepare(self, configure=CONFIGURE, build=BUILD, kind="uml", **replaced):
        make = self.tools / "make"
        make.write_text(MAKE.format(configure=configure, build=build), encoding="utf-8")
        make.chmod(0o755)
        functions = {"_unpack": self.unpack, "_check_tools": lambda _: None, "candidate": lambda: ("linux-source-6.1", "6.1.192-2"), **replaced}
        with mock.patch.multiple(source_kernel, **functions), mock.patch.multiple(kernel, download=lambda *_: "archive", run=lambda *command: pathlib.Path(command[-2]).write_bytes(b"ELF")), \
                mock.patch.dict(os.environ, {"PATH": f"{self.tools}:{os.environ['PATH']}"}):
            return source_kernel.prepare(self.cache, kind, self.said.append)

    def left(self):
        return [path.name for path in self.cache.iterdir()]

    def test_the_newest_with_todays_configuration_is_taken(self):
        self.add("6.1.9-1")
        self.add("6.1.192-2")
        self.add("6.1.999-1", key="0123456789ab")
        self.add("6.1.999-1", kind="uml-debug")
        self.assertEqual(source_kernel.prepared(self.cache, "uml").version, "6.1.192-2")

    def test_a_changed_configuration_is_another_kernel(self):
        self.add("6.1.192-2")
        with mock.patch.object(source_kernel, "configuration", lambda _: b"CONFIG_OTHER=y\n"):
            self.assertIsNone(source_kernel.prepared(self.cache, "uml"))

    def test_a_later_file_of_a_kind_sets_an_option_again(self):
        self.cache.mkdir()
        (self.cache / "first.config").write_bytes(b"# why\nCONFIG_SIZE=3\nCONFIG_OTHER=y\n")
        (self.cache / "second.config").write_bytes(b"CONFIG_SIZE=4\n")
        kind = source_kernel.KINDS["uml"]._replace(configurations=("first.config", "second.config"))
        with mock.patch.object(source_kernel, "HERE", self.cache), mock.patch.dict(source_kernel.KINDS, {"uml": kind}):
            self.assertEqual(source_kernel.configuration("uml"), b"CONFIG_SIZE=4\nCONFIG_OTHER=y\n")

    def test_a_run_builds_nothing_and_says_what_does(self):
        with self.assertRaisesRegex(Trouble, "sluice lab prepare --kernel uml") as caught:
            source_kernel.require(self.cache, "uml")
        self.assertEqual(caught.exception.code, NOTHING_TO_RUN_ON)

    def test_a_build_is_kept_and_not_repeated(self):
        built = self.prepare()
        self.assertEqual((built.release, built.version, built.modules), ("6.1.1-test", "6.1.192-2", None))
        self.assertEqual(sorted(path.name for path in built.folder.iterdir()), ["about.json", "config", "headers", "linux"])
        self.assertEqual(self.prepare(_unpack=self.fail).folder, built.folder)
        self.assertEqual(sorted(self.left()), sorted(["lock", built.folder.name]), "source and objects are removed")

    def test_a_compressed_image_is_kept_as_it_is(self):
        built = self.prepare(kind="tcg-debug")
        self.assertEqual(built.image.read_text(encoding="utf-8"), "packed\n", "it is no ELF file that could be stripped")
        self.assertFalse((built.headers / "arch/um").exists())
        self.assertIn("ARCH := x86_64", (built.headers / "GNUmakefile").read_text(encoding="utf-8"))

    def test_what_a_module_needs_is_kept_and_nothing_else(self):
        kept = self.prepare(kind="uml-debug").headers
        self.assertEqual(source_kernel.headers(self.cache, "uml-debug"), kept)
        self.assertEqual(sorted(os.fspath(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()), sorted(KEPT))
        self.assertEqual((kept / "Makefile").read_text(encoding="utf-8"), "source\n", "the one of the build names folders that are gone")
        self.assertIn("ARCH := um", (kept / "GNUmakefile").read_text(encoding="utf-8"))

    def test_a_kernel_built_before_headers_were_kept_says_so(self):
        self.add("6.1.192-2")
        with self.assertRaisesRegex(Trouble, "without headers: remove it and run 'sluice lab prepare --kernel uml'"):
            source_kernel.headers(self.cache, "uml")

    def changed(self, kind="uml"):
        """The files of KNOWN as the build finds them."""
        seen = {}

        def read(*_):
            source = next(self.cache.glob("unfinished.*/linux-source-6.1"))
            seen.update((name, (source / name).read_text(encoding="utf-8")) for name in KNOWN)
        self.prepare(kind=kind, _check_configuration=read)
        return seen

    def test_the_guests_processes_are_bound_to_their_kernel(self):
        self.assertEqual(self.changed()["arch/um/os-Linux/skas/process.c"].count("PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL"), 2)

    def test_as_many_registers_go_back_as_came(self):
        changed = self.changed()
        self.assertIn("DEFINE_LONGS(HOST_FP_SIZE, 12288)", changed["arch/x86/um/user-offsets.c"])
        back, fetched = changed["arch/x86/um/os-Linux/registers.c"].split("PTRACE_SETREGSET")
        self.assertIn("iov_len = xstate_bytes;", back)
        self.assertIn("iov_len = FP_SIZE * sizeof(unsigned long);", fetched, "asked for: all there is room for")
        self.assertIn("xstate_bytes = iov.iov_len;", fetched)

    def test_another_architecture_is_built_as_it_is(self):
        self.assertEqual(self.changed("tcg-debug"), KNOWN)

    def test_a_source_that_is_not_as_known_is_refused(self):
        for name in KNOWN:
            with self.subTest(name), mock.patch.dict(KNOWN, {name: "nothing\n"}), self.assertRaisesRegex(Trouble, f"{pathlib.Path(name).name} has .* 0 times, not"):
                self.prepare()

    def test_an_option_that_the_source_refuses_is_named(self):
        with self.assertRaisesRegex(Trouble, "refuses CONFIG_RDMA_SIW=y"):
            self.prepare(configure='grep -v SIW "$wanted" >"$objects/.config"')

    def test_a_failed_build_quotes_its_error_and_leaves_nothing(self):
        with self.assertRaisesRegex(Trouble, "does not build: a.c:1: error: no"):
            self.prepare(build="echo working; echo 'a.c:1: error: no' >&2; echo 'make: *** Error 2' >&2; exit 2")
        self.assertEqual(self.left(), ["lock"])

    def test_a_signal_ends_the_build_and_leaves_nothing(self):
        marker = self.tools / "pids"
        with self.assertRaisesRegex(Trouble, "ended by a signal") as caught:
            self.prepare(build=f"sleep 1000 & echo $$ $! >{marker}; kill -TERM $PPID; wait")
        self.assertEqual((caught.exception.code, self.left()), (143, ["lock"]))
        for pid in marker.read_text(encoding="ascii").split():
            self.assertTrue(ends(int(pid)), "a process of the build lives on")

    def test_a_disk_that_fills_up_is_said(self):
        with self.assertRaisesRegex(Trouble, "is full.*SLUICE_LAB_CACHE"):
            self.prepare(build="echo 'fatal error: No space left on device' >&2; exit 2")
        with mock.patch.object(kernel.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=5 << 20)), self.assertRaisesRegex(Trouble, "5 MiB free, the kernel needs 3072"):
            self.prepare()

    def test_a_missing_compiler_is_named_with_its_package(self):
        check = source_kernel._check_tools
        with mock.patch.object(source_kernel.shutil, "which", lambda tool: None if tool in ("gcc", "ld") else tool), self.assertRaisesRegex(Trouble, "apt-get install gcc binutils") as caught:
            check("uml")
        self.assertEqual(caught.exception.code, NOTHING_TO_RUN_ON)

    def test_a_missing_library_of_the_kernels_own_tools_is_named(self):
        with mock.patch.object(source_kernel, "_has_header", lambda name: name != "gelf.h"):
            source_kernel._check_tools("uml")
            with self.assertRaisesRegex(Trouble, "apt-get install libelf-dev"):
                source_kernel._check_tools("tcg-debug")


if __name__ == "__main__":
    modules.main()
