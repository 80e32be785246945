#!/usr/bin/env python3
"""Runs a command with thresholds that were measured just before, in a cache of its own.

    benchmarks/tuned.py bazel-bin/tools/sluice -- bazel-bin/tools/sluice perf send_lat --self

So every round of a question has a probe of its own: what is judged is what the probe chooses, not
one lucky file. With $SLUICE_TUNING the probe is not asked.
"""
import os
import subprocess
import sys
import tempfile

EXIT_FAILED, EXIT_USAGE = 1, 2
LIMIT_SECONDS = 60  # of the probe; it takes less than a second


def main(arguments):
    if len(arguments) < 3 or arguments[1] != "--":
        print("tuned.py: usage: tuned.py SLUICE -- COMMAND...", file=sys.stderr)
        return EXIT_USAGE
    with tempfile.TemporaryDirectory(prefix="sluice-tuned.") as folder:
        environment = {name: value for name, value in os.environ.items() if name != "SLUICE_TUNING"}
        environment["SLUICE_CACHE_DIR"] = folder
        probe = subprocess.run(
            [arguments[0], "tune"], env=environment, stdout=subprocess.DEVNULL,
            timeout=LIMIT_SECONDS, check=False)
        if probe.returncode != 0:
            return EXIT_FAILED
        return subprocess.run(arguments[2:], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
