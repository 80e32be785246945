#!/usr/bin/env python3
r"""How much faster a job gets with more workers, by `sluice graph scale`, in virtual time.

    benchmarks/scaling.py --workers 16 -- \
        bazel-bin/tools/sluice graph scale --model vgg16 --hosts --split

Runs the command with `--scale 1,N` and prints one JSON line: `speed_up`, which is how many steps N
workers take in the time of one. Costs are those of scaling_costs.json (a line of 40 Gbit/s and
hosts with six processors, as in the original) unless the command names others. docs/graph.md has
what the estimate assumes."""
import argparse
import json
import pathlib
import subprocess
import sys

COSTS = pathlib.Path(__file__).resolve().parent / "scaling_costs.json"


def speed_up(table, workers):
    """Of the line of so many workers. Columns: workers, servers, step ms, speed-up, others."""
    rows = [line.split() for line in table.splitlines()[1:] if line.strip()]
    return float({row[0]: row for row in rows}[str(workers)][3])


def failed(why):
    print(f"scaling.py: {why}", file=sys.stderr)
    return 1


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, required=True, metavar="N")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    numbers = sorted({1, options.workers})
    command = [*options.command, "--scale", ",".join(map(str, numbers))]
    if "--costs" not in command:
        command += ["--costs", str(COSTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return failed(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
    try:
        reached = speed_up(done.stdout, options.workers)
    except (KeyError, IndexError, ValueError):
        return failed(f"{' '.join(command)} printed no line of {options.workers} workers:\n"
                      f"{done.stdout}")
    print(json.dumps({"name": "scaling", "mode": f"{options.workers} workers",
                      "verified": True,  # no payload is moved
                      "speed_up": reached}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
