"""What makes rounds of two runs one series: the same machine, the same programs, the same rows.
Reads files; runs nothing.

A result (sluice.bench/1) keeps enough of every round to go on from it. Rounds of one question add
up only if all of what `identity()` holds is the same: ratios are of rows that ran one after the
other, so a row that changed spoils its question.
"""
import hashlib
import os
import shutil

import compare
import schedule

# Of the environment: what a figure depends on and a reboot may change. Load and memory in use are
# not among them.
MACHINE = (
    "cpu", "cpus", "kernel", "mitigations", "governor", "clocksource", "thp", "thp_shmem",
    "rdma_devices")
# Rounds in which a row says this were not finished; they do not count when a run goes on.
UNFINISHED = (schedule.INTERRUPTED, schedule.NO_TIME)


class Differs(Exception):
    """Rounds that a run cannot go on from; one line with the remedy."""


def machine_of(environment):
    return {key: environment.get(key) for key in MACHINE}


class Programs:
    """Digests of the files that commands name. Each file is read once."""

    def __init__(self, bin_folder):
        self._bin, self._digests = bin_folder, {}

    def of(self, question):
        """One digest of the rows: their names, their commands, and what is in the programs and
        scripts they name."""
        digest = hashlib.sha256()
        for part in question.get("gauge", []):
            digest.update(repr(part).encode() + self._file(part).encode())
        for row in question["rows"]:
            digest.update(
                repr((row["name"], row["metric"], row["command"], row.get("select", {}))).encode())
            for part in row["command"] + row.get("needs", []):
                digest.update(self._file(part).encode())
        return digest.hexdigest()[:16]

    def _file(self, part):
        if part not in self._digests:
            expanded, = compare.expand([part], self._bin, "")
            path = os.path.join(compare.ROOT, expanded)
            self._digests[part] = self._digest_of(
                path
                if os.path.isfile(path)
                else shutil.which(expanded) if "/" not in expanded else None)
        return self._digests[part]

    @staticmethod
    def _digest_of(path):
        if path is None or not os.access(path, os.X_OK):
            return ""
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def identity(question, environment, programs):
    return {"machine": machine_of(environment), "code": programs.of(question)}


def rounds_of(answer):
    """The finished rounds of a recorded answer, as compare.run_round made them."""
    rounds = []
    for at in range(answer["rounds"]):
        figures = {row["name"]: _figure(row, at) for row in answer["rows"]}
        if any(figure["why"] in UNFINISHED for figure in figures.values()):
            continue
        rounds.append(
            {
                "figures": figures, "steal_percent": answer["steal_percent"][at],
                "foreign_percent": answer["foreign_percent"][at],
                "rejected": answer["rejected"][at], "started": answer["times"][at],
                "seconds": answer["seconds"][at]})
    return rounds


def _figure(row, at):
    for bad in row["failures"]:
        if bad["round"] == at:
            return dict(compare.NO_FIGURE, state=bad["state"], why=bad["why"])
    known = {"machine": row["machine"][at]} if "machine" in row else {}
    return dict(compare.NO_FIGURE, value=row["values"][at], unchecked=row["unchecked"], **known)


def measured(rounds):
    return any(figure["value"] is not None for one in rounds for figure in one["figures"].values())


def rounds_before(result, asked, identities, replace):
    """{question: rounds} of `result` that a run of `asked` goes on from. Raises Differs for rounds
    that would be lost, unless `replace`."""
    before, lost = {name: [] for name in asked}, {}
    for answer in result["answers"] if result else []:
        name = answer["question"]
        rounds = rounds_of(answer) if "taken" in answer else []
        if name not in asked:
            continue
        if "taken" in answer and answer["taken"] == identities[name]:
            before[name] = rounds
        elif measured(rounds) or "taken" not in answer:
            lost[name] = _why(answer.get("taken"), identities[name])
    if lost and not replace:
        first = next(iter(lost))
        raise Differs(
            f"{len(lost)} question{'s' * (len(lost) != 1)} there"
            f" ({', '.join(list(lost)[:3])}{' ...' if len(lost) > 3 else ''}) cannot be gone on"
            f" with: {lost[first]}; give another folder, or --replace to measure them anew")
    return before


def _why(taken, now):
    if taken is None:
        return "recorded before rounds could be gone on from"
    if taken["machine"] != now["machine"]:
        key = next(key for key in MACHINE if taken["machine"].get(key) != now["machine"].get(key))
        return (
            f"another machine ({key} was {taken['machine'].get(key)}, is {now['machine'].get(key)})"
        )
    return "other programs, or other rows (--quick, --judge, --peers and --only are part of it)"


def joined(one, other):
    """The rounds of two answers to one question, each once, in the order in which they ran; None if
    they do not add up."""
    if "taken" not in one or one["taken"] != other.get("taken"):
        return None
    by_time = {each["started"]: each for answer in (one, other) for each in rounds_of(answer)}
    return [by_time[time] for time in sorted(by_time)]


def question_of(answer):
    """The question that an answer was given to, as far as rounds of it can be judged again."""
    rows = [
        dict(
            {
                key: row[key]
                for key in ("name", "metric", "note", "series", "size", "peer")
                if key in row},
            command=answer["commands"][row["name"]])
        for row in answer["rows"]]
    targets = [
        {
            key: target[key]
            for key in (
                "row", "of", "at_most", "at_least", "note", "best", "over", "of_over", "state")
            if target.get(key) is not None}
        for target in answer["targets"]]
    return dict(
        {
            key: answer[key]
            for key in ("question", "asks", "baseline", "left_out", "pareto")
            if key in answer},
        rows=rows, targets=targets)
