"""The rows that need an RDMA device or the kernel module, measured in a guest of the lab by the
same program. Judges nothing.

The guest's rounds.json lies in a folder of the report, which the guest can write to: a run that is
interrupted goes on from it.
"""
import json
import os
import shlex
import subprocess
import sys
import time

import compare
import machine

LAB = os.path.join(compare.ROOT, "tools", "lab", "lab.py")
MODULE = os.path.join("kernel_compat", "module", "sluice.ko")
FOLDER = "guest"
# VGG16's tensors at both ends, and a copy.
MEMORY = "4G"
# For the command line's sake; a run that takes longer goes on from its last round.
TIMEOUT = "12h"
# The longest round takes some minutes. An emulated kernel that hangs takes the rows' own limits
# with it.
SILENT_SECONDS = 30 * 60


def wanted(asked):
    """The names of the questions with rows that this machine lacks the device for."""
    lacks = {"rdma": not machine.rdma_devices(), "module": not machine.has_module()}
    return [
        name
        for name, one in asked.items()
        if any(lacks.get(row.get("device"), False) for row in one["rows"])]


def command(options, names):
    """What the lab is to run. `options` as bench.py read them."""
    folder, module = os.path.join(os.path.abspath(options.report), FOLDER), os.path.join(
        options.bin, MODULE)
    bench = [
        sys.executable, "-B", os.path.join(compare.ROOT, "tools", "bench", "bench.py"), "--devices",
        "--only", ",".join(names), "--rounds", str(options.rounds), "--max-steal",
        str(options.max_steal), "--report", folder]
    bench += ["--" + name for name in ("judge", "peers", "replace") if getattr(options, name)]
    load = f"/sbin/insmod {shlex.quote(module)}; " if os.path.exists(module) else ""
    return [
        sys.executable, "-B", LAB, "run", "--memory", MEMORY, "--timeout", TIMEOUT, "--artifacts",
        folder, "--", "sh", "-c", f"/sbin/modprobe veth; {load}exec {shlex.join(bench)}"]


def wait_for(lab, path, say, clock=time.monotonic, pause=5):
    """The exit code of the guest, which is ended if it writes no round into `path` for
    SILENT_SECONDS."""
    heard, written = clock(), stamp(path)
    while True:
        try:
            return lab.wait(timeout=pause)
        except subprocess.TimeoutExpired:
            pass
        if stamp(path) != written:
            heard, written = clock(), stamp(path)
        elif clock() - heard > SILENT_SECONDS:
            say(
                f"the guest has finished no round for {SILENT_SECONDS // 60} minutes and is ended:"
                " run this again to go on from its last round")
            lab.terminate()
            return lab.wait()


def stamp(path):
    """When it was written last."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def run(options, names, say):
    """The guest's result, of this run and those before it; None if there is none. Blocks until the
    guest has ended."""
    folder = os.path.join(options.report, FOLDER)
    os.makedirs(folder, exist_ok=True)
    say(f"in a guest of the lab: {', '.join(names)}")
    # The folder of programs by the environment, which the guest has too: an argument would be in
    # the result.
    environment = dict(os.environ, SLUICE_BENCH_BIN=options.bin)
    lab = subprocess.Popen(
        command(options, names), cwd=compare.ROOT, stdout=subprocess.DEVNULL, env=environment)
    try:
        code = wait_for(lab, os.path.join(folder, "rounds.json"), say)
    finally:
        if lab.poll() is None:
            lab.terminate()  # it ends its guest
            lab.wait()
    if code not in (0, 1):
        say(
            f"the guest ended with {code}; what it measured counts. Its logs are in {folder};"
            " sluice lab run -- true tries a guest")
    return recorded(options)


def recorded(options):
    """The result of the rounds that are there, also of a guest that was ended in the middle."""
    try:
        with open(os.path.join(options.report, FOLDER, "rounds.json"), encoding="utf-8") as file:
            return json.load(file)
    except OSError:
        return None
