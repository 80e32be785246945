#!/usr/bin/env python3
"""Regenerates the figures of the documents that sluice comes from, and its own, on this machine.

    sluice bench --quick --report out          everything, in less than 4 minutes, as out/index.html and out/summary.md
    sluice bench --only E01,E05 --rounds 21    two experiments, rounds enough for a verdict about 5 %
    sluice bench --from here.json --from guest.json --report out    one report of two results, such as a guest's

Each round runs each program once, those that are compared one after the other. What is missing on this
machine is listed by name. A run that is interrupted (Ctrl-C) keeps what it has.
Exit code: 0; 1 if nothing at all could be measured; 2 for bad usage; 130 if interrupted.
"""
import argparse
import datetime
import difflib
import json
import os
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "benchmarks")]

import document as documents  # noqa: E402
import environment  # noqa: E402
import experiments as catalogue  # noqa: E402
import judging  # noqa: E402
import page  # noqa: E402
import peers  # noqa: E402
import question as questions  # noqa: E402
import schedule  # noqa: E402
import summary  # noqa: E402

EXIT_NOTHING, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
# Of --quick: under 4 minutes in all, with room for the last command's end and the report.
QUICK_SECONDS = 225.0
QUICK_ROUNDS = 7
# Of --quick: where so many rounds of every row would not end in time, rows that decide nothing are left out.
QUICK_LEAST_ROUNDS = 3
# What a command of a shortened question takes on two quiet processors, by a round of all: 225 s for 386.
QUICK_COMMAND_SECONDS = 0.6
EXAMPLE = "sluice bench --only E01,E05 --quick --report out"


class BadUsage(Exception):
    """One line: what is wrong and what would be right."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise BadUsage(f"{message}; example: {EXAMPLE}")


def parser():
    made = Parser(prog="sluice bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    made.add_argument("--only", metavar="E01,E05", help="experiments, or questions of them, by name")
    made.add_argument("--quick", action="store_true", help="shorter commands, and in less than 4 minutes as many rounds as they allow: of everything at once, of the rows that decide something")
    made.add_argument("--rounds", type=int, metavar="N", help="rounds of each question (default 7; 21 where 5 %% decide)")
    made.add_argument("--peers", action="store_true", help="also the programs of others, in the same rounds and tables")
    made.add_argument("--report", metavar="DIR", help="write DIR/index.html and DIR/summary.md")
    made.add_argument("--json", metavar="FILE", help="write the result there; - is stdout (docs/bench.md)")
    made.add_argument("--from", metavar="FILE", dest="recorded", action="append", help="report on recorded results, run nothing")
    made.add_argument("--bin", metavar="DIR", default=os.environ.get("SLUICE_BENCH_BIN", os.path.join(ROOT, "bazel-bin")), help="folder of the built programs")
    made.add_argument("--seconds", type=float, metavar="S", help="stop beginning rounds so that the run takes at most this long")
    made.add_argument("--max-steal", type=float, metavar="PERCENT", default=judging.MAX_STEAL_PERCENT, help=argparse.SUPPRESS)
    made.add_argument("--list", action="store_true", help="list the experiments and what is missing of them")
    return made


def parse(arguments):
    known = parser()
    options, unknown = known.parse_known_args(arguments)
    if unknown:
        near = difflib.get_close_matches(unknown[0].split("=")[0], known._option_string_actions, n=1, cutoff=0.0)
        meant = near[0] if unknown[0].startswith("-") else f"--only {unknown[0]}"
        raise BadUsage(f"unknown argument {unknown[0]!r}; did you mean {meant}? example: {EXAMPLE}")
    if options.rounds is not None and not 1 <= options.rounds <= 1000:
        raise BadUsage(f"--rounds {options.rounds}: a number from 1 to 1000; example: sluice bench --rounds 21")
    if options.seconds is not None and not options.seconds > 0:
        raise BadUsage(f"--seconds {options.seconds:g}: more than 0; example: sluice bench --seconds 600")
    if options.recorded and (options.only or options.quick or options.peers or options.rounds):
        raise BadUsage("--from runs nothing: it goes with --report alone; example: sluice bench --from old.json --report out")
    if options.quick and options.seconds is None:
        options.seconds = QUICK_SECONDS
    options.rounds = options.rounds or QUICK_ROUNDS
    options.bin = os.path.realpath(options.bin)  # bazel-bin moves to another folder when another configuration is built
    return options


def check_writable(options):
    """Before anything runs: that the outputs can be written. Makes the report's folder."""
    try:
        if options.report:
            os.makedirs(options.report, exist_ok=True)
            tempfile.TemporaryFile(dir=options.report).close()
        if options.json and options.json != "-":
            if os.path.isdir(options.json):
                raise IsADirectoryError(21, "is a folder", options.json)
            tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(options.json))).close()
            if os.path.exists(options.json):
                open(options.json, "r+", encoding="utf-8").close()
    except OSError as error:
        raise BadUsage(f"{options.report if error.filename != options.json and options.report else options.json}: cannot be written: "
                       f"{error.strerror}; nothing was run") from error


def replace(path, text):
    """Whole or not at all: a reader never sees half a file."""
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def write(options, result):
    if options.json == "-":
        print(json.dumps(result))
    elif options.json:
        replace(options.json, json.dumps(result, indent=1) + "\n")
    if options.report:
        replace(os.path.join(options.report, "index.html"), page.html(result))
        replace(os.path.join(options.report, "summary.md"), summary.markdown(result))


class Progress:
    """A line for each command: which, n of m, time left. On a terminal it replaces the one before."""

    def __init__(self, stream):
        self.stream, self.terminal = stream, stream.isatty()

    def __call__(self, what, done, total, seconds):
        left = f"{int(seconds) // 60}:{int(seconds) % 60:02} left"
        text = f"[{done + 1} of {total}, {left}] {what}"
        print(f"\r\033[K{text[:110]}" if self.terminal else text, end="" if self.terminal else "\n", file=self.stream, flush=True)

    def end(self):
        if self.terminal:
            print(file=self.stream)


def listing(chosen):
    lines = []
    for one in chosen:
        lines.append(f"{one['id']:6} {one['title']} ({one['source']}): {', '.join(one['questions']) or 'nothing yet'}")
        lines += [f"         missing: {each['what']}: {each['why']}" for each in one["missing"]]
    return "\n".join(lines)


def measure(options, arguments, chosen, asked):
    progress = Progress(sys.stderr)
    started = datetime.datetime.now(datetime.timezone.utc)
    about = {"command": ["sluice", "bench", *arguments], "started": started.isoformat(timespec="seconds"),
             "quick": options.quick, "rounds_asked": options.rounds, "environment": environment.describe(ROOT),
             "peers": peers.installed() if options.peers else []}
    plan = schedule.Schedule(asked, options, progress)
    begun = time.monotonic()
    rounds = plan.execute()
    progress.end()
    about.update(seconds=round(time.monotonic() - begun, 1), interrupted=plan.interrupted, out_of_time=plan.out_of_time)
    return documents.build(chosen, asked, rounds, about)


def recorded(path):
    try:
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
    except OSError as error:
        raise BadUsage(f"--from {path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadUsage(f"--from {path}: is no JSON: {error}; a result is what --json writes") from error
    schema = result.get("schema") if isinstance(result, dict) else None
    if schema != documents.compare.SCHEMA:
        raise BadUsage(f"--from {path}: schema {schema!r}, not {documents.compare.SCHEMA}")
    return result


def close(options, result):
    """Writes, says what came out, and returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cost what the first one kept
    write(options, result)
    print(summary.short(result), file=sys.stderr if options.json == "-" else sys.stdout)
    for path in filter(None, (options.json if options.json != "-" else None, options.report and os.path.join(options.report, "index.html"))):
        print(f"written: {path}", file=sys.stderr)
    if result.get("interrupted"):
        kept = sum(one["figures"] for one in result["experiments"])
        print(f"interrupted: {kept} figures are kept; what did not run is listed as missing", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0 if any(one["figures"] for one in result["experiments"]) else EXIT_NOTHING


def main(arguments):
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does, also where a shell has Ctrl-C ignored (a job in the background)
    try:
        options = parse(arguments)
        chosen = catalogue.select(catalogue.load(), options.only.split(",") if options.only else None)
        if options.list:
            print(listing(chosen))
            return 0
        results = [recorded(path) for path in options.recorded or []]
        check_writable(options)
        if results:
            return close(options, documents.merged(results))
        asked = catalogue.questions_of(chosen, options.quick, options.peers)
        if options.quick and catalogue.commands_of(asked, options.bin) * QUICK_LEAST_ROUNDS * QUICK_COMMAND_SECONDS > options.seconds:
            asked = catalogue.narrowed(chosen, asked)
    except (BadUsage, catalogue.Unknown, questions.BadQuestion) as error:
        print(f"sluice bench: {error}", file=sys.stderr)
        return EXIT_USAGE
    return close(options, measure(options, arguments, chosen, asked))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
