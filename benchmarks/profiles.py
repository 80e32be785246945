#!/usr/bin/env python3
"""Holds the advice of `sluice profile` against what its profiles really do.

    benchmarks/profiles.py --sluice SLUICE --npb NPB [--rounds 7] [--only WORDS] [--json FILE]

Each program is recorded once, `sluice profile advise` names a profile out of the recordings, and
then the program itself runs under each of the three in interleaved rounds. The advice is right if
the profile that it named takes at most 5 % longer than the fastest, in the median of the rounds.
"apart": a processor for each rank. "shared": the same two ranks on one processor, or four ranks on
two. Exit code 1: a piece of advice was wrong; 2: a program failed."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

import judging  # noqa: E402

PROFILES = {"latency": "spin", "low-cpu": "sleep", "automatic": "adaptive"}
BOUND = 1.05
# Of a run; a profile that takes longer is lost, whatever it would take.
SECONDS = 20
APART, ONE_CPU, FOUR = "apart", "shared: 2 on 1", "shared: 4 on 2"
# Name, arguments. Placement: processors, ranks.
KERNELS = [
    ("is W", "--kernel is --class W"), ("cg W", "--kernel cg --class W"),
    ("ft S", "--kernel ft --class S"), ("lu S", "--kernel lu --class S"),
    ("hpl 1024", "--kernel hpl --order 1024")]
PLACES = {APART: ("0,1", 2), ONE_CPU: ("0", 2), FOUR: ("0,1", 4)}
DEMO = "demo --model vgg16 --modes zerocopy --paths shm --steps 6 --workers %d --json %s"


class Case:
    def __init__(self, options, name, place, command):
        self.name, self.place, self.options = name, place, options
        self.title = f"{name}, {place}"
        self.command = ["taskset", "-c", PLACES[place][0], *command]

    def run(self, profile=None, under=()):
        """Seconds; None: it did not end in time."""
        with tempfile.TemporaryDirectory() as folder:
            result = os.path.join(folder, "result.json")
            command = [*under, *(word.replace("RESULT", result) for word in self.command)]
            environment = {
                name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
            if profile:
                environment["SLUICE_WAITING"] = PROFILES[profile]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=SECONDS, env=environment,
                    check=False)
            except subprocess.TimeoutExpired:
                return None
            if done.returncode != 0:
                raise RuntimeError(
                    f"{' '.join(command)}: exit code {done.returncode}:"
                    f" {done.stderr.strip()[-400:]}")
            if os.path.exists(result):
                document = json.loads(pathlib.Path(result).read_text(encoding="utf-8"))
                return document["results"][0]["step_seconds"]["median"]
            line = [text for text in done.stdout.splitlines() if text.startswith("{")][-1]
            return json.loads(line)["seconds"]

    def advice(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run(under=[self.options.sluice, "profile", "record", "-o", folder, "--"])
            files = sorted(str(file) for file in pathlib.Path(folder).iterdir())
            command = [
                self.options.sluice, "profile", "advise", "--json", "--seconds",
                str(self.options.seconds), *files]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
            return json.loads(done.stdout)


def cases(options):
    for place, (_, ranks) in PLACES.items():
        for name, arguments in KERNELS:
            grid = ["--rows", "2"] if "hpl" in arguments and ranks == 4 else []
            yield Case(
                options, name, place,
                [options.npb, *arguments.split(), "--ranks", str(ranks), *grid])
        yield Case(
            options, "demo vgg16", place, [options.sluice, *(DEMO % (ranks - 1, "RESULT")).split()])


def measured(case, rounds):
    """Seconds by profile, round by round. One that takes twice as long as another in the first
    round is not run again."""
    seconds = {profile: [] for profile in PROFILES}
    lost = set()
    for number in range(rounds):
        order = list(PROFILES) if number % 2 == 0 else list(reversed(PROFILES))
        for profile in order:
            seconds[profile].append(None if profile in lost else case.run(profile))
        if number == 0:
            ended = judging.present([row[0] for row in seconds.values()])
            if not ended:
                raise RuntimeError(
                    f"{case.title}: under no profile it ended within {SECONDS} s; run this when "
                    "nothing else runs")
            fastest = min(ended)
            lost = {
                profile
                for profile, row in seconds.items()
                if row[0] is None or row[0] > 2 * fastest}
    return seconds


def ratio(row, to):
    """The median of the rounds that both have; None: there is none."""
    both = judging.present(judging.per_round(row, to))
    return judging.median(sorted(both)) if both else None


def judged(advice, seconds):
    answer = next(each for each in advice["answers"] if each["about"] == "waiting")
    medians = {
        profile: judging.median(sorted(judging.present(row)))
        for profile, row in seconds.items()
        if judging.present(row)}
    # Round by round: the machine may have been slower for a while, but then for all.
    fastest = next(iter(medians))
    for profile in medians:
        if ratio(seconds[profile], seconds[fastest]) < 1:
            fastest = profile
    by_fastest = {profile: ratio(row, seconds[fastest]) for profile, row in seconds.items()}
    replayed = {way["name"]: way["time_by_fastest"] for way in answer["ways"]}
    named = by_fastest[answer["named"]]
    return {
        "named": answer["named"], "fastest": fastest, "replayed": replayed, "ran": by_fastest,
        "medians": medians, "right": named is not None and named <= BOUND, "advice": advice,
        "seconds": seconds}


def cell(value):
    return "-" if value is None else f"{value:.2f}"


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="bazel-bin/tools/sluice")
    parser.add_argument("--npb", default="bazel-bin/benchmarks/npb/npb")
    parser.add_argument("--rounds", type=int, default=judging.MINIMUM_ROUNDS)
    parser.add_argument("--seconds", type=float, default=5, help="of the replay of one question")
    parser.add_argument(
        "--only", default="", help="programs and placements whose name has these words")
    parser.add_argument("--without", help="the same, left out")
    parser.add_argument("--json", help="all figures")
    options = parser.parse_args(arguments)
    chosen = [
        case
        for case in cases(options)
        if options.only in case.title and (not options.without or options.without not in case.title)
    ]
    if options.rounds < 1 or not chosen:
        parser.error(
            f"--only {options.only}: nothing has these words"
            if not chosen
            else "--rounds takes 1 or more")
    results, wrong = [], False
    print(
        "| program | ranks | replay: latency, low-cpu, automatic | the program itself | named |"
        " fastest | |\n|---|---|---|---|---|---|---|")
    for case in chosen:
        try:
            found = judged(case.advice(), measured(case, options.rounds))
        except RuntimeError as failure:
            print(f"profiles.py: {failure}", file=sys.stderr)
            return 2
        wrong = wrong or not found["right"]
        rows = (
            ", ".join(cell(found[kind].get(profile)) for profile in PROFILES)
            for kind in ("replayed", "ran"))
        print(
            f"| {case.name} | {case.place} | {' | '.join(rows)} | {found['named']} |"
            f" {found['fastest']} | {'right' if found['right'] else 'wrong'} |",
            flush=True)
        results.append(
            {"program": case.name, "place": case.place, "command": case.command, **found})
        if options.json:
            pathlib.Path(options.json).write_text(
                json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
