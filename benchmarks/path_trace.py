#!/usr/bin/env python3
"""Which kernel functions a send runs through, from the system call to the driver, by ftrace's
function_graph.

    sluice lab run -- benchmarks/path_trace.py --list -- benchmarks/wire.py -- \\
        bazel-bin/benchmarks/bare/tcp_pingpong --mode blocking -n 100

Runs the command, traces what can send (sendto, sendmsg, sendmmsg, write, writev) of it and its
children, and prints a JSON line: "kernel_functions": the median of how many functions a call enters
before it hands its first frame to a driver (dev_hard_start_xmit); "functions_in_all": until it
returns, which over veth includes the receiver's half; "sends": of how many calls; with --list
"path": their names, of a call with the median. Calls that send no frame, such as netlink's, do not
count. Needs root and tracefs, as a guest of the lab has; exit code 77 without. Else the command's,
1 if nothing was sent.
"""
import argparse
import contextlib
import glob
import json
import os
import re
import statistics
import subprocess
import sys

TRACEFS = "/sys/kernel/tracing"
CALLS = (
    "__x64_sys_sendto", "__x64_sys_sendmsg", "__x64_sys_sendmmsg", "__x64_sys_write",
    "__x64_sys_writev")
DRIVER = "dev_hard_start_xmit"
EXIT_NOTHING_TO_RUN_ON = 77
BUFFER_KIB = 16384  # of each processor: some thousand calls
_LINE = re.compile(r"^\s*(\d+)\)[^|]*\|  ( *)([\w.]+)\(\)(?: \[\w+\])?(?:;| \{)")


def trees(text):
    """The functions of each traced call in the order in which they were entered, the call first."""
    open_of, found = {}, []  # by processor
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match:
            continue
        processor, depth, name = match[1], len(match[2]), match[3]
        if depth == 0:
            open_of[processor] = [name] if name in CALLS else None
            if open_of[processor]:
                found.append(open_of[processor])
        elif open_of.get(processor):
            open_of[processor].append(name)
    return found


def judged(calls, whole_list):
    """What the JSON line says of the calls that sent a frame; None if there are none."""
    sent = [(call.index(DRIVER), call) for call in calls if DRIVER in call]
    if not sent:
        return None
    middle = statistics.median_low(before for before, _ in sent)
    said = {
        "kernel_functions": middle,
        "functions_in_all": statistics.median_low(len(call) for _, call in sent),
        "sends": len(sent)}
    return (
        dict(said, path=next(call[:before] for before, call in sent if before == middle))
        if whole_list
        else said)


def in_guest():
    """Whether this is a guest of the lab (tools/lab/init)."""
    return "SLUICE_LAB_NODE" in os.environ and os.path.exists("/run/sluice-lab/fault")


@contextlib.contextmanager
def one_processor():
    """Takes a guest's other processors offline meanwhile. While ftrace changes the kernel's code,
    an emulated kernel of two processors hangs about every tenth time. One of one processor did not
    in 29."""
    others = glob.glob("/sys/devices/system/cpu/cpu*/online") if in_guest() else []
    others = [path for path in others if _read(path) == "1" and not path.endswith("cpu0/online")]
    try:
        for path in others:
            _write(path, "0")
        yield
    finally:
        for path in others:
            _write(path, "1")


def _read(path):
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def _write(path, value):
    with open(path, "w", encoding="ascii") as file:
        file.write(value + "\n")


class Tracer:
    """Tracing of this process and what it starts, while this is entered. What it sets, it sets
    back."""

    def __enter__(self):
        if not os.path.exists(os.path.join(TRACEFS, "current_tracer")):
            subprocess.run(
                ["mount", "-t", "tracefs", "tracefs", TRACEFS], capture_output=True, check=False)
        try:
            with one_processor():
                for name, value in (
                    ("tracing_on", "0"), ("current_tracer", "nop"),
                    ("buffer_size_kb", str(BUFFER_KIB)), ("options/function-fork", "1"),
                    ("set_ftrace_pid", str(os.getpid())),
                    ("set_graph_function", "\n".join(CALLS)),
                    ("current_tracer", "function_graph"), ("options/funcgraph-irqs", "0"),
                    ("trace", "")
                ):
                    self._set(name, value)
            self._set("tracing_on", "1")
        except OSError as error:
            print(
                f"path_trace.py: no tracing here: {error}; a guest of the lab has it: sluice lab"
                " run -- COMMAND",
                file=sys.stderr)
            sys.exit(EXIT_NOTHING_TO_RUN_ON)
        return self

    def __exit__(self, *_):
        with one_processor():
            for name, value in (
                ("tracing_on", "0"), ("current_tracer", "nop"), ("set_graph_function", ""),
                ("set_ftrace_pid", ""), ("options/function-fork", "0"), ("trace", "")
            ):
                self._set(name, value)

    @staticmethod
    def _set(name, value):
        _write(os.path.join(TRACEFS, name), value)

    def text(self):
        self._set("tracing_on", "0")
        with open(os.path.join(TRACEFS, "trace"), encoding="ascii", errors="replace") as file:
            return file.read()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="the names of the functions, too")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error(
            "which command? For example: benchmarks/wire.py --"
            " bazel-bin/benchmarks/bare/tcp_pingpong --mode blocking -n 100")
    with Tracer() as tracer:
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        said = judged(trees(tracer.text()), options.list)
    if ran.returncode != 0:
        return ran.returncode
    if said is None:
        print("path_trace.py: no call of the command handed a frame to a driver", file=sys.stderr)
        return 1
    line = json.loads(ran.stdout.splitlines()[-1])
    print(
        json.dumps(
            {
                "name": "path_trace", "of": line.get("name"), "mode": line.get("mode"), **said,
                "verified": line["verified"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
