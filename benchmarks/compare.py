#!/usr/bin/env python3
"""Answers a question of benchmarks/questions by interleaved rounds.

    benchmarks/compare.py shm_latency bulk --rounds 7 --json out.json --markdown out.md

Every round runs every row once, starting with another row each time and every second
round backwards, so that a machine that slows down for a while slows all rows and no row
always follows the same one. judging.py says what the rounds amount to. A round in which
the host took more than 5 % of the processors is run again, at most as often as rounds
were asked for. A row whose program is missing, that fails, or whose payload does not
verify stays in the table and says so.

Exit code: 0, or with --check 1 if a target fails, 2 for bad usage.
"""
import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import judging
import machine
import question as questions
import report
import row_results
import states

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(FOLDER)
LIMIT_SECONDS = 180  # of one command, unless its row says "limit_seconds"
SCHEMA = "sluice.bench/1"  # docs/bench.md

OK, ROW_MISSING, FAILED, CORRUPT = "ok", "missing", "failed", "payload did not verify"
EXIT_CORRUPT, EXIT_NOTHING_TO_RUN_ON = 4, 77
# Of a row that was not to run in a round: nothing is wrong, and nothing was measured.
NO_FIGURE = {"state": OK, "why": "", "value": None, "unchecked": False}


def expand(command, bin_folder, json_path):
    return [part.replace("{bin}", bin_folder).replace("{json}", json_path) for part in command]


# What the folder of programs is called in texts, wherever it lies: results are published.
BUILT = "bazel-bin"


def missing_program(row, bin_folder):
    """What the row needs and is not there, or None."""
    if row.get("device") == "rdma" and not machine.rdma_devices():
        return "an RDMA device (a guest has one: sluice lab run -- COMMAND)"
    if row.get("device") == "module" and not machine.has_module():
        return "the kernel module (in a guest: docs/bench.md)"
    program = expand(row["command"][:1], bin_folder, "")[0]
    if shutil.which(program, path=os.environ.get("PATH")) is None and \
            not os.access(os.path.join(ROOT, program), os.X_OK):
        return row["command"][0].replace("{bin}", BUILT)
    for path in row.get("needs", []):
        if not os.path.exists(os.path.join(ROOT, *expand([path], bin_folder, ""))):
            return path.replace("{bin}", BUILT)
    return None


class HeldSignals:
    """SIGINT and SIGTERM wait from its making to release(): else one that comes while a program
    starts leaves that program to nobody. Main thread only, as Python's handlers are."""

    def __init__(self):
        self.kept = []
        self.before = {number: signal.signal(number, lambda which, _frame: self.kept.append(which))
                       for number in (signal.SIGINT, signal.SIGTERM)}

    def release(self):
        for number, handler in self.before.items():
            signal.signal(number, handler)
        for number in self.kept:
            signal.raise_signal(number)


def started(command):
    """(process, the signals held while it started): release them where the process is sure to be
    ended."""
    held = HeldSignals()
    try:
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, start_new_session=True), held
    except BaseException:
        held.release()
        raise


def run_command(command, limit_seconds):
    """(exit code, stdout, stderr); the whole process group is gone afterwards, whatever ends
    this."""
    process, held = started(command)
    try:
        held.release()
        out, errors = process.communicate(timeout=limit_seconds)
        return process.returncode, out, errors
    except subprocess.TimeoutExpired:
        return None, "", f"ended after {limit_seconds} s"
    finally:
        end_group(process)


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.stdout.close()
    process.stderr.close()
    process.wait()


def outcome(state, why="", records=None):
    return {"state": state, "why": why, "records": records}


def run_once(row, bin_folder):
    """One execution of a row's command: its state and records."""
    absent = missing_program(row, bin_folder)
    if absent is not None:
        package = f" (Debian package {row['peer']})" if "peer" in row else ""
        return outcome(ROW_MISSING, f"{absent} is not there{package}")
    with tempfile.TemporaryDirectory() as folder:
        json_path = os.path.join(folder, "result.json")
        command = expand(row["command"], bin_folder, json_path)
        code, out, errors = run_command(command, row.get("limit_seconds", LIMIT_SECONDS))
        if code == EXIT_CORRUPT:
            return outcome(CORRUPT, _last_line(errors))
        if code == EXIT_NOTHING_TO_RUN_ON:
            return outcome(ROW_MISSING, _last_line(errors))
        if code != 0:
            return outcome(
                FAILED, _last_line(errors) if code is None else f"exit {code}: {_last_line(errors)}"
            )
        try:
            if "{json}" in row["command"]:
                with open(json_path, encoding="utf-8") as file:
                    out = file.read()
            return outcome(OK, records=row_results.parse(out))
        except (OSError, row_results.Unreadable) as error:
            return outcome(FAILED, str(error))


def _last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"


def figure_of(row, ran):
    """{"state","why","value","unchecked"} of one row from its command's outcome."""
    figure = {"state": ran["state"], "why": ran["why"], "value": None, "unchecked": False}
    if ran["state"] != OK:
        return figure
    try:
        record = row_results.select(ran["records"], row.get("select", {}))
    except row_results.Unreadable as error:
        return dict(figure, state=FAILED, why=str(error))
    if record["verified"] is False:
        return dict(figure, state=CORRUPT, why="the program says so")
    if row["metric"] not in record["metrics"]:
        return dict(figure, state=FAILED, why=f"no {row['metric']} in the result")
    return dict(figure, value=record["metrics"][row["metric"]],
                unchecked=record["verified"] == "unchecked")


def order_of(rows, number):
    """The rows in the order of round `number`: another first row each time, every second time
    backwards."""
    first = number % len(rows)
    rotated = rows[first:] + rows[:first]
    return rotated[::-1] if number % 2 else rotated


def gauged(row, run, bin_folder, gauge):
    """(the outcome of a row's command, more of its figure: the state of the machine)."""
    if gauge is None:
        return run(row, bin_folder), {}

    failed = []

    def flag():
        ran = run_once({"command": gauge}, bin_folder)
        if ran["state"] == OK:
            return ran["records"][0]["metrics"].get("one_way_ns")
        failed.append(outcome(ran["state"], f"the gauge of the machine's state: {ran['why']}"))
        return None

    ran, state = states.within_one(lambda: run(row, bin_folder), flag)
    return failed[0] if failed else ran, {"machine": state}


def run_round(
    rows, bin_folder, number, max_steal=judging.MAX_STEAL_PERCENT, run=run_once, only=None,
    gauge=None
):
    """One round: figures by row name, and what the machine did meanwhile. Rows with one command
    share one execution.

    `only`: names of the rows that run, all if None; the others have no figure in this round.
    `gauge`: the command that tells the machine's state, before and after each row (states.py).
    """
    meter, ran, begun = machine.Disturbance(), {}, time.monotonic()
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    figures = {row["name"]: NO_FIGURE for row in rows}
    for row in order_of([row for row in rows if only is None or row["name"] in only], number):
        key = tuple(row["command"])
        if key not in ran:
            ran[key] = gauged(row, run, bin_folder, gauge)
        outcome_of, machine_state = ran[key]
        figures[row["name"]] = dict(figure_of(row, outcome_of), **machine_state)
    elsewhere = meter.since_last()
    return {
        "figures": figures, "steal_percent": elsewhere["steal"],
        "foreign_percent": elsewhere["foreign"], "rejected": elsewhere["steal"] > max_steal,
        "started": started, "seconds": round(time.monotonic() - begun, 2)}


def wants_another(rounds, asked):
    """Rejected rounds are repeated, at most as many as were asked for: a machine that is always
    robbed ends too."""
    counted = sum(not one["rejected"] for one in rounds)
    return counted < asked and len(rounds) < 2 * asked


def run_rounds(question, options, run=run_once):
    rounds = []
    while wants_another(rounds, options.rounds):
        rounds.append(
            run_round(
                question["rows"], options.bin, len(rounds), options.max_steal, run,
                gauge=question.get("gauge")))
        print(
            f"{question['question']}: round {len(rounds)} of {options.rounds}"
            f"{' (not counted, run again: steal)' if rounds[-1]['rejected'] else ''}",
            file=sys.stderr)
    return rounds


def row_summary(row, rounds, baseline):
    figures = [one["figures"][row["name"]] for one in rounds]
    bad = next((figure for figure in figures if figure["state"] != OK), None)
    values = column(row["name"], rounds)
    result = {
        "name": row["name"], "metric": row["metric"], "note": row.get("note", ""),
        "state": bad["state"] if bad else OK, "why": bad["why"] if bad else "",
        "failed_rounds": sum(figure["state"] != OK for figure in figures),
        "failures": [
            {"round": at, "state": figure["state"], "why": figure["why"]}
            for at, figure in enumerate(figures)
            if figure["state"] != OK],
        "unchecked": any(figure["unchecked"] for figure in figures), "values": values,
        "summary": judging.summary(values), "ratio": None}
    result.update({key: row[key] for key in ("series", "size", "peer") if key in row})
    if states.told(rounds) == states.BOTH:
        result["machine"] = [figure.get("machine") for figure in figures]
    if row["metric"] == baseline["metric"]:
        result["ratio"] = judging.summary(
            judging.per_round(values, column(baseline["name"], rounds)))
    return result


def column(name, rounds, state=None):
    """A row's figure per counted round, of those in that state of the machine if one is named; none
    at all if its payload was ever wrong."""
    figures = [one["figures"][name] for one in rounds]
    if any(figure["state"] == CORRUPT for figure in figures):
        return [None] * len(rounds)
    return [
        None if one["rejected"] or state not in (None, figure.get("machine")) else figure["value"]
        for one, figure in zip(rounds, figures)]


def ratios(target, metric, rounds, state):
    """Per round, of the figures in that state of the machine."""
    best = judging.best_overall if target.get("best") == "overall" else judging.best_of
    base = best(
        [column(name, rounds, state) for name in questions.as_list(target["of"])],
        metric in row_results.MORE_IS_BETTER)
    ours = column(target["row"], rounds, state)
    if "over" in target:
        ours = judging.per_round(ours, column(target["over"], rounds, state))
        base = judging.per_round(base, column(target["of_over"], rounds, state))
    return judging.per_round(ours, base)


def judge(target, metric, rounds):
    of = questions.as_list(target["of"])
    told = (target["state"],) if "state" in target else states.told(rounds)
    by_state = {state: ratios(target, metric, rounds, state) for state in told}
    per_round = states.first_present(by_state.values())
    absent = [name for name in of if judging.summary(column(name, rounds)) is None]
    bound = target["at_most"] if "at_most" in target else target["at_least"]
    verdict = judging.verdict(per_round, target.get("at_most"), target.get("at_least"))
    if absent and verdict == judging.PASS:
        verdict = judging.INCONCLUSIVE  # the best of the others may be the absent one
    if "state" in target and verdict == judging.MISSING and not absent:
        verdict = judging.INCONCLUSIVE  # the machine was never in that state
    judged = {
        "row": target["row"], "of": of, "at_most": target.get("at_most"),
        "at_least": target.get("at_least"), "note": target.get("note", ""),
        "best": target.get("best"), "over": target.get("over"), "of_over": target.get("of_over"),
        "ratio": judging.summary(per_round), "absent": absent, "verdict": verdict,
        "rounds_needed": (
            judging.rounds_needed(per_round, bound) if judging.present(per_round) else None)}
    if "state" in target:
        return dict(judged, state=target["state"])
    if told == states.BOTH:
        return dict(
            judged, by_state={state: judging.summary(each) for state, each in by_state.items()})
    return judged


def answer(question, rounds):
    rows = {row["name"]: row for row in question["rows"]}
    baseline = rows[question["baseline"]]
    return {
        "question": question["question"], "asks": question["asks"],
        **({"pareto": question["pareto"]} if "pareto" in question else {}),
        "baseline": question["baseline"], "rounds": len(rounds),
        "left_out": question.get("left_out", 0),
        "rejected_rounds": sum(one["rejected"] for one in rounds),
        "rejected": [one["rejected"] for one in rounds],
        "times": [one.get("started") for one in rounds],
        "seconds": [one.get("seconds") for one in rounds],
        "steal_percent": [one["steal_percent"] for one in rounds],
        "foreign_percent": [one["foreign_percent"] for one in rounds],
        "rows": [row_summary(row, rounds, baseline) for row in question["rows"]],
        "targets": [
            judge(target, rows[target["row"]]["metric"], rounds) for target in question["targets"]]}


def question_path(name):
    return name if name.endswith(".json") else os.path.join(FOLDER, "questions", name + ".json")


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="+", help="names in benchmarks/questions, or files")
    parser.add_argument(
        "--rows", action="append", metavar="PREFIX",
        help="only rows whose names begin so; may be given again")
    parser.add_argument("--rounds", type=int, default=7, choices=range(1, 1001), metavar="N")
    parser.add_argument("--bin", default="bazel-bin", help="folder of the built programs")
    parser.add_argument(
        "--max-steal", type=float, default=judging.MAX_STEAL_PERCENT, metavar="PERCENT")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target fails")
    return parser.parse_args(arguments)


def main(arguments):
    options = parse_arguments(arguments)
    # so that commands are ended
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        asked = [questions.load(question_path(name)) for name in options.questions]
        if options.rows:
            asked = [questions.beginning(question, options.rows) for question in asked]
    except questions.BadQuestion as error:
        print(error, file=sys.stderr)
        return 2
    document = {"schema": SCHEMA, "environment": machine.describe(),
                "answers": [answer(question, run_rounds(question, options)) for question in asked]}
    text = report.markdown(document)
    print(text)
    for path, content in ((options.json, json.dumps(document, indent=1)), (options.markdown, text)):
        if path:
            with open(path, "w", encoding="utf-8") as file:
                file.write(content + "\n")
    verdicts = [target["verdict"] for one in document["answers"] for target in one["targets"]]
    return 1 if options.check and judging.FAIL in verdicts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
