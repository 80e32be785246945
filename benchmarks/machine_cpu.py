#!/usr/bin/env python3
"""What a `sluice perf` run costs the whole machine: CPU seconds per GB, of programs and of the
kernel.

    benchmarks/machine_cpu.py \\
        bazel-bin/tools/sluice perf send_bw --self --transport tcp -s 65536 -D 5
    benchmarks/machine_cpu.py --soaker bazel-bin/benchmarks/bare/soaker \\
        bazel-bin/tools/sluice perf ...

A software device works in interrupts and kernel threads, which no process is charged for; so this
counts what /proc/stat says of all processors (proc(5): ticks of 1/HZ s; user, nice, system, irq,
softirq), from the start of the command to its end. With --soaker it counts what a program of idle
priority on each processor could not have (benchmarks/bare/soaker.cc), which no tick can miss. The
time that the command's own processes were charged for, the task clock, stands beside:
`task_seconds_per_gb`. For a machine that does nothing else, such as a guest of the lab.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile

BUSY = (0, 1, 2, 5, 6)  # columns of /proc/stat


def busy_ticks():
    with open("/proc/stat", encoding="ascii") as stat:
        cells = stat.readline().split()[1:]
    return sum(int(cells[column]) for column in BUSY)


class Ticks:
    """CPU seconds of all processors that somebody used, by /proc/stat."""

    def __init__(self):
        self.before = busy_ticks()

    def used_seconds(self):
        return (busy_ticks() - self.before) / os.sysconf("SC_CLK_TCK")


class Soaker:
    """The same by what a soaker was left with. Its calibration is over when this is made."""

    def __init__(self, program):
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "calibrated\n":
            self.process.wait()
            raise RuntimeError(f"{program} did not calibrate")
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def used_seconds(self):
        said, _ = self.process.communicate()
        if self.process.returncode != 0:
            raise RuntimeError(f"the soaker ended with {self.process.returncode}")
        return json.loads(said)["used_seconds"]


def own_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--soaker", metavar="PROGRAM", help="count by this, not by /proc/stat")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error(
            "which command? For example: bazel-bin/tools/sluice perf send_bw --self --transport tcp"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "perf.json")
        counting = Soaker(options.soaker) if options.soaker else Ticks()
        task_before = own_seconds()
        code = subprocess.run(
            options.command + ["--json", path], stdout=subprocess.DEVNULL, check=False
        ).returncode
        task = own_seconds() - task_before
        used = counting.used_seconds()
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
        "cpu_ns_per_message": used * 1e9 / (moved / result["size_bytes"]),
        "task_seconds_per_gb": task / (moved / 1e9),
    }))
    return 0


if __name__ == "__main__":
    sys.exit(main())
