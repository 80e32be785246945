"""A kernel to boot: Debian's stock package, taken apart into a cache folder, never installed.

Knows apt, dpkg and the layout of the package; knows nothing of QEMU or of what the guest will do. One folder
for each version; a folder is complete if it has its name (it is renamed into place as the last step), so
that `prepare` may be killed, run twice at once, or run again.
"""
import contextlib
import errno
import fcntl
import gzip
import json
import lzma
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import tempfile

import machine
from trouble import NOTHING_TO_RUN_ON, Trouble

# Which packages there are: Debian 12's own kernel, and the newer one that its security archive offers beside it.
META_PACKAGES = {"tcg": "linux-image-amd64", "tcg-6.12": "linux-image-6.12-amd64"}
# Folders of the package that no guest of ours has a device for: three quarters of its size. vgem
# stays, which exports dma-bufs without a device.
LEFT_OUT = (
    "drivers/gpu/[!d]*", "drivers/gpu/drm/[!dv]*", "drivers/gpu/drm/vboxvideo",
    "drivers/gpu/drm/vmwgfx", "drivers/media", "drivers/net/wireless", "drivers/scsi",
    "drivers/usb", "drivers/iio", "drivers/hwmon", "drivers/staging", "drivers/ata", "drivers/mmc",
    "drivers/input", "drivers/net/ethernet", "sound")
# Package, modules kept, vmlinux, and the package file until it is removed again.
NEEDED_BYTES = 700 << 20
SOURCES_FOLDER = pathlib.Path("/usr/src")  # where Debian's headers packages put theirs
LAYOUT = 2  # of the cache folder; a new number makes old folders invisible
# How the folders of each begin.
PREFIXES = {"tcg": f"kernel.{LAYOUT}.", "tcg-6.12": f"kernel-6.12.{LAYOUT}."}
DOWNLOAD_SECONDS = 600


class Kernel:
    """A prepared kernel: what to boot, and its modules."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        try:
            about = json.loads((self.folder / "about.json").read_text(encoding="utf-8"))
            self.release, self.version = about["release"], about["version"]
            self.image = self.folder / about["image"]
            # None: everything is built in.
            self.modules = None if about.get("builtin") else self.folder / "lib" / "modules" / self.release
            # For make -C FOLDER M=...; None: Debian's package has them.
            self.headers = self.folder / about["headers"] if "headers" in about else None
            self.label = about.get("label") or f"Debian's {self.release} ({self.version})"
            whole = self.image.stat().st_size > 0 and (self.modules is None or (self.modules / "modules.dep").is_file())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            raise Trouble(f"the prepared kernel in {self.folder} is damaged: remove that folder and run 'sluice lab prepare'")


def cache_folder():
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(os.environ.get("SLUICE_LAB_CACHE") or os.path.join(home, "sluice", "lab"))


def order(version):
    """Sort key: the numbers of a version, in order."""
    return [int(number) for number in re.findall(r"\d+", version)]


def prepared(cache, kind="tcg"):
    """The newest prepared kernel of that kind, or None."""
    folders = [path for path in cache.glob(f"{PREFIXES[kind]}*") if (path / "about.json").is_file()]
    return Kernel(max(folders, key=lambda path: order(path.name))) if folders else None


def headers(cache, kind="tcg"):
    """The folder in which a module for the prepared kernel is built: Debian's package of the same version."""
    ready = prepared(cache, kind)
    if not ready:
        raise Trouble("no kernel has been prepared yet: run 'sluice lab prepare" + (f" --kernel {kind}'" if kind != "tcg" else "'"), NOTHING_TO_RUN_ON)
    folder = SOURCES_FOLDER / f"linux-headers-{ready.release}"
    if not folder.is_dir():
        raise Trouble(f"{folder} is missing: apt-get install {folder.name}", NOTHING_TO_RUN_ON)
    return folder


def candidate(kind="tcg"):
    """(package, version) that apt would install today."""
    meta = META_PACKAGES[kind]
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Trouble("no kernel to boot: apt-get and dpkg-deb are needed to fetch Debian's kernel package; prepare on a Debian "
                      "machine and copy the folder named by SLUICE_LAB_CACHE", NOTHING_TO_RUN_ON)
    out = read("apt-cache", "show", "--no-all-versions", meta)
    found = re.search(r"^Depends:.*?(linux-image-\S+-amd64)\b", out, re.MULTILINE)
    if not found:
        raise Trouble(f"apt knows no package {meta}: run 'apt-get update', or add Debian's main archive to its sources", NOTHING_TO_RUN_ON)
    package = found.group(1)
    version = re.search(r"^Version: (\S+)", read("apt-cache", "show", "--no-all-versions", package), re.MULTILINE)
    if not version:
        raise Trouble(f"apt knows {meta} but not {package}: run 'apt-get update'", NOTHING_TO_RUN_ON)
    return package, version.group(1)


def prepare(cache, say, kind="tcg"):
    """Returns the kernel that apt offers, fetched if it is not in the cache. Blocks: for the download."""
    package, version = candidate(kind)
    release = package.removeprefix("linux-image-")
    final = cache / f"{PREFIXES[kind]}{release}_{version.replace(':', '.')}"
    with workshop(cache, final, NEEDED_BYTES) as work:
        if work:
            folder = work / "kernel"
            folder.mkdir()
            say(f"fetching {package} {version}")
            _unpack(download(f"{package}={version}", work), folder, release)
            image = _plain_image(folder, release)
            _plain_modules(folder)
            run("depmod", "-b", folder, release)
            about = {"release": release, "version": version, "image": image}
            (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
            finish(folder, final)
    return Kernel(final)


@contextlib.contextmanager
def workshop(cache, final, needed_bytes):
    """A folder to make `final` in, removed afterwards; None if `final` is there already. One at a time in a cache.

    Errors: Trouble for a cache that cannot be written or has no room, before and while it is filled.
    """
    _make_folder(cache)
    if (final / "about.json").is_file():  # without waiting for another kernel that is being built
        yield None
        return
    try:
        with _one_at_a_time(cache):
            if (final / "about.json").is_file():
                yield None
                return
            for unfinished in cache.glob("unfinished.*"):  # of a prepare that was killed
                shutil.rmtree(unfinished, ignore_errors=True)
            _require_space(cache, needed_bytes)
            with tempfile.TemporaryDirectory(prefix="unfinished.", dir=cache) as work:
                yield pathlib.Path(work)
    except OSError as error:
        raise _space_trouble(error, cache, needed_bytes) from error


def finish(folder, final):
    """The last step: what has its name is complete."""
    if final.exists():
        shutil.rmtree(final)
    folder.rename(final)


def vmlinux_of(image):
    """The ELF file inside a bzImage (the kernel's Documentation/arch/x86/boot.rst, payload_offset), or None.

    Decompressing it here, once, saves doing so under emulation at each boot: about 3 s.
    """
    if len(image) < 0x250 or image[0x202:0x206] != b"HdrS":
        return None
    start = (image[0x1F1] + 1) * 512
    offset, length = struct.unpack_from("<II", image, 0x248)
    payload = image[start + offset:start + offset + length]
    try:
        if payload[:6] == b"\xfd7zXZ\0":
            elf = lzma.LZMADecompressor().decompress(payload)
        elif payload[:2] == b"\x1f\x8b":
            elf = gzip.decompress(payload[:-4])
        else:
            return None
    except (lzma.LZMAError, OSError, EOFError):
        return None
    return elf if elf[:4] == b"\x7fELF" else None


def _plain_image(folder, release):
    packed = folder / "boot" / f"vmlinuz-{release}"
    elf = vmlinux_of(packed.read_bytes())
    if elf is None:
        return f"boot/vmlinuz-{release}"
    (folder / "vmlinux").write_bytes(elf)
    packed.unlink()
    return "vmlinux"


def _plain_modules(folder):
    """Those of newer kernels are compressed, which the guest's busybox does not load."""
    for path in folder.rglob("*.ko.xz"):
        path.with_suffix("").write_bytes(lzma.decompress(path.read_bytes()))
        path.unlink()


def _unpack(archive, folder, release):
    left_out = [f"--exclude=./lib/modules/{release}/kernel/{name}" for name in LEFT_OUT]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as source:
        done = subprocess.run(["tar", "-x", "-C", folder, *left_out, "--no-same-owner", "./boot", "./lib/modules"], stdin=source.stdout,
                              stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0 or source.returncode != 0:
        raise OSError(errno.ENOSPC if "No space" in done.stderr else errno.EIO, f"cannot unpack {archive}: {done.stderr.strip()}")
    os.unlink(archive)


def _fetch(command, folder):
    """(status, standard error). It ends when we do, also by a signal at its very beginning."""
    with contextlib.ExitStack() as begun:
        signal.pthread_sigmask(signal.SIG_BLOCK, machine.INTERRUPTS)
        begun.callback(signal.pthread_sigmask, signal.SIG_UNBLOCK, machine.INTERRUPTS)
        process = begun.enter_context(subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                                       preexec_fn=machine.begin))
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, machine.INTERRUPTS)
            said = process.communicate(timeout=DOWNLOAD_SECONDS)[1]
            return process.returncode, said
        except BaseException:
            process.kill()
            raise


def download(what, folder):
    try:
        code, said = _fetch(["apt-get", "download", "-q", what], folder)
    except subprocess.TimeoutExpired as error:
        raise Trouble(f"apt-get download {what} took more than {DOWNLOAD_SECONDS} s: check the network, then run it again", NOTHING_TO_RUN_ON) from error
    files = list(pathlib.Path(folder).glob("*.deb"))
    if code != 0 or not files:
        lines = (said.strip() or "no reason given").splitlines()
        raise Trouble(f"apt-get download {what} failed: {lines[-1]}; run 'apt-get update' and check the network", NOTHING_TO_RUN_ON)
    return files[0]


def _make_folder(path):
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Trouble(f"cannot make the cache folder {path}: {error.strerror}; set SLUICE_LAB_CACHE to one that can be written") from error


def _require_space(path, needed_bytes):
    free = shutil.disk_usage(path).free
    if free < needed_bytes:
        raise Trouble(f"{path} has {free >> 20} MiB free, the kernel needs {needed_bytes >> 20}: free some, or set SLUICE_LAB_CACHE to another folder")


def _space_trouble(error, path, needed_bytes):
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Trouble(f"{path} is full: free {needed_bytes >> 20} MiB, or set SLUICE_LAB_CACHE to another folder")
    return Trouble(f"cannot prepare the kernel in {path}: {error}; see that this folder can be written, or set SLUICE_LAB_CACHE to another")


@contextlib.contextmanager
def _one_at_a_time(cache):
    with open(cache / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout


def run(*command):
    # depmod is in sbin, which an ordinary user's PATH may lack.
    path = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=path, check=False)
    except FileNotFoundError as error:
        raise Trouble(f"{command[0]} is not installed: run tools/setup --lab", NOTHING_TO_RUN_ON) from error
    if done.returncode != 0:
        raise Trouble(f"{command[0]} failed: {done.stderr.strip()}")
