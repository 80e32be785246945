#!/usr/bin/env python3
"""Ratios of a result of compare.py, of rounds in which both rows met the machine in one of its two
states.

    benchmarks/compare.py shm_latency --rounds 15 --json out.json
    benchmarks/by_state.py out.json "sluice send_lat" "UCX 1.22 tag_lat posix"

For results without a gauge (states.py). The host moves the two processors nearer together or
farther apart (docs/performance.md): latencies then come in two groups, with nothing between. A
row's figures are cut at their widest gap, if that is a factor of 1.25 at least; a row without such
a gap met one state only, and is compared with whatever the other row met. If neither has one, all
rounds are of one state, which the bare flag tells.
Exit code: 0; 1 if no round has both rows in one state; 2 for bad usage.
"""
import argparse
import json
import statistics
import sys

from states import FAR, NEAR

LEAST_GAP = 1.25  # narrower ones are noise; the states are 1.5 and more apart
ONE = "one state"


def states_of(values):
    """Of each figure near, far, or None: not measured, or all of one state."""
    present = sorted(value for value in values if value)
    gaps = [(above / below, above) for below, above in zip(present, present[1:])]
    widest, least_far = max(gaps, default=(1, None))
    if widest < LEAST_GAP:
        return [None] * len(values)
    return [None if not value else FAR if value >= least_far else NEAR for value in values]


def ratios(ours, theirs):
    """{state: ratios} of the rounds that both rows spent in it."""
    mine, other = states_of(ours), states_of(theirs)
    found = {NEAR: [], FAR: [], ONE: []}
    for a, b, state, beside in zip(ours, theirs, mine, other):
        known = {state, beside} - {None}
        if a and b and len(known) < 2:
            found[known.pop() if known else ONE].append(a / b)
    return found


def rows_of(document):
    return {row["name"]: row["values"] for answer in document["answers"] for row in answer["rows"]}


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="what compare.py --json wrote")
    parser.add_argument("row")
    parser.add_argument("of")
    options = parser.parse_args(arguments)
    with open(options.file, encoding="utf-8") as file:
        rows = rows_of(json.load(file))
    for name in (options.row, options.of):
        if name not in rows:
            parser.error(f"no row {name!r}; there are {', '.join(map(repr, rows))}")
    found = ratios(rows[options.row], rows[options.of])
    for state, values in found.items():
        if values:
            print(
                f"{options.row} / {options.of}, {state}: {statistics.median(values):.2f}"
                f" ({min(values):.2f} to {max(values):.2f}), rounds: {len(values)}")
    return 0 if any(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
