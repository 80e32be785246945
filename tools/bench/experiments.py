"""The experiments: which questions answer each, what the original reported, and what is missing.

Reads experiments.json and benchmarks/questions; knows nothing of running or reporting.
"""
import difflib
import json
import os
import re

import compare
import question as questions

FOLDER = os.path.dirname(os.path.realpath(__file__))


class Unknown(Exception):
    """A name that is no experiment and no question; the message suggests the nearest."""


def load():
    with open(os.path.join(FOLDER, "experiments.json"), encoding="utf-8") as file:
        return json.load(file)


def select(experiments, only):
    """The experiments that `only` names, in their own order; a question's name stands for it
    alone."""
    if only is None:
        return experiments
    by_id = {one["id"].lower(): one for one in experiments}
    by_question = {name.lower(): (one, name) for one in experiments for name in one["questions"]}
    chosen = {}
    for name in only:
        key = _key(name)
        if key in by_id:
            chosen[by_id[key]["id"]] = by_id[key]
        elif key in by_question:
            one, whole = by_question[key]
            before = chosen.get(one["id"], {"questions": []})["questions"]
            chosen[one["id"]] = dict(one, questions=before + [whole] * (whole not in before))
        else:
            raise Unknown(_no_such(name, [one["id"] for one in experiments] + sorted(by_question)))
    return [chosen[one["id"]] for one in experiments if one["id"] in chosen]


def asking(names):
    """The experiments that ask any of these questions, with these questions alone."""
    narrow = [
        dict(one, questions=[name for name in one["questions"] if name in names]) for one in load()]
    return [one for one in narrow if one["questions"]]


def _key(name):
    """As names are compared: E5 is E05."""
    return re.sub(r"^e(\d)$", r"e0\1", name.strip().lower())


def _no_such(name, known):
    near = max(
        known,
        key=lambda each: (
            difflib.SequenceMatcher(None, _key(name), each.lower()).ratio(), -_apart(name, each)))
    return f"no experiment {name!r}; did you mean {near}? (sluice bench --list names all)"


def _apart(one, other):
    """How far two numbers of experiments lie from each other; what has none is far from all."""
    numbers = [re.fullmatch(r"e(\d+)", _key(each)) for each in (one, other)]
    return abs(int(numbers[0][1]) - int(numbers[1][1])) if all(numbers) else 1000


def questions_of(experiments, quick, peers):
    """{name: question} of all that the experiments ask, ready to run."""
    asked = {}
    for name in (name for one in experiments for name in one["questions"]):
        question = questions.load(compare.question_path(name))
        question = question if peers else questions.without_peers(question)
        asked[name] = questions.shortened(question) if quick else question
    return asked


def needing_devices(asked):
    """Of these questions the rows that need an RDMA device or the kernel module; questions without
    such rows are left out."""
    return {
        name: questions.needing_devices(one)
        for name, one in asked.items()
        if any("device" in row for row in one["rows"])}


def commands_of(asked, bin_folder):
    """How many commands a round takes, of those whose programs are there."""
    return sum(
        len(
            {
                tuple(row["command"])
                for row in one["rows"]
                if compare.missing_program(row, bin_folder) is None})
        for one in asked.values())


def narrowed(experiments, asked, every_target=False):
    """The same questions with the rows that decide something: those of targets, baselines, and
    figures beside an original's. Peers stay."""
    beside = {}
    for ours in (each["ours"] for one in experiments for each in one["original"] if "ours" in each):
        beside.setdefault(ours["question"], set()).update(
            (ours["row"], ours.get("of", ours["row"]), *ours.get("plus", [])))
    return {
        name: questions.narrowed(
            one, beside.get(name, set()) | {row["name"] for row in one["rows"] if "peer" in row},
            every_target)
        for name, one in asked.items()}
