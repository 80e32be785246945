#!/usr/bin/env python3
"""Asks iceoryx2 0.10 the same questions: iceoryx2/src hands over a loaned sample between two
processes.

    benchmarks/peers/iceoryx2.py --wait spin --touch word --size 64

All flags are those of that program. Its samples are files in /dev/shm: those of a run that was
killed are removed here, before and after a run.
"""
import glob
import os
import re
import subprocess
import sys

import downloaded

SHARED_MEMORY = "/dev/shm"
PREFIX = "bench_iceoryx2_"  # then the number of the process that runs this, and _


def is_alive(number):
    return os.path.exists(f"/proc/{number}")


def leftovers(names, alive=is_alive):
    """Files of runs whose process has ended."""
    found = []
    for name in names:
        number = re.match(rf"{PREFIX}(\d+)_", os.path.basename(name))
        if number and not alive(int(number.group(1))):
            found.append(name)
    return found


def remove(names):
    for name in names:
        try:
            os.unlink(name)
        except OSError:
            pass  # of another user, or gone


def main(arguments):
    program = downloaded.require("iceoryx2")
    everything = os.path.join(SHARED_MEMORY, PREFIX + "*")
    remove(leftovers(glob.glob(everything)))
    prefix = f"{PREFIX}{os.getpid()}_"
    try:
        return subprocess.run([program, "--prefix", prefix, *arguments], check=False).returncode
    finally:
        remove(glob.glob(os.path.join(SHARED_MEMORY, prefix + "*")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
