"""Loads and checks a question: the rows to compare and the ratios to reach.

questions/NAME.json holds {"question", "asks", "baseline", "rows", "targets"}.
A row: {"name", "command", "metric"} and optionally "select" (which result of the
command's JSON), "needs" (files beside command[0] that must exist), "note".
In a command, {bin} is the folder of built programs and {json} a file that the
command writes its result to; without {json} the result is read from stdout.
A target: {"row", "of", "at_most" | "at_least"} on row / of; "of" may be a list,
then the best of them in each round counts; with "best": "overall" the one with the best median, in
all rounds: for settings, of which a user would choose one. With "over" and "of_over", two more
rows, it is on (row / over) / (of / of_over): how much more the one grows than the other.

Short for many rows: "sizes": [64, 4096] stands for one row of each, with {size} replaced in
name, command and select; they form one line of a chart, "series" (the name without the size).
"peer": the package of a row whose program is somebody else's: Debian's, or one that
benchmarks/peers/install.py gets. "device": "rdma" for a row that needs one, "module" for one that
needs the kernel module. Of a question, or of a row instead: "quick": {"--iterations": "4"} replaces
the values of these flags, where a command has them, when time is short; "shares": 6 of a question,
how many even shares of a limited time its first round may take (tools/bench/schedule.py); of a
target, "quick": false leaves it out then (narrowed()). "gauge": a command of a question, which
prints one_way_ns: it runs before and after each row, and figures are compared with those that met
the machine in the same state (states.py); a target with "state": "near" or "far" is on the rounds
in that state alone. "pareto": ", CPU" of a question: a row and the one whose name has this added
are one point of a chart, what is gained and what it costs; narrowed() keeps all of them.
"""
import copy
import json

import states
from row_results import METRICS


class BadQuestion(Exception):
    """The message names the file, the field and what is wrong with it."""


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            question = json.load(file)
    except (OSError, ValueError) as error:
        raise BadQuestion(f"{path}: {error}") from error
    for field in ("question", "asks", "baseline", "rows", "targets"):
        if field not in question:
            raise BadQuestion(f"{path}: field {field!r} is missing")
    question["rows"] = [each for row in question["rows"] for each in one_per_size(row)]
    _check_rows(path, question)
    _check_targets(path, question)
    return question


def one_per_size(row):
    """The rows that "sizes" stands for; the row itself where it has none."""
    if "sizes" not in row:
        return [row]
    rows = []
    for size in row["sizes"]:
        each = copy.deepcopy(row)
        del each["sizes"]
        each["series"] = row["name"].replace("{size}", "").strip()
        each["size"] = size
        each["name"] = row["name"].replace("{size}", size_text(size))
        each["command"] = [part.replace("{size}", str(size)) for part in row["command"]]
        each["select"] = {
            key: size if value == "{size}" else value
            for key, value in row.get("select", {}).items()}
        rows.append(each)
    return rows


def size_text(size):
    """64 B, 4 KiB, 1 MiB: the largest unit that leaves a whole number."""
    for unit, text in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {text}"
    return f"{size} B"


def shortened(question):
    """The question with the values of its "quick" flags in every command that has them."""
    short = copy.deepcopy(question)
    for row in short["rows"]:
        flags, command = row.get("quick", question.get("quick", {})), row["command"]
        for at, part in enumerate(command[:-1]):
            command[at + 1] = flags.get(part, command[at + 1])
    return short


def narrowed(question, also=(), every_target=False):
    """The question with the rows that decide it: its baseline, those of its targets (but the ones
    with "quick": false, unless `every_target`), and those in `also`.

    "left_out": how many rows that left out.
    """
    targets = [
        target for target in question["targets"] if every_target or target.get("quick", True)]
    pairs = {row["name"] for row in question["rows"]} if "pareto" in question else set()
    kept = {
        question["baseline"], *also, *pairs,
        *(name for target in targets for name in names_in(target))}
    rows = [row for row in question["rows"] if row["name"] in kept]
    return dict(question, rows=rows, targets=targets, left_out=len(question["rows"]) - len(rows))


def without_peers(question):
    """The question without rows of somebody else's programs, and without what is judged against
    them."""
    return _with_rows(question, [row for row in question["rows"] if "peer" not in row])


def needing_devices(question):
    """The question with the rows that need an RDMA device or the kernel module; its baseline is the
    first of them if it is none itself."""
    return _from_rows(question, [row for row in question["rows"] if "device" in row])


def beginning(question, prefixes):
    """The question with the rows whose names begin with one of `prefixes`; its baseline is the
    first of them if it is none itself."""
    rows = [row for row in question["rows"] if row["name"].startswith(tuple(prefixes))]
    if not rows:
        raise BadQuestion(
            f"{question['question']}: no row begins with {' or '.join(map(repr, prefixes))}; "
            f"its rows are {', '.join(repr(row['name']) for row in question['rows'])}")
    return _from_rows(question, rows)


def _from_rows(question, rows):
    kept = question["baseline"] in {row["name"] for row in rows}
    return dict(
        _with_rows(question, rows), baseline=question["baseline"] if kept else rows[0]["name"])


def _with_rows(question, rows):
    """Without the targets that compare others."""
    names = {row["name"] for row in rows}
    targets = [target for target in question["targets"] if set(names_in(target)) <= names]
    return dict(question, rows=rows, targets=targets)


def as_list(of):
    return of if isinstance(of, list) else [of]


def names_in(target):
    """The rows that a target compares."""
    return [
        target.get("row"), *as_list(target.get("of")),
        *(target[key] for key in ("over", "of_over") if key in target)]


def _check_rows(path, question):
    names = [row.get("name") for row in question["rows"]]
    if len(set(names)) != len(names):
        raise BadQuestion(f"{path}: two rows have one name")
    if question["baseline"] not in names:
        raise BadQuestion(f"{path}: baseline {question['baseline']!r} is not a row")
    for row in question["rows"]:
        if not row.get("command") or row.get("metric") not in METRICS:
            raise BadQuestion(f"{path}: row {row.get('name')!r} needs a command and a metric of "
                              f"{sorted(METRICS)}")


def _check_targets(path, question):
    metrics = {row["name"]: row["metric"] for row in question["rows"]}
    for target in question["targets"]:
        if ("over" in target) != ("of_over" in target):
            raise BadQuestion(
                f"{path}: target of {target['row']!r} needs over and of_over, or neither")
        for name in names_in(target):
            if name not in metrics:
                raise BadQuestion(f"{path}: target names {name!r}, which is not a row")
            if metrics[name] != metrics[target["row"]]:
                raise BadQuestion(f"{path}: target of {target['row']!r} compares two metrics")
        if target.get("best", "overall") != "overall":
            raise BadQuestion(
                f"{path}: target of {target['row']!r}: \"best\" is \"overall\" or left out")
        if "state" in target and (target["state"] not in states.BOTH or "gauge" not in question):
            raise BadQuestion(
                f"{path}: target of {target['row']!r}: \"state\" is \"near\" or \"far\", of a"
                " question with a gauge")
        if ("at_most" in target) == ("at_least" in target):
            raise BadQuestion(f"{path}: target of {target['row']!r} needs at_most or at_least")
