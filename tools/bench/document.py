"""The result of a run as one JSON document, sluice.bench/1 (docs/bench.md). Decides states and
verdict lines; prints nothing."""
import compare
import judging
import record
import report

# A desktop at rest takes 1 to 3 %; with two processors and a fifth of them gone, two programs that
# poll have no processor each.
BUSY_PERCENT = 20.0
RAN, PARTIAL, NOT_RUN = "ran", "partial", "missing"


def build(experiments, questions, rounds, about, identities=None):
    """`about`: what the caller knows of the run (command, environment, times ...), taken over as it
    is. `identities`: record.identity() by question."""
    return of_answers(experiments, answers_of(questions, rounds, identities or {}), about)


def answers_of(questions, rounds, identities):
    return [
        answered(questions[name], rounds[name], identities.get(name))
        for name in questions
        if rounds[name]]


def of_answers(experiments, answers, about):
    by_name = {one["question"]: one for one in answers}
    return dict(
        about, schema=compare.SCHEMA, answers=answers,
        experiments=[experiment(one, by_name) for one in experiments])


def answered(question, rounds, identity=None):
    answer = dict(
        compare.answer(question, rounds),
        commands={row["name"]: row["command"] for row in question["rows"]})
    return dict(answer, taken=identity) if identity else answer


def experiment(one, answers):
    missing = [{"what": name, "why": "not run"} for name in one["questions"] if name not in answers]
    for name in one["questions"]:
        answer = answers.get(name, {"rows": []})
        missing += [
            {
                "what": row["name"],
                "why": (
                    row["why"]
                    if row["state"] == compare.ROW_MISSING
                    else f"{row['state']}: {row['why']}")}
            for row in answer["rows"]
            if row["summary"] is None]
    missing += one["missing"]
    figures = sum(
        row["summary"] is not None
        for name in one["questions"]
        for row in answers.get(name, {"rows": []})["rows"])
    result = {"id": one["id"], "title": one["title"], "source": one["source"],
              "questions": [name for name in one["questions"] if name in answers],
              "state": NOT_RUN if figures == 0 else PARTIAL if missing else RAN,
              "figures": figures, "missing": missing,
              "original": [beside(each, answers) for each in one["original"]]}
    return dict(result, verdict=verdict_line(result, answers))


def beside(item, answers):
    """{"what","said","here"}: `here` is our figure in words, "-" where there is none."""
    ours, here, summary = item.get("ours"), "-", None
    rows = (
        {row["name"]: row for row in answers.get(ours["question"], {"rows": []})["rows"]}
        if ours
        else {})
    if ours and ours["row"] in rows:
        values = summed(
            [rows[name]["values"] for name in (ours["row"], *ours.get("plus", [])) if name in rows])
        if ours.get("of") in rows:
            values = judging.per_round(values, rows[ours["of"]]["values"])
        if "bytes_per_item" in ours:
            values = [
                None if value is None else ours["bytes_per_item"] / value * 1e9 for value in values]
        summary = judging.summary(values)
        if summary and "of" in ours:
            here = report.estimate(summary).replace(" (", " times (", 1)
        elif summary and "budget_ns" in ours:
            here = against_budget(summary["median"] * 1e9, ours["budget_ns"])
        elif summary and "unit" in ours:
            here = f"{report.estimate(summary)} {ours['unit']}"
        elif summary:
            here = report.shown(rows[ours["row"]]["metric"], summary)
    return {
        "what": item["what"], "said": item["said"], "here": here, "summary": summary, "ours": ours}


def summed(columns):
    """Per round, None where a figure is missing."""
    return [None if None in each else sum(each) for each in zip(*columns)]


def against_budget(ns, budgets):
    """Of a frame: its time, its rate, and how often its time is what a line leaves, at each
    speed."""
    times = ", ".join(report.digits(ns / budget) for budget in budgets)
    return f"{report.digits(ns)} ns, {report.digits(1e3 / ns)} Mpps: {times} times"


def verdict_line(result, answers):
    """One sentence: what the targets say, and how much is missing."""
    if result["state"] == NOT_RUN:
        return "missing: " + (result["missing"][0]["why"] if result["missing"] else "nothing asked")
    verdicts = [
        target["verdict"] for name in result["questions"] for target in answers[name]["targets"]]
    said = (
        f"{targets_text(len(verdicts))} ({', '.join(each_verdict(result, verdicts, answers))})"
        if verdicts
        else "no targets")
    return said + (f"; {len(result['missing'])} not measured" if result["missing"] else "")


def each_verdict(result, verdicts, answers):
    few = [
        target
        for name in result["questions"]
        for target in answers[name]["targets"]
        if judging.wants_rounds(target)]
    for each in (judging.PASS, judging.FAIL, judging.INCONCLUSIVE, judging.MISSING):
        if each not in verdicts:
            continue
        said = f"{verdicts.count(each)} {each}"
        if each == judging.INCONCLUSIVE and few:
            some = "" if len(few) == verdicts.count(each) else f", {len(few)} of them"
            said += (
                f"{some} for want of rounds: {span(target['ratio']['rounds'] for target in few)} of"
                f" {span((target['rounds_needed'] for target in few), ' or ')}")
        yield said


def targets_text(number):
    return f"{number} target{'s' * (number != 1)}"


def span(numbers, between=" to "):
    """"3", or "1 to 3"."""
    ordered = sorted(numbers)
    return str(ordered[0]) if ordered[0] == ordered[-1] else f"{ordered[0]}{between}{ordered[-1]}"


def caveats(document):
    """Sentences that the reader of any figure must know first: what was not judged, and what was
    left out, with the remedy."""
    targets = [target for one in document["answers"] for target in one["targets"]]
    few = [target for target in targets if judging.wants_rounds(target)]
    said = []
    if few:
        said.append(
            f"{len(few)} of {targets_text(len(targets))} {'is' if len(few) == 1 else 'are'} not"
            f" judged, with {rounds(span(target['ratio']['rounds'] for target in few))} where a"
            f" verdict takes {judging.MINIMUM_ROUNDS}, or {judging.DECISIVE_ROUNDS} where 5 %"
            " decide. Ratios show a direction at most. For a verdict give one experiment the time:"
            f" sluice bench --only {few_from(document)} --rounds {judging.DECISIVE_ROUNDS}")
    foreign = sorted(percent for one in document["answers"] for percent in one["foreign_percent"])
    if foreign and judging.median(foreign) > BUSY_PERCENT:
        said.append(
            f"This machine was busy: other programs took {judging.median(foreign):.0f} % of its"
            " processors (median of the rounds). Times are too long, and ratios of what waits"
            " differently are off")
    left_out = sum(one.get("left_out", 0) for one in document["answers"])
    if left_out:
        measured = sum(len(one["rows"]) for one in document["answers"])
        flag = narrowing(document)
        said.append(
            f"{flag} ran {measured} of {measured + left_out} rows, those with a target or beside an"
            " original's figure, so that there was time for rounds; all rows: the same without"
            f" {flag}, or with --only of one experiment")
    return said


def narrowing(document):
    """The flag that left rows out."""
    return "--judge" if document.get("quick") is False else "--quick"


def few_from(document):
    """The first experiment with a target that wants rounds."""
    wanting = {
        one["question"]
        for one in document["answers"]
        if any(judging.wants_rounds(target) for target in one["targets"])}
    return next(one["id"] for one in document["experiments"] if wanting & set(one["questions"]))


def rounds(text):
    return f"{text} round" if text == "1" else f"{text} rounds"


def by_reason(missing):
    """[(why, [what, ...])] in the order in which the reasons come."""
    grouped = {}
    for each in missing:
        grouped.setdefault(each["why"], []).append(each["what"])
    return list(grouped.items())


def counts(document):
    """{"pass": n, ...} over all targets."""
    verdicts = [target["verdict"] for one in document["answers"] for target in one["targets"]]
    return {
        each: verdicts.count(each)
        for each in (judging.PASS, judging.FAIL, judging.INCONCLUSIVE, judging.MISSING)}


def failing(document):
    """(question, target) of the targets that fail."""
    return [
        (one["question"], target)
        for one in document["answers"]
        for target in one["targets"]
        if target["verdict"] == judging.FAIL]


def merged(results, experiments):
    """One result of several. Rounds of one question add up where machine, programs and rows are the
    same (record.py). Else an answer is the first's, and what has no figure there is taken from the
    next one, which says where it was measured.

    `experiments`: the catalogue; an experiment that it does not know is the first's.
    """
    answers, order = {}, list(
        dict.fromkeys(one["id"] for result in results for one in result["experiments"]))
    for result in results:
        for answer in result["answers"]:
            name = answer["question"]
            rounds = record.joined(answers[name], answer) if name in answers else None
            if rounds is not None:
                answers[name] = answered(record.question_of(answer), rounds, answer["taken"])
            else:
                answers[name] = (
                    filled(answers[name], answer, place(result))
                    if name in answers
                    else dict(
                        answer, **({} if result is results[0] else {"elsewhere": place(result)})))
    known = {one["id"]: one for one in experiments}
    recorded = {one["id"]: one for result in reversed(results) for one in result["experiments"]}
    made = [experiment(known[name], answers) if name in known else recorded[name] for name in order]
    return dict(results[0], experiments=made, answers=list(answers.values()))


def place(result):
    return {key: result[key] for key in ("environment", "command", "started")}


def filled(answer, other, where):
    """`answer` with those of its rows and targets that have no figure taken from `other`, which was
    measured elsewhere. No ratio spans both."""
    rows = {row["name"]: row for row in other["rows"] if row["summary"]}
    if not any(row["summary"] for row in answer["rows"]):
        return dict(other, elsewhere=where) if rows else answer
    taken = [
        row["name"] for row in answer["rows"] if row["summary"] is None and row["name"] in rows]
    if not taken:
        return answer
    note = f"measured elsewhere (kernel {where['environment'].get('kernel')})"
    better = [
        (
            dict(rows[row["name"]], ratio=None, note="; ".join(filter(None, [row["note"], note])))
            if row["name"] in taken
            else row)
        for row in answer["rows"]]
    judged = {report.compared(target): target for target in other["targets"] if target["ratio"]}
    targets = [
        judged.get(report.compared(target), target) if target["ratio"] is None else target
        for target in answer["targets"]]
    return dict(answer, rows=better, targets=targets, elsewhere=dict(where, rows=taken))


def elsewhere(answer):
    """Where an answer of a merged result was measured, in words; None if where the rest was."""
    if "elsewhere" not in answer:
        return None
    about = answer["elsewhere"]
    some = f"Of these rows {len(about['rows'])} were measured" if "rows" in about else "Measured"
    return (
        f"{some} elsewhere: {about['started']}, {' '.join(about['command'])}, kernel"
        f" {about['environment'].get('kernel')}, cpu {about['environment'].get('cpu')},"
        f" {about['environment'].get('cpus')} CPUs, RDMA devices"
        f" {about['environment'].get('rdma_devices')}")
