#!/usr/bin/env python3
"""What a `sluice perf` run costs the whole machine: CPU seconds per GB, of programs and of the kernel.

    benchmarks/machine_cpu.py bazel-bin/tools/sluice perf send_bw --self --transport tcp -s 65536 -D 5

A software device works in interrupts and kernel threads, which no process is charged for; so this counts what
/proc/stat says of all processors (proc(5): ticks of 1/HZ s; user, nice, system, irq, softirq), from the start of the
command to its end. For a machine that does nothing else, such as a guest of the lab.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

BUSY = (0, 1, 2, 5, 6)  # columns of /proc/stat


def busy_ticks():
    with open("/proc/stat", encoding="ascii") as stat:
        cells = stat.readline().split()[1:]
    return sum(int(cells[column]) for column in BUSY)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("which command? For example: bazel-bin/tools/sluice perf send_bw --self --transport tcp")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "perf.json")
        before = busy_ticks()
        code = subprocess.run(options.command + ["--json", path], stdout=subprocess.DEVNULL, check=False).returncode
        used = (busy_ticks() - before) / os.sysconf("SC_CLK_TCK")
        if code != 0:
            return code
        with open(path, encoding="utf-8") as file:
            result = json.load(file)["results"][0]
    moved = result["bytes_per_second"] * result["seconds"]
    print(json.dumps({
        "name": result["test"], "mode": result["transport"], "size_bytes": result["size_bytes"],
        "verified": result["errors"] == 0 and result["verified_bytes"] > 0,
        "bytes_per_second": result["bytes_per_second"],
        "cpu_seconds_per_gb": used / (moved / 1e9),
    }))
    return 0


if __name__ == "__main__":
    sys.exit(main())
