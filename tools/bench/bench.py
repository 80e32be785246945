#!/usr/bin/env python3
"""Regenerates the figures of the documents that sluice comes from, and its own, on this machine.

    sluice bench --quick --report out          everything, in less than 4 minutes, as out/index.html
                                               and out/summary.md
    sluice bench --judge --report out          all night: of the rows that decide something as many
                                               rounds as verdicts take
    sluice bench --only E01,E05 --rounds 21    two experiments, rounds enough for a verdict about
                                               5 %
    sluice bench --from a.json --from b.json --report out    one report of two results

Each round runs each program once, those that are compared one after the other. What is missing on
this machine is listed by name. A run that is interrupted (Ctrl-C) keeps what it has: the same
command with the same --report goes on from there. Rows that need an RDMA device or the kernel
module run in a guest of the lab, if there is a --report to keep its rounds, and neither --quick nor
--seconds.
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
import guest  # noqa: E402
import judging  # noqa: E402
import page  # noqa: E402
import peers  # noqa: E402
import question as questions  # noqa: E402
import record  # noqa: E402
import schedule  # noqa: E402
import summary  # noqa: E402

EXIT_NOTHING, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
# Of --quick: under 4 minutes in all, with room for the last command's end and the report.
QUICK_SECONDS = 225.0
QUICK_ROUNDS = 7
# Of --quick: where so many rounds of every row would not end in time, rows that decide nothing are
# left out.
QUICK_LEAST_ROUNDS = 3
# What a command of a shortened question takes on two quiet processors, by a round of all: 225 s for
# 386.
QUICK_COMMAND_SECONDS = 0.6
# A run that is killed loses what it measured since its rounds were last written.
KEPT_EVERY_SECONDS = 60.0
# in the report's folder: of this machine, what a later run goes on from
ROUNDS_FILE = "rounds.json"
EXAMPLE = "sluice bench --only E01,E05 --quick --report out"


class BadUsage(Exception):
    """One line: what is wrong and what would be right."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise BadUsage(f"{message}; example: {EXAMPLE}")


def parser():
    made = Parser(
        prog="sluice bench", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    made.add_argument(
        "--only", metavar="E01,E05", help="experiments, or questions of them, by name")
    made.add_argument(
        "--quick", action="store_true",
        help=(
            "shorter commands, and in less than 4 minutes as many rounds as they allow: of"
            " everything at once, of the rows that decide something"))
    made.add_argument(
        "--rounds", type=int, metavar="N",
        help="rounds of each question (default 7; 21 where 5 %% decide)")
    made.add_argument(
        "--judge", action="store_true",
        help=(
            "of the rows that decide something: 21 rounds where a target's ratio is within 5 %% of"
            " its bound, else 7"))
    made.add_argument(
        "--peers", action="store_true",
        help="also the programs of others, in the same rounds and tables")
    made.add_argument(
        "--report", metavar="DIR",
        help=(
            "write DIR/index.html, DIR/summary.md and DIR/result.json; go on from the rounds that"
            " are there"))
    made.add_argument(
        "--replace", action="store_true",
        help="measure anew what was taken with other programs, or on another machine")
    made.add_argument(
        "--json", metavar="FILE", help="write the result there; - is stdout (docs/bench.md)")
    made.add_argument(
        "--from", metavar="FILE", dest="recorded", action="append",
        help="report on recorded results, run nothing")
    made.add_argument(
        "--bin", metavar="DIR",
        default=os.environ.get("SLUICE_BENCH_BIN", os.path.join(ROOT, "bazel-bin")),
        help="folder of the built programs")
    made.add_argument(
        "--seconds", type=float, metavar="S",
        help="stop beginning rounds so that the run takes at most this long")
    made.add_argument(
        "--max-steal", type=float, metavar="PERCENT", default=judging.MAX_STEAL_PERCENT,
        help=argparse.SUPPRESS)
    # only rows that need a device: what the guest runs
    made.add_argument("--devices", action="store_true", help=argparse.SUPPRESS)
    made.add_argument(
        "--no-lab", action="store_true",
        help="boot no guest for rows that need an RDMA device or the kernel module")
    made.add_argument(
        "--list", action="store_true", help="list the experiments and what is missing of them")
    return made


def parse(arguments):
    known = parser()
    options, unknown = known.parse_known_args(arguments)
    if unknown:
        near = difflib.get_close_matches(
            unknown[0].split("=")[0], known._option_string_actions, n=1, cutoff=0.0)
        meant = near[0] if unknown[0].startswith("-") else f"--only {unknown[0]}"
        raise BadUsage(f"unknown argument {unknown[0]!r}; did you mean {meant}? example: {EXAMPLE}")
    if options.rounds is not None and not 1 <= options.rounds <= 1000:
        raise BadUsage(
            f"--rounds {options.rounds}: a number from 1 to 1000; example: sluice bench --rounds 21"
        )
    if options.seconds is not None and not options.seconds > 0:
        raise BadUsage(
            f"--seconds {options.seconds:g}: more than 0; example: sluice bench --seconds 600")
    if options.quick and options.judge:
        raise BadUsage(
            "--quick has too few rounds for --judge; example: sluice bench --judge --report out")
    if options.recorded and (
        options.only or options.quick or options.judge or options.peers or options.rounds
    ):
        raise BadUsage(
            "--from runs nothing: it goes with --report alone; example: sluice bench --from"
            " old.json --report out")
    if options.quick and options.seconds is None:
        options.seconds = QUICK_SECONDS
    options.rounds = options.rounds or QUICK_ROUNDS
    # bazel-bin moves to another folder when another configuration is built
    options.bin = os.path.realpath(options.bin)
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
        where = options.json
        if options.report and error.filename != options.json:
            where = options.report
        raise BadUsage(
            f"{where}: cannot be written: {error.strerror}; nothing was run") from error


def replace(path, text):
    """Whole or not at all: a reader never sees half a file."""
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def write(options, result):
    text = json.dumps(result, indent=1) + "\n"
    if options.json == "-":
        print(json.dumps(result))
    elif options.json:
        replace(options.json, text)
    if options.report:
        replace(os.path.join(options.report, "result.json"), text)
        replace(os.path.join(options.report, "index.html"), page.html(result))
        replace(os.path.join(options.report, "summary.md"), summary.markdown(result))


class Progress:
    """A line for each command: which, n of m, time left. On a terminal it replaces the one
    before."""

    def __init__(self, stream):
        self.stream, self.terminal = stream, stream.isatty()

    def __call__(self, what, done, total, seconds):
        left = f"{int(seconds) // 60}:{int(seconds) % 60:02} left"
        text = f"[{done + 1} of {total}, {left}] {what}"
        print(
            f"\r\033[K{text[:110]}" if self.terminal else text, end="" if self.terminal else "\n",
            file=self.stream, flush=True)

    def end(self):
        if self.terminal:
            print(file=self.stream)


def listing(chosen):
    lines = []
    for one in chosen:
        lines.append(
            f"{one['id']:6} {one['title']} ({one['source']}):"
            f" {', '.join(one['questions']) or 'nothing yet'}")
        lines += [f"         missing: {each['what']}: {each['why']}" for each in one["missing"]]
    return "\n".join(lines)


class Run:
    """A run on this machine. With a report it goes on from the rounds that are in its folder, and
    keeps its own there."""

    def __init__(self, options, arguments, chosen, asked):
        self._options, self._chosen, self._asked = options, chosen, asked
        self._path = os.path.join(options.report, ROUNDS_FILE) if options.report else None
        self._before = recorded(self._path) if self._path and os.path.exists(self._path) else None
        described, programs = environment.describe(ROOT), record.Programs(options.bin)
        self._identities = {
            name: record.identity(one, described, programs) for name, one in asked.items()}
        self._rounds_before = record.rounds_before(
            self._before, asked, self._identities, options.replace)
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self._others = [
            self._there(one, described)
            for one in (self._before or {"answers": []})["answers"]
            if one["question"] not in asked]
        # Of a result of which nothing is kept, nothing is left to say.
        earlier = self._before if self._others or any(self._rounds_before.values()) else None
        # Where the result lies is this machine's business.
        said = [
            each
            for each in arguments
            if options.report is None or each not in ("--report", options.report)]
        self._about = {
            "command": ["sluice", "bench", *said],
            "started": earlier["started"] if earlier else now,
            "runs": (earlier["runs"] if earlier else 0) + 1, "quick": options.quick,
            "rounds_asked": options.rounds, "environment": described,
            "peers": peers.installed() if options.peers else []}
        self._seconds_before = earlier["seconds"] if earlier else 0.0
        self._begun = self._kept = time.monotonic()

    def execute(self):
        """The result, of these rounds and those before."""
        progress = Progress(sys.stderr)
        self._plan = schedule.Schedule(
            self._asked, self._options, progress, before=self._rounds_before, kept=self._keep)
        self._plan.execute()
        progress.end()
        if self._rounds_before and self._plan.rounds == self._rounds_before:
            print(
                "nothing is left to run: the rounds that were asked for are there (--rounds N for"
                " more)",
                file=sys.stderr)
        return self._written()

    def _there(self, answer, described):
        """An answer to what was not asked this time, with where it was measured if that was not
        here."""
        here = answer.get("taken", {}).get("machine") == record.machine_of(described)
        return (
            answer
            if here
            else dict(answer, elsewhere=answer.get("elsewhere", documents.place(self._before))))

    def _keep(self):
        """Now and then, in case that the run is killed."""
        if self._path and time.monotonic() - self._kept >= KEPT_EVERY_SECONDS:
            self._written()
            self._kept = time.monotonic()

    def _written(self):
        about = dict(
            self._about, seconds=round(self._seconds_before + time.monotonic() - self._begun, 1),
            interrupted=self._plan.interrupted, out_of_time=self._plan.out_of_time)
        answers = (
            documents.answers_of(self._asked, self._plan.rounds, self._identities) + self._others)
        named = set(self._asked) | {one["question"] for one in self._others}
        chosen = self._chosen if named == set(self._asked) else catalogue.asking(named)
        result = documents.of_answers(chosen, answers, about)
        if self._path:
            replace(self._path, json.dumps(result, indent=1) + "\n")
        return result


def measure(options, arguments, chosen, asked):
    """The result of this machine and, of what needs it, of a guest."""
    result = Run(options, arguments, chosen, asked).execute()
    if not options.report or options.devices:
        return result
    names = guest.wanted(asked)
    beside = guest.recorded(options) if names else None
    boot = names and not (
        options.quick or options.seconds or options.no_lab or result["interrupted"])
    try:
        beside = (
            guest.run(options, names, lambda text: print(f"sluice bench: {text}", file=sys.stderr))
            if boot
            else beside)
    except KeyboardInterrupt:
        result["interrupted"], beside = True, guest.recorded(options)
    return documents.merged([result, beside], catalogue.load()) if beside else result


def recorded(path):
    try:
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
    except OSError as error:
        raise BadUsage(f"--from {path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadUsage(
            f"--from {path}: is no JSON: {error}; a result is what --json writes") from error
    schema = result.get("schema") if isinstance(result, dict) else None
    if schema != documents.compare.SCHEMA:
        raise BadUsage(f"--from {path}: schema {schema!r}, not {documents.compare.SCHEMA}")
    return result


def close(options, result):
    """Writes, says what came out, and returns the exit code."""
    # a second Ctrl-C must not cost what the first one kept
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    write(options, result)
    print(summary.short(result), file=sys.stderr if options.json == "-" else sys.stdout)
    for path in filter(
        None,
        (
            options.json if options.json != "-" else None,
            options.report and os.path.join(options.report, "index.html"))
    ):
        print(f"written: {path}", file=sys.stderr)
    if result.get("interrupted"):
        kept = sum(one["figures"] for one in result["experiments"])
        print(
            f"interrupted: {kept} figures are kept; what did not run is listed as missing",
            file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0 if any(one["figures"] for one in result["experiments"]) else EXIT_NOTHING


def main(arguments):
    # ends as Ctrl-C does, also where a shell has Ctrl-C ignored (a job in the background)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        options = parse(arguments)
        chosen = catalogue.select(
            catalogue.load(), options.only.split(",") if options.only else None)
        if options.list:
            print(listing(chosen))
            return 0
        results = [recorded(path) for path in options.recorded or []]
        check_writable(options)
        if results:
            return close(options, documents.merged(results, catalogue.load()))
        asked = catalogue.questions_of(chosen, options.quick, options.peers)
        asked = catalogue.needing_devices(asked) if options.devices else asked
        if (
            options.judge
            or options.quick
            and catalogue.commands_of(asked, options.bin)
            * QUICK_LEAST_ROUNDS
            * QUICK_COMMAND_SECONDS
            > options.seconds
        ):
            asked = catalogue.narrowed(chosen, asked, every_target=options.judge)
        return close(options, measure(options, arguments, chosen, asked))
    except (BadUsage, record.Differs, catalogue.Unknown, questions.BadQuestion) as error:
        print(f"sluice bench: {error}", file=sys.stderr)
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
