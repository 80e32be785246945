#!/usr/bin/env python3
"""Ties the documents to the recorded result: writes every figure in them that stands between marks,
and all of docs/bench-report.md.

    tools/bench/figures.py                        compares: names each figure that the recorded
                                                  result does not have, and ends with 1
    tools/bench/figures.py --write                writes the documents anew from
                                                  tools/bench/recorded.json
    tools/bench/figures.py --record night/result.json   takes that result as the recorded one, and
                                                        writes the documents

A mark is a comment, which no reader sees: <!--=question: row-->0.15 us<!--/--> is the row's figure,
<!--=question: row / other row-->1.2 (1.1 to 1.3)<!--/--> the median of the rounds' ratios,
<!--=E10: what-->...<!--/--> what stands beside the original's figure, and <!--?question: row /
other row-->pass<!--/--> the verdict of a target. A block
<!--targets question other-question--> ... <!--/targets--> is the table of their targets,
<!--verdicts--> ... <!--/verdicts--> that of how many targets each question has passed.
"""
import argparse
import difflib
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "benchmarks")]

import document as documents  # noqa: E402
import experiments as catalogue  # noqa: E402
import judging  # noqa: E402
import question as questions  # noqa: E402
import report  # noqa: E402
import summary  # noqa: E402

RECORDED = os.path.join(ROOT, "tools", "bench", "recorded.json")
REPORT = os.path.join(ROOT, "docs", "bench-report.md")
# What may quote figures of the recorded result.
QUOTING = ("README.md", "docs/performance.md", "docs/papers.md")
ABSENT = "not recorded"
MARK = re.compile(r"<!--([=?])([^>]*?): (.*?)-->(.*?)<!--/-->", re.DOTALL)
BLOCK = re.compile(r"(<!--(targets|verdicts)((?: \w+)*)-->\n).*?(<!--/\2-->)", re.DOTALL)
PREFACE = """# The recorded result

`tools/bench/figures.py` writes this page from `tools/bench/recorded.json`, which is what `sluice
bench` measured last; do not edit it. [bench.md](bench.md) says how it measures, and
[performance.md](performance.md) and [papers.md](papers.md) what it means.

"""


class Unknown(Exception):
    """A mark that names nothing."""


def load(path=RECORDED):
    """The result there, judged as the catalogue is now."""
    with open(path, encoding="utf-8") as file:
        return documents.merged([json.load(file)], catalogue.load())


class Figures:
    """What the marks stand for, in one result. A row that the catalogue has and the result has not
    is ABSENT; a name that neither has is Unknown."""

    def __init__(self, result):
        self._result = result
        self._answers = {one["question"]: one for one in result["answers"]}
        self._beside = {
            one["id"]: {each["what"]: each for each in one["original"]}
            for one in result["experiments"]}
        self._known = catalogue.load()
        self._asked = catalogue.questions_of(self._known, quick=False, peers=True)

    def of(self, kind, source, name):
        if kind == "?":
            return self._verdict(source, name)
        whats = [
            each["what"] for one in self._known if one["id"] == source for each in one["original"]]
        # "module" is a question and an experiment.
        return (
            self._figure(source, name)
            if source in self._asked and name not in whats
            else self._beside_original(source, name))

    def _figure(self, question, name):
        ours, _, other = name.partition(" / ")
        rows = {row["name"]: row for row in self._answers.get(question, {"rows": []})["rows"]}
        known = [row["name"] for row in self._asked[question]["rows"]]
        for each in filter(None, (ours, other)):
            _must_be(each, known, question)
        if any(rows.get(each, {}).get("summary") is None for each in filter(None, (ours, other))):
            return ABSENT
        if not other:
            return report.shown(rows[ours]["metric"], rows[ours]["summary"])
        ratio = judging.summary(judging.per_round(rows[ours]["values"], rows[other]["values"]))
        return report.estimate(ratio) if ratio else ABSENT

    def _beside_original(self, experiment, what):
        known = {one["id"]: [each["what"] for each in one["original"]] for one in self._known}
        _must_be(experiment, [*known, *self._asked], "the catalogue")
        _must_be(what, known[experiment], experiment)
        here = self._beside.get(experiment, {}).get(what, {"here": "-"})["here"]
        return ABSENT if here == "-" else here

    def _verdict(self, question, name):
        _must_be(question, list(self._asked), "the catalogue")
        _must_be(
            name, [report.compared(_whole(target)) for target in self._asked[question]["targets"]],
            question)
        targets = {
            report.compared(target): target
            for target in self._answers.get(question, {"targets": []})["targets"]}
        if name not in targets or targets[name]["ratio"] is None:
            return ABSENT
        few = (
            f", {targets[name]['ratio']['rounds']} of {targets[name]['rounds_needed']} rounds"
            if judging.wants_rounds(targets[name])
            else "")
        return targets[name]["verdict"] + few

    def block(self, kind, questions_named):
        """The text between the marks of a block."""
        for name in questions_named:
            _must_be(name, list(self._asked), "the catalogue")
        lines = self._targets(questions_named) if kind == "targets" else self._verdicts()
        return "\n".join(["", *lines, "", ""])

    def _targets(self, names):
        lines = []
        for target in (
            target
            for name in names
            for target in self._answers.get(name, {"targets": []})["targets"]
        ):
            compared, bound, ratio = report.target_line(target)[2:].split(" | ")[:3]
            lines.append(f"| {compared} | {bound} | {ratio} | {target['verdict']} |")
        return (
            ["| recorded target | bound | ratio | verdict |", "|---|---|---|---|", *lines]
            if lines
            else [f"({ABSENT}: {', '.join(names)})"])

    def _verdicts(self):
        words = (judging.PASS, judging.FAIL, judging.INCONCLUSIVE, judging.MISSING)
        counted = [
            (name, [target["verdict"] for target in answer["targets"]])
            for name, answer in self._answers.items()
            if answer["targets"]]
        lines = [
            f"| `{name}` | " + " | ".join(str(verdicts.count(word) or "") for word in words) + " |"
            for name, verdicts in counted]
        return [f"| question | {' | '.join(words)} |", "|---|---|---|---|---|", *lines]


def _whole(target):
    return {**target, "of": questions.as_list(target["of"])}


def _must_be(name, known, where):
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise Unknown(
            f"{where} has no {name!r}; did you mean {near[0]!r}?"
            if near
            else f"{where} has no {name!r}")


def written(text, figures):
    """The document with every mark's figure as the result has it."""
    text = MARK.sub(
        lambda mark: (
            f"<!--{mark[1]}{mark[2]}:"
            f" {mark[3]}-->{summary.cell(figures.of(mark[1], mark[2], mark[3]))}<!--/-->"),
        text)
    return BLOCK.sub(
        lambda block: block[1] + figures.block(block[2], block[3].split()) + block[4], text)


def report_text(result):
    return PREFACE + summary.markdown(result).rstrip() + "\n"


def pages(result):
    """(path, text as it is, text as it must be) of every document that has figures of the recorded
    result."""
    figures = Figures(result)
    for name in QUOTING:
        path = os.path.join(ROOT, name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        try:
            yield path, text, written(text, figures)
        except Unknown as error:
            raise Unknown(f"{name}: {error}") from error
    with open(REPORT, encoding="utf-8") as file:
        yield REPORT, file.read(), report_text(result)


def wrong_lines(before, after):
    """(line number, as it is, as it must be) of the lines that differ."""
    return [
        (number, one, other)
        for number, (one, other) in enumerate(
            zip(before.splitlines() + [""], after.splitlines() + [""]), 1)
        if one != other]


def compact(result):
    """JSON with a line for each answer: a diff of two recordings names the questions."""
    answers = ",\n".join("  " + json.dumps(one) for one in result["answers"])
    rest = {key: value for key, value in result.items() if key != "answers"}
    return json.dumps(rest, indent=1)[:-2] + ',\n "answers": [\n' + answers + "\n ]\n}\n"


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the documents")
    parser.add_argument(
        "--record", metavar="FILE", help="of sluice bench --report: the result to take")
    options = parser.parse_args(arguments)
    result = load(options.record or RECORDED)
    if options.record:
        with open(RECORDED, "w", encoding="utf-8") as file:
            file.write(compact(result))
    wrong = 0
    for path, before, after in pages(result):
        if options.write or options.record:
            with open(path, "w", encoding="utf-8") as file:
                file.write(after)
            continue
        for number, one, other in wrong_lines(before, after)[:5]:
            print(
                f"{os.path.relpath(path, ROOT)}:{number}: the recorded result has {other[:200]!r},"
                f" not {one[:200]!r}; tools/bench/figures.py --write",
                file=sys.stderr)
        wrong += before != after
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Unknown as unknown:
        print(f"figures.py: {unknown}", file=sys.stderr)
        sys.exit(1)
