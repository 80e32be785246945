#!/usr/bin/env python3
"""One round of grpc_tensors, as results that a question can read (sluice.demo/1): a mode for each
way.

    benchmarks/grpc_rows.py bazel-bin/benchmarks/grpc_tensors 16      a payload of 16 MiB
"""
import json
import re
import subprocess
import sys

_ROW = re.compile(r"^(\S.*?)\s{2,}([\d.]+)\s+\(")


def results(text):
    """Of the program's table: the name of a way, and milliseconds."""
    found = [_ROW.match(line) for line in text.splitlines()]
    return [
        {"mode": row[1], "step_seconds": {"p50": float(row[2]) / 1e3}, "verified": True}
        for row in found
        if row]


def main():
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        print(
            "grpc_rows.py: which program and how many MiB? For example: benchmarks/grpc_rows.py"
            " bazel-bin/benchmarks/grpc_tensors 16",
            file=sys.stderr)
        return 2
    ran = subprocess.run(
        [sys.argv[1], "1", sys.argv[2]], stdout=subprocess.PIPE, text=True, check=False)
    # the program checks each payload, and ends with an error if one was wrong
    if ran.returncode == 0:
        print(json.dumps({"schema": "sluice.demo/1", "results": results(ran.stdout)}))
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
