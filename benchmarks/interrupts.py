#!/usr/bin/env python3
"""How many interrupts, switches and wakes a message takes: the kernel's own counters, over one
command.

    benchmarks/interrupts.py --per-iteration 2 -- benchmarks/wire.py -- \\
        bazel-bin/benchmarks/bare/frame_pingpong --mode blocking

Prints the command's JSON line with {"interrupts_per_message", "switches_per_message",
"softirqs_per_message", "interrupts_by_kind"} added. --per-iteration says how many messages one of
its iterations is (2: there and back). Interrupts are those of /proc/interrupts of all processors:
of devices, of the local timer (LOC), between processors (RES wakes an idle one, CAL calls a
function); switches are `ctxt` of /proc/stat; softirqs are NET_RX and NET_TX. The counters are the
whole machine's: other programs are in them, so it takes a quiet one. Exit code: the command's.
"""
import argparse
import json
import subprocess
import sys


def interrupts(text):
    """{kind: count} of /proc/interrupts, summed over the processors; numbered lines are devices,
    together "device"."""
    lines = text.splitlines()
    processors, counts = len(lines[0].split()), {}
    for line in lines[1:]:
        name, _, rest = line.partition(":")
        kind = "device" if name.strip().isdigit() else name.strip()
        counts[kind] = counts.get(kind, 0) + sum(
            int(each) for each in rest.split()[:processors] if each.isdigit())
    return counts


def softirqs(text):
    return sum(
        int(each)
        for line in text.splitlines()
        if line.lstrip().startswith("NET_")
        for each in line.split()[1:])


def switches(text):
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("ctxt "))


def _read(path):
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def counters():
    return {
        "interrupts": interrupts(_read("/proc/interrupts")),
        "softirqs": softirqs(_read("/proc/softirqs")), "switches": switches(_read("/proc/stat"))}


def per_message(before, after, messages):
    kinds = {
        kind: (after["interrupts"][kind] - before["interrupts"].get(kind, 0)) / messages
        for kind in after["interrupts"]}
    return {
        "interrupts_per_message": sum(kinds.values()),
        "interrupts_by_kind": {kind: round(value, 4) for kind, value in kinds.items() if value},
        "softirqs_per_message": (after["softirqs"] - before["softirqs"]) / messages,
        "switches_per_message": (after["switches"] - before["switches"]) / messages}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--per-iteration", type=float, default=1.0, metavar="N",
        help="messages of one iteration (1)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command or options.per_iteration <= 0:
        parser.error(
            "which command, and how many messages? For example: --per-iteration 2 --"
            " bazel-bin/benchmarks/bare/tcp_pingpong")
    before = counters()
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    after = counters()
    if ran.returncode != 0:
        return ran.returncode
    line = json.loads(ran.stdout.splitlines()[-1])
    print(
        json.dumps(
            dict(line, **per_message(before, after, line["iterations"] * options.per_iteration))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
