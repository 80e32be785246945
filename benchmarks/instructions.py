#!/usr/bin/env python3
"""Instructions that the library takes for an operation, both ends together, by callgrind.

The counts repeat on any machine, however busy, as times do not. An older binary beside a newer
one shows what a change costs:

    benchmarks/instructions.py [OLD_HOT_PATH] bazel-bin/benchmarks/hot_path
    benchmarks/instructions.py [OLD_HOT_PATH] bazel-bin/tests/verbs/hot_path

The second one's modes are those over verbs, without the instructions of the device. Prints a line
for each mode: the count for each binary and the ratio of the last to the first. With --functions N
also the N functions of the last binary in which most instructions were spent."""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

# operations for each turn of the loop
MODES = {
    "message-shm": 2, "message-tcp": 2, "view-shm": 1, "names-shm": 1, "ahead-shm": 1,
    "subscribed-shm": 1, "into-shm": 1, "into-tcp": 1, "write-verbs": 1, "read-verbs": 1,
    "message-verbs": 2, "turn-verbs": 1}
COUNT = 500


def modes_of(binary: pathlib.Path) -> list[str]:
    usage = subprocess.run([str(binary.resolve())], capture_output=True, text=True).stderr
    return [mode for mode in MODES if re.search(rf"[ |]{mode}[ |]", usage)]


def count(binary: pathlib.Path, mode: str, functions: int) -> tuple[float, str]:
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "callgrind")
        command = [
            "valgrind", "--tool=callgrind", "--toggle-collect=measured_operations*",
            "--toggle-collect=*device_call*",
            f"--callgrind-out-file={out}", str(binary.resolve()), mode, str(COUNT)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if run.returncode != 0:
            sys.exit(f"instructions: {' '.join(command)} failed:\n{run.stderr}")
        collected = re.search(r"Collected : (\d+)", run.stderr)
        if collected is None or int(collected[1]) == 0:
            sys.exit(
                f"instructions: {binary} counted nothing: is it stripped of the name"
                f" measured_operations?\n{run.stderr}")
        listing = ""
        if functions > 0:
            shown = subprocess.run(
                ["callgrind_annotate", "--threshold=100", str(out)], capture_output=True, text=True
            ).stdout
            found = re.findall(
                r"^\s*([\d,]+) \([ \d.]+%\)\s+\S*?:(.*?)(?: \[.*\])?$", shown, re.MULTILINE)
            listing = "\n".join(
                f"    {int(spent.replace(',', '')) / COUNT / MODES[mode]:9.1f}  {name[:100]}"
                for spent, name in found[:functions])
        return int(collected[1]) / COUNT / MODES[mode], listing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binaries", nargs="+", type=pathlib.Path, help="hot_path, oldest first")
    parser.add_argument(
        "--only", choices=MODES, action="append", help="this mode; may be given more than once")
    parser.add_argument(
        "--functions", type=int, default=0, metavar="N", help="show the N most expensive functions")
    options = parser.parse_args()
    for binary in options.binaries:
        if not binary.is_file():
            parser.error(f"{binary} is not there: bazel build --config=opt //benchmarks:hot_path"
                         " //tests/verbs:hot_path")
    for mode in options.only or modes_of(options.binaries[-1]):
        counts = [count(binary, mode, options.functions) for binary in options.binaries]
        figures = "  ".join(f"{figure:9.1f}" for figure, _ in counts)
        ratio = f"  {counts[-1][0] / counts[0][0]:.3f}" if len(counts) > 1 else ""
        print(f"{mode:12} {figures}{ratio}")
        if options.functions:
            print(counts[-1][1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
