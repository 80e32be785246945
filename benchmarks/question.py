"""Loads and checks a question: the rows to compare and the ratios to reach.

questions/NAME.json holds {"question", "asks", "baseline", "rows", "targets"}.
A row: {"name", "command", "metric"} and optionally "select" (which result of the
command's JSON), "needs" (files beside command[0] that must exist), "note".
In a command, {bin} is the folder of built programs and {json} a file that the
command writes its result to; without {json} the result is read from stdout.
A target: {"row", "of", "at_most" | "at_least"} on row / of; "of" may be a list,
then the best of them in each round counts.
"""
import json

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
    _check_rows(path, question)
    _check_targets(path, question)
    return question


def as_list(of):
    return of if isinstance(of, list) else [of]


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
        for name in [target.get("row")] + as_list(target.get("of")):
            if name not in metrics:
                raise BadQuestion(f"{path}: target names {name!r}, which is not a row")
            if metrics[name] != metrics[target["row"]]:
                raise BadQuestion(f"{path}: target of {target['row']!r} compares two metrics")
        if ("at_most" in target) == ("at_least" in target):
            raise BadQuestion(f"{path}: target of {target['row']!r} needs at_most or at_least")
