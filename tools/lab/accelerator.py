"""KVM or emulation: decided by booting a guest, once for each boot of this machine.

That /dev/kvm exists and opens says little: where the machine is itself a guest it may start a CPU and never
come back. So the question is put to a child that has PROBE_SECONDS, and the answer is kept in the cache.
"""
import json
import os
import pathlib
import subprocess
import tempfile

import initramfs
import machine
import qemu

PROBE_SECONDS = 5.0
KILL_SECONDS = 2.0  # a process stuck in the driver may not die; it is not waited for longer than this
MARK = b"sluice-lab: booted"
_PROBE_INIT = b"#!/bin/sh\nexport PATH=/bin\nmount -t devtmpfs dev /dev\necho 'sluice-lab: booted' >/dev/ttyS0\npoweroff -f\n"


def choose(wanted, kernel, cache):
    """('kvm' or 'tcg', why). Blocks: for PROBE_SECONDS the first time after this machine's boot."""
    if wanted.startswith("tcg"):
        return "tcg", "as asked"
    if not os.path.exists("/dev/kvm"):
        return "tcg", "there is no /dev/kvm"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg", "/dev/kvm may not be opened by this user"
    place = cache / "kvm.json"
    key = [_boot_id(), kernel.label, os.getuid(), _emulator_age()]
    try:
        known = json.loads(place.read_text(encoding="utf-8"))
        if known["key"] == key:
            return known["accelerator"], known["why"] + " (found before)"
    except (OSError, ValueError, KeyError, TypeError):
        pass
    accelerator, why = _probe(kernel)
    _keep(place, {"key": key, "accelerator": accelerator, "why": why})
    return accelerator, why


def _probe(kernel):
    archive = initramfs.minimal(_PROBE_INIT)
    options = {"cpus": 1, "memory": 512, "memory_nodes": 1, "artifacts": ""}
    with tempfile.TemporaryDirectory(prefix="sluice-lab-kvm.") as folder:
        console, initrd = pathlib.Path(folder) / "console", pathlib.Path(folder) / "initrd"
        initrd.write_bytes(archive)
        line = qemu.command_line(qemu.emulator(), kernel, "kvm", os.fspath(initrd), console, options)
        with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
                              preexec_fn=machine.end_with_parent) as process:
            try:
                _, said = process.communicate(timeout=PROBE_SECONDS)
            except BaseException as error:  # its time is over, or a signal ends us
                process.kill()
                try:
                    process.communicate(timeout=KILL_SECONDS)
                except subprocess.TimeoutExpired:
                    process.returncode = -9  # stuck in the driver: init reaps it when the driver lets go
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return "tcg", f"a guest with KVM did not boot within {PROBE_SECONDS:.0f} s"
        if console.exists() and MARK in console.read_bytes():
            return "kvm", "a guest booted with it"
        lines = said.decode(errors="replace").strip().splitlines() or ["it ended without a word"]
        return "tcg", f"KVM does not work here: {lines[-1]}"


def _boot_id():
    return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def _emulator_age():
    return os.stat(qemu.emulator()).st_mtime_ns


def _keep(place, answer):
    """A cache that cannot be written costs the next run a probe, nothing else."""
    try:
        unfinished = place.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(answer), encoding="utf-8")
        unfinished.rename(place)
    except OSError:
        pass
