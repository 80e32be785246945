#!/usr/bin/env python3
"""How much faster a job gets with more workers, by `sluice graph scale`, in virtual time.

    benchmarks/scaling.py --workers 16 -- bazel-bin/tools/sluice graph scale --model vgg16 --hosts --split

Runs the command with `--scale 1,N` and prints one JSON line: `speed_up`, which is how many steps N workers take in the
time of one. Costs are those of scaling_costs.json (a line of 40 Gbit/s and hosts with six processors, as in the original)
unless the command names others; docs/graph.md has what the estimate assumes."""
import argparse
import json
import pathlib
import subprocess
import sys

COSTS = pathlib.Path(__file__).resolve().parent / "scaling_costs.json"


def speed_up(table, workers):
    """Of the line of so many workers: columns are workers, servers, step ms, speed-up and others."""
    lines = {line.split()[0]: line.split() for line in table.splitlines()[1:] if line.strip()}
    return float(lines[str(workers)][3])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, required=True, metavar="N")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    numbers = sorted({1, options.workers})
    command = [*options.command, "--scale", ",".join(map(str, numbers))]
    if "--costs" not in command:
        command += ["--costs", str(COSTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"scaling.py: {' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}", file=sys.stderr)
        return 1
    try:
        reached = speed_up(done.stdout, options.workers)
    except (KeyError, IndexError, ValueError):
        print(f"scaling.py: {' '.join(command)} printed no line of {options.workers} workers:\n{done.stdout}", file=sys.stderr)
        return 1
    print(json.dumps({"name": "scaling", "mode": f"{options.workers} workers", "verified": True,  # no payload is moved
                      "speed_up": reached}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
