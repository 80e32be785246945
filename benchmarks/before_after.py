#!/usr/bin/env python3
"""Compares two builds of the `sluice` command, row by row, in interleaved rounds.

    benchmarks/before_after.py OLD NEW [--rounds 21] [--only WORDS] [--json FILE]

OLD and NEW are two `sluice` programs, for example of the commit before a change and of the change.
Each round runs both, in turn the one and the other first. The figure is performance: the old time
over the new one, or the new rate over the old. The bound is 0.97 (docs/performance.md); a verdict
takes the whole 95 % interval of the rounds' ratios (judging.py). Exit code 1: a row is below the
bound; 2: a program failed."""
import argparse
import csv
import io
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

import judging  # noqa: E402

BOUND = 0.97
SECONDS = 120
# Name, arguments of `sluice perf`, the column that counts, and whether more of it is better.
ROWS = [
    ("shm send_lat 64", "send_lat --transport shm -s 64 -n 400000", "p50_ns", False),
    ("shm exchange_lat 64K", "exchange_lat --transport shm -s 64K -n 200000", "p50_ns", False),
    (
        "shm exchange_bw into 16M", "exchange_bw --transport shm -s 16M --into -n 200",
        "bytes_per_second", True),
    ("shm send_bw 64", "send_bw --transport shm -s 64 -n 1000000", "messages_per_second", True),
    ("tcp send_lat 64", "send_lat --transport tcp -s 64 -n 50000", "p50_ns", False),
    ("tcp send_bw 64", "send_bw --transport tcp -s 64 -n 500000", "messages_per_second", True),
    ("tcp send_bw 64K", "send_bw --transport tcp -s 64K -n 30000", "bytes_per_second", True),
    (
        "tcp exchange_bw into 16M", "exchange_bw --transport tcp -s 16M --into -n 150",
        "bytes_per_second", True),
    ("l2 send_lat 64", "send_lat --transport l2 -s 64 -n 30000", "p50_ns", False),
    (
        "l2 exchange_bw into 4M", "exchange_bw --transport l2 -s 4M --into -n 100 -t 16",
        "bytes_per_second", True),
    ("udp send_lat 64", "send_lat --transport udp -s 64 -n 30000", "p50_ns", False),
    (
        "udp exchange_bw into 4M", "exchange_bw --transport udp -s 4M --into -n 100 -t 16",
        "bytes_per_second", True)]


def figure(program, arguments, column):
    """Of one run. Raises RuntimeError with what the program said."""
    command = [program, "perf", *arguments.split(), "--self", "--format", "csv"]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=SECONDS,
            check=False)
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise RuntimeError(f"{' '.join(command)}: {failure}") from failure
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    if done.returncode != 0 or len(rows) != 1 or not rows[0].get(column):
        raise RuntimeError(
            f"{' '.join(command)}: exit code {done.returncode}:"
            f" {done.stderr.strip()[-300:] or done.stdout[-300:]}")
    return float(rows[0][column])


def run_row(old, new, row, rounds):
    """Old figures, new figures, ratios of performance."""
    _, arguments, column, more_is_better = row
    before, after = [], []
    for number in range(rounds):
        for program, into in (
            ((old, before), (new, after)) if number % 2 == 0 else ((new, after), (old, before))
        ):
            into.append(figure(program, arguments, column))
    ratios = (
        judging.per_round(after, before) if more_is_better else judging.per_round(before, after))
    return before, after, ratios


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=judging.DECISIVE_ROUNDS)
    parser.add_argument("--only", default="", help="rows whose name has these words")
    parser.add_argument("--json", help="all figures")
    asked = parser.parse_args(arguments)
    rows = [row for row in ROWS if asked.only in row[0]]
    if asked.rounds < 1 or not rows:
        parser.error(
            f"--only {asked.only}: rows are {', '.join(row[0] for row in ROWS)}"
            if not rows
            else "--rounds takes 1 or more")
    results, failed = [], False
    print(f"{'row':<26}{'old':>16}{'new':>16}  performance of new by old, 95 % interval")
    for row in rows:
        try:
            before, after, ratios = run_row(asked.old, asked.new, row, asked.rounds)
        except RuntimeError as failure:
            print(f"before_after.py: {failure}", file=sys.stderr)
            return 2
        said = judging.summary(ratios)
        verdict = judging.verdict(ratios, at_least=BOUND)
        failed = failed or verdict == judging.FAIL
        old, new = (judging.median(sorted(values)) for values in (before, after))
        print(
            f"{row[0]:<26}{old:>16.0f}{new:>16.0f}  {said['median']:.3f} ({said['low']:.3f} to"
            f" {said['high']:.3f}), {said['rounds']} rounds: {verdict}",
            flush=True)
        results.append(
            {
                "row": row[0], "command": row[1], "column": row[2], "old": before, "new": after,
                "ratios": ratios, "verdict": verdict})
    if asked.json:
        pathlib.Path(asked.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
