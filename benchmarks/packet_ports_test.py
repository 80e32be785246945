#!/usr/bin/env python3
"""packet_ports.py prints a row for each number of sockets, and stops where a socket got a frame."""
import pathlib
import re
import subprocess
import sys

PROGRAM = pathlib.Path(__file__).resolve().parent / "packet_ports.py"


def main():
    text = PROGRAM.read_text(encoding="ascii")
    run = subprocess.run(
        [sys.executable, "-B", PROGRAM, "--frames", "20", "--rounds", "1"], capture_output=True,
        text=True, check=False)
    if "no network namespace" in run.stderr:
        print("SKIPPED netns: no network namespace: unshare is refused\nsluice-skips 1")
        return
    rows = re.findall(r"^ *(\d+) +(\d+) +(\d+|-)$", run.stdout, re.MULTILINE)
    assert run.returncode == 0 and [int(row[0]) for row in rows] == [0, 1, 2, 4, 8, 16, 64], (
        run.stdout + run.stderr)
    # With the frame's own port in the filter the sockets get it.
    wanted = text.replace("port_filter(10_000 + i)", "port_filter(7)")
    assert wanted != text
    run = subprocess.run(
        [sys.executable, "-B", "-", "--frames", "20", "--rounds", "1"], input=wanted,
        capture_output=True, text=True, check=False)
    assert run.returncode != 0 and "a socket got" in run.stderr, run.stdout + run.stderr
    print("2 runs")


if __name__ == "__main__":
    main()
