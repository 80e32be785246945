#!/usr/bin/env python3
"""What an algorithm of `sluice tune system` finds on a recorded surface, and in how many runs.

    benchmarks/tuner_search.py --algorithm halving [--noise 0.03] [--seeds 100]

The surface is that of a line between two network namespaces (tests/tune_system/recorded.json):
every setting of its grid, measured once. A search asks the surface in place of the line. So it can
be repeated with many seeds, and the best setting is known. Prints one JSON line: `found_share`, the
rate of the setting that was found by that of the best, and `run_share`, the runs that were spent by
those of an exhaustive search. Both are medians over the seeds. With --noise each answer is off by a
normal deviate of that share; a run that is a quarter as long is off by twice as much."""
import argparse
import json
import math
import pathlib
import random
import statistics
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools" / "tune_system"))

from parameter_computation import ALGORITHMS, ParameterComputation  # noqa: E402

RECORDED = ROOT / "tests" / "tune_system" / "recorded.json"


def search(recorded, algorithm, noise, seed):
    """(share of the best rate that was found, share of the runs of an exhaustive search)."""
    rates = {tuple(point): rate for point, rate in recorded["measured"]}
    draw = random.Random(f"noise {seed}")

    def measure(setting, effort):
        rate = rates[tuple(setting[name] for name in recorded["space"])]
        return {"node": {1: rate * (1 + noise / math.sqrt(effort) * draw.gauss(0, 1))}}

    computation = ParameterComputation(recorded["space"], seed)
    found = computation.choose(algorithm, measure)
    rate = rates[tuple(found[name] for name in recorded["space"])]
    return rate / max(rates.values()), computation.runs / len(rates)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="halving")
    parser.add_argument("--noise", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--seeds", type=int, default=100, metavar="N")
    parser.add_argument("--surface", default=str(RECORDED), metavar="FILE")
    options = parser.parse_args()
    with open(options.surface, encoding="utf-8") as file:
        recorded = json.load(file)
    searches = [search(recorded, options.algorithm, options.noise, seed)
                for seed in range(1, options.seeds + 1)]
    print(json.dumps({"name": "tuner_search", "mode": options.algorithm,
                      "verified": True,  # no payload is moved
                      "found_share": statistics.median(found for found, _ in searches),
                      "run_share": statistics.median(runs for _, runs in searches)}))


if __name__ == "__main__":
    main()
