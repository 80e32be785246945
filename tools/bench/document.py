"""The result of a run as one JSON document, sluice.bench/1 (docs/bench.md). Decides states and verdict lines; prints nothing."""
import compare
import judging
import report

# A desktop at rest takes 1 to 3 %; with two processors and a fifth of them gone, two programs that poll have no processor each.
BUSY_PERCENT = 20.0
RAN, PARTIAL, NOT_RUN = "ran", "partial", "missing"


def build(experiments, questions, rounds, about):
    """`about`: what the caller knows of the run (command, environment, times ...), taken over as it is."""
    answers = [dict(compare.answer(questions[name], rounds[name]),
                    commands={row["name"]: row["command"] for row in questions[name]["rows"]})
               for name in questions if rounds[name]]
    by_name = {one["question"]: one for one in answers}
    return dict(about, schema=compare.SCHEMA, answers=answers,
                experiments=[experiment(one, by_name, rounds, questions) for one in experiments])


def experiment(one, answers, rounds, questions):
    missing = [{"what": name, "why": "not run"} for name in one["questions"] if not rounds.get(name)]
    for name in one["questions"]:
        answer = answers.get(name, {"rows": []})
        missing += [{"what": row["name"], "why": row["why"] if row["state"] == compare.ROW_MISSING else f"{row['state']}: {row['why']}"} for row in answer["rows"] if row["summary"] is None]
    missing += one["missing"]
    figures = sum(row["summary"] is not None for name in one["questions"] for row in answers.get(name, {"rows": []})["rows"])
    result = {"id": one["id"], "title": one["title"], "source": one["source"],
              "questions": [name for name in one["questions"] if name in answers],
              "state": NOT_RUN if figures == 0 else PARTIAL if missing else RAN,
              "figures": figures, "missing": missing,
              "original": [beside(each, rounds, questions) for each in one["original"]]}
    return dict(result, verdict=verdict_line(result, answers))


def beside(item, rounds, questions):
    """{"what","said","here"}: `here` is our figure in words, "-" where there is none."""
    ours, here, summary = item.get("ours"), "-", None
    if ours and rounds.get(ours["question"]):
        ran = rounds[ours["question"]]
        metric = next((row["metric"] for row in questions[ours["question"]]["rows"] if row["name"] == ours["row"]), None)
        values = compare.column(ours["row"], ran) if metric else []
        if "of" in ours and metric and ours["of"] in ran[0]["figures"]:
            values = judging.per_round(values, compare.column(ours["of"], ran))
        if "bytes_per_item" in ours:
            values = [None if value is None else ours["bytes_per_item"] / value * 1e9 for value in values]
        summary = judging.summary(values)
        if summary and "of" in ours:
            here = report.estimate(summary).replace(" (", " times (", 1)
        elif summary and "unit" in ours:
            here = f"{report.estimate(summary)} {ours['unit']}"
        elif summary:
            here = report.shown(metric, summary)
    return {"what": item["what"], "said": item["said"], "here": here, "summary": summary, "ours": ours}


def verdict_line(result, answers):
    """One sentence: what the targets say, and how much is missing."""
    if result["state"] == NOT_RUN:
        return "missing: " + (result["missing"][0]["why"] if result["missing"] else "nothing asked")
    verdicts = [target["verdict"] for name in result["questions"] for target in answers[name]["targets"]]
    said = f"{targets_text(len(verdicts))} ({', '.join(each_verdict(result, verdicts, answers))})" if verdicts else "no targets"
    return said + (f"; {len(result['missing'])} not measured" if result["missing"] else "")


def each_verdict(result, verdicts, answers):
    few = [target for name in result["questions"] for target in answers[name]["targets"] if wants_rounds(target)]
    for each in (judging.PASS, judging.FAIL, judging.INCONCLUSIVE, judging.MISSING):
        if each not in verdicts:
            continue
        said = f"{verdicts.count(each)} {each}"
        if each == judging.INCONCLUSIVE and few:
            some = "" if len(few) == verdicts.count(each) else f", {len(few)} of them"
            said += f"{some} for want of rounds: {span(target['ratio']['rounds'] for target in few)} of {span((target['rounds_needed'] for target in few), ' or ')}"
        yield said


def targets_text(number):
    return f"{number} target{'s' * (number != 1)}"


def wants_rounds(target):
    """Whether a verdict was not given because there were too few rounds for any. False of results recorded before there was "rounds_needed"."""
    needed = target.get("rounds_needed")
    return bool(needed and target["ratio"] and target["verdict"] == judging.INCONCLUSIVE and target["ratio"]["rounds"] < needed)


def span(numbers, between=" to "):
    """"3", or "1 to 3"."""
    ordered = sorted(numbers)
    return str(ordered[0]) if ordered[0] == ordered[-1] else f"{ordered[0]}{between}{ordered[-1]}"


def caveats(document):
    """Sentences that the reader of any figure must know first: what was not judged, and what was left out, with the remedy."""
    targets = [target for one in document["answers"] for target in one["targets"]]
    few = [target for target in targets if wants_rounds(target)]
    said = []
    if few:
        said.append(f"{len(few)} of {targets_text(len(targets))} {'is' if len(few) == 1 else 'are'} not judged, with {rounds(span(target['ratio']['rounds'] for target in few))} where a verdict takes "
                    f"{judging.MINIMUM_ROUNDS}, or {judging.DECISIVE_ROUNDS} where 5 % decide. Ratios show a direction at most. "
                    f"For a verdict give one experiment the time: sluice bench --only {few_from(document)} --rounds {judging.DECISIVE_ROUNDS}")
    foreign = sorted(percent for one in document["answers"] for percent in one["foreign_percent"])
    if foreign and judging.median(foreign) > BUSY_PERCENT:
        said.append(f"This machine was busy: other programs took {judging.median(foreign):.0f} % of its processors (median of the rounds). Times are too long, and ratios of what waits differently are off")
    left_out = sum(one.get("left_out", 0) for one in document["answers"])
    if left_out:
        measured = sum(len(one["rows"]) for one in document["answers"])
        said.append(f"--quick ran {measured} of {measured + left_out} rows, those with a target or beside an original's figure, so that there was time for rounds; "
                    "all rows: the same without --quick, or with --only of one experiment")
    return said


def few_from(document):
    """The first experiment with a target that wants rounds."""
    wanting = {one["question"] for one in document["answers"] if any(wants_rounds(target) for target in one["targets"])}
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
    return {each: verdicts.count(each) for each in (judging.PASS, judging.FAIL, judging.INCONCLUSIVE, judging.MISSING)}


def merged(results):
    """One result of several: each experiment from where most of its figures were measured, the rest from the first.

    An experiment that is not the first's says where it was measured ("elsewhere").
    """
    first = results[0]
    order = list(dict.fromkeys(one["id"] for result in results for one in result["experiments"]))
    experiments, answers = [], {}
    for name in order:
        have = [(result, one) for result in results for one in result["experiments"] if one["id"] == name]
        result, one = max(have, key=lambda each: each[1]["figures"])  # the first of equals
        if result is not first:
            one = dict(one, elsewhere={"environment": result["environment"], "command": result["command"], "started": result["started"]})
        experiments.append(one)
        answers.update({each["question"]: each for each in result["answers"] if each["question"] in one["questions"]})
    return dict(first, experiments=experiments, answers=list(answers.values()))


def elsewhere(one):
    """Where an experiment of a merged result was measured, in words; None if where the rest was."""
    if "elsewhere" not in one:
        return None
    about = one["elsewhere"]
    return (f"measured elsewhere: {about['started']}, {' '.join(about['command'])}, kernel {about['environment'].get('kernel')}, "
            f"cpu {about['environment'].get('cpu')}, {about['environment'].get('cpus')} CPUs, RDMA devices {about['environment'].get('rdma_devices')}")
