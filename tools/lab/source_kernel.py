"""A kernel built here from Debian's linux-source package: User-Mode Linux, and debug variants.

Knows apt, make and our configurations; knows nothing of how the kernel is started. One folder for each configuration
and source version, renamed into place as the last step: see kernel.py, whose cache it is.
"""
import contextlib
import errno
import hashlib
import json
import lzma
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import typing

import kernel
import machine
from trouble import NOTHING_TO_RUN_ON, Trouble

HERE = pathlib.Path(__file__).resolve().parent
META_PACKAGE = "linux-source"


class Kind(typing.NamedTuple):
    architecture: str  # make's ARCH
    target: str  # what make is asked for
    image: str  # what comes of it, below the objects
    configurations: tuple  # ours, files beside this one; what a later one sets again is as it says
    recipe: int  # part of the key of the cache: another number makes the kernel be built anew


KINDS = {
    "uml": Kind("um", "linux", "linux", ("kernel.config", "uml.config"), 2),
    "uml-debug": Kind("um", "linux", "linux", ("kernel.config", "uml.config", "debug.config", "uml-debug.config"), 2),
    # Compressed: QEMU starts a plain vmlinux at its PVH entry, whose C code KASAN checks before its shadow exists.
    "tcg-debug": Kind("x86_64", "bzImage", "arch/x86/boot/bzImage", ("kernel.config", "qemu.config", "debug.config"), 2),
}
TOOLS = {"gcc": "gcc", "make": "make", "flex": "flex", "bison": "bison", "bc": "bc", "ld": "binutils", "perl": "perl", "gzip": "gzip"}
# Source 1.5 GB, package 140 MB, objects 170 MB (with KASAN several times that).
NEEDED_BYTES = 3 << 30
BUILD_SECONDS = 2 * 3600
# So that no process of the guest outlives its kernel: ptrace(2), PTRACE_O_EXITKILL.
_PTRACE_FILE = "arch/um/os-Linux/skas/process.c"
_PTRACE_OPTIONS = r"\(void \*\) ?PTRACE_O_TRACESYSGOOD\) < 0"
# User-Mode Linux keeps 2,696 bytes of a process's registers (x87 to AVX-512) and hands as many back, which the machine's
# kernel takes only where these are all: processors with AMX have 11,008 (PTRACE_SETREGSET, NT_X86_XSTATE, wants the whole).
# Room for them, and as many back as came. File, what stands there, how often, what instead.
_REGISTERS = (
    ("arch/x86/um/user-offsets.c", r"DEFINE_LONGS\(HOST_FP_SIZE, 2696\)", 1, "DEFINE_LONGS(HOST_FP_SIZE, 12288)"),
    ("arch/x86/um/os-Linux/registers.c", r"int have_xstate_support;", 1, "int have_xstate_support;\nstatic unsigned long xstate_bytes;"),
    ("arch/x86/um/os-Linux/registers.c", r"iov_len = FP_SIZE \* sizeof\(unsigned long\);(?=\s+if \(ptrace\(PTRACE_SETREGSET)", 1, "iov_len = xstate_bytes;"),
    ("arch/x86/um/os-Linux/registers.c", r"have_xstate_support = 1;", 1, "have_xstate_support = 1, xstate_bytes = iov.iov_len;"),
)

# Folder of a kept kernel in which modules are built, and the files of arch/ that make reads there.
HEADERS = "headers"
_MAKES = re.compile(r"Makefile|Kbuild|Platform")


def configuration(kind):
    options = {}
    for name in KINDS[kind].configurations:
        options.update((line.partition(b"=")[0], line) for line in (HERE / name).read_bytes().splitlines() if line.startswith(b"CONFIG_"))
    return b"".join(line + b"\n" for line in options.values())


def _key(kind):
    return hashlib.sha256(f"{KINDS[kind].recipe} {kind}\n".encode() + b"\n".join(sorted(configuration(kind).splitlines()))).hexdigest()[:12]


def prepared(cache, kind):
    """The newest kernel with today's configuration, or None."""
    folders = [path for path in cache.glob(f"{kind}.{_key(kind)}.*") if (path / "about.json").is_file()]
    return kernel.Kernel(max(folders, key=lambda path: kernel.order(path.name.split(".", 2)[2]))) if folders else None


def require(cache, kind):
    """What a run needs: it never builds, which takes minutes."""
    ready = prepared(cache, kind)
    if not ready:
        raise Trouble(f"no kernel of kind {kind} has been built yet: run 'sluice lab prepare --kernel {kind}', once, for minutes", NOTHING_TO_RUN_ON)
    return ready


def headers(cache, kind):
    """The folder in which a module for the newest such kernel is built."""
    ready = require(cache, kind)
    if not ready.headers:
        raise Trouble(f"{ready.folder} was built without headers: remove it and run 'sluice lab prepare --kernel {kind}'", NOTHING_TO_RUN_ON)
    return ready.headers


def candidate():
    """(package, version) of the source that apt offers."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Trouble("apt-get and dpkg-deb are needed to fetch Debian's kernel source: prepare on a Debian machine and copy the folder "
                      "named by SLUICE_LAB_CACHE", NOTHING_TO_RUN_ON)
    found = re.search(r"^Depends: (linux-source-\S+?)[ ,\n]", kernel.read("apt-cache", "show", "--no-all-versions", META_PACKAGE), re.MULTILINE)
    version = found and re.search(r"^Version: (\S+)", kernel.read("apt-cache", "show", "--no-all-versions", found.group(1)), re.MULTILINE)
    if not version:
        raise Trouble(f"apt knows no package {META_PACKAGE}: run 'apt-get update', or add Debian's main archive to its sources", NOTHING_TO_RUN_ON)
    return found.group(1), version.group(1)


def _check_tools(kind):
    missing = [package for tool, package in TOOLS.items() if not shutil.which(tool)]
    if KINDS[kind].architecture == "x86_64" and not missing and not _has_header("gelf.h"):  # the kernel's objtool reads it
        missing.append("libelf-dev")
    if missing:
        raise Trouble(f"building a kernel needs {' '.join(missing)}: apt-get install {' '.join(missing)}, or tools/setup --lab", NOTHING_TO_RUN_ON)


def _has_header(name):
    return subprocess.run(["gcc", "-E", "-x", "c", "-include", name, os.devnull], stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def prepare(cache, kind, say):
    """Returns the kernel of that kind from the source that apt offers, built if it is not in the cache. Blocks: for minutes."""
    package, version = candidate()
    final = cache / f"{kind}.{_key(kind)}.{version.replace(':', '.')}"
    with kernel.workshop(cache, final, NEEDED_BYTES) as work:
        if work:
            _check_tools(kind)
            say(f"fetching {package} {version}")
            archive = kernel.download(f"{package}={version}", work)
            source = _unpack(archive, work)
            say(f"building {kind}: minutes, once; its output goes to {work / 'build.log'}")
            folder = _build(source, work, kind, version)
            kernel.finish(folder, final)
    return kernel.Kernel(final)


def _unpack(archive, work):
    """The source is an archive in the package; neither is kept."""
    try:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as package:
            with tarfile.open(fileobj=package.stdout, mode="r|") as outer:
                member = next(one for one in outer if one.name.endswith(".tar.xz"))
                with lzma.open(outer.extractfile(member)) as packed, subprocess.Popen(["tar", "-x", "-C", work], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as tar:
                    shutil.copyfileobj(packed, tar.stdin, 1 << 20)
                    _, said = tar.communicate()
                    if tar.returncode != 0:
                        raise OSError(errno.ENOSPC if b"No space" in said else errno.EIO, said.decode(errors="replace").strip())
            package.kill()
    except (StopIteration, tarfile.TarError, lzma.LZMAError) as error:
        raise Trouble(f"{archive.name} is not the source package that was expected: {error or 'no archive in it'}") from error
    archive.unlink()
    return next(path for path in work.iterdir() if path.is_dir() and path.name.startswith("linux-source-"))


def _build(source, work, kind, version):
    architecture, target, image, _, _ = KINDS[kind]
    wanted = work / "wanted.config"
    wanted.write_bytes(configuration(kind))
    if architecture == "um":
        _replace(source / _PTRACE_FILE, _PTRACE_OPTIONS, 2, "(void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)) < 0")
        for name, pattern, times, instead in _REGISTERS:
            _replace(source / name, pattern, times, instead)
    log, objects, folder = work / "build.log", work / "objects", work / "kernel"
    make = ["nice", "-n", "19", "make", "-C", source, f"O={objects}", f"ARCH={architecture}", f"-j{len(os.sched_getaffinity(0))}"]
    objects.mkdir()
    _make([*make, f"KCONFIG_ALLCONFIG={wanted}", "allnoconfig"], log)
    _check_configuration((objects / ".config").read_text(encoding="utf-8"), wanted.read_text(encoding="utf-8"))
    _make([*make, target, "modules"], log)  # modules: none, but Module.symvers
    folder.mkdir()
    if architecture == "um":
        kernel.run("strip", "--strip-debug", "-o", folder / target, objects / image)
    else:
        shutil.copy(objects / image, folder / target)
    shutil.copy(objects / ".config", folder / "config")
    _keep_headers(source, objects, architecture, folder / HEADERS)
    release = (objects / "include/config/kernel.release").read_text(encoding="utf-8").strip()
    about = {"release": release, "version": version, "image": target, "kind": kind, "label": f"{kind} {release} (built from {version})", "builtin": True,
             "headers": HEADERS}
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
    return folder


def _keep_headers(source, objects, architecture, folder):
    """What `make -C FOLDER M=...` needs to build a module: what the source's own scripts/package/builddeb packs for it.

    The source's files first, then what the build made of them, as if it had been built in place; no objects.
    """
    machines = ("arch/um", "arch/x86") if architecture == "um" else ("arch/x86",)
    for root in (source, objects):
        for path in [*root.glob("Makefile"), *root.glob("Module.symvers"), *root.glob(".config"), *root.glob("tools/objtool/objtool"),
                     *_files(root, "include", "scripts"),
                     *(path for one in machines for path in _files(root, one) if path.suffix == ".h" or (root == source and _MAKES.match(path.name)))]:
            if root == objects and path.name == "Makefile":  # it names the folders of the build
                continue
            place = folder / path.relative_to(root)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place)
    (folder / "GNUmakefile").write_text(f"# So that 'make -C' needs no ARCH.\nexport ARCH := {architecture}\ninclude Makefile\n", encoding="utf-8")


def _files(root, *folders):
    """Not followed: links, of which `scripts/dtc` has some. Left out: what make alone reads, in the folder where it was made."""
    for name in folders:
        for path in (root / name).rglob("*"):
            if path.is_file() and not path.is_symlink() and path.suffix not in (".o", ".a", ".cmd"):
                yield path


def _replace(path, pattern, times, instead):
    text, count = re.subn(pattern, lambda _: instead, path.read_text(encoding="utf-8") if path.exists() else "")
    if count != times:
        raise Trouble(f"this source differs from what is known: {path.name} has '{pattern}' {count} times, not {times}; report it")
    path.write_text(text, encoding="utf-8")


def _check_configuration(got, wanted):
    """What the source's own rules refused would be missed much later, in a guest."""
    have = set(got.splitlines())
    refused = [line for line in wanted.splitlines() if line.startswith("CONFIG_") and line not in have and not line.endswith("=n")]
    if refused:
        raise Trouble(f"this source refuses {', '.join(refused)}")


@contextlib.contextmanager
def _interruptible():
    """A signal is an exception, so that what was begun is ended and removed."""
    def interrupt(number, _):
        raise Trouble("the build was ended by a signal; nothing of it is left", 128 + number)

    before = {number: signal.signal(number, interrupt) for number in machine.INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _make(command, log):
    """In a process group of its own, which ends with us if we are interrupted."""
    with open(log, "ab") as file, _interruptible(), contextlib.ExitStack() as begun:
        # A signal between the child's beginning and our knowing it would leave it behind.
        signal.pthread_sigmask(signal.SIG_BLOCK, machine.INTERRUPTS)
        begun.callback(signal.pthread_sigmask, signal.SIG_UNBLOCK, machine.INTERRUPTS)
        process = begun.enter_context(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, preexec_fn=machine.begin))
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, machine.INTERRUPTS)
            code = process.wait(BUILD_SECONDS)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if code != 0:
        text = log.read_text(encoding="utf-8", errors="replace")
        if "No space left" in text:
            raise OSError(errno.ENOSPC, "No space left on device")
        lines = [line for line in text.splitlines() if "rror" in line] or text.splitlines() or ["no output"]
        raise Trouble(f"the kernel does not build: {lines[0].strip()}")
