"""A result (sluice.bench/1) as text: summary.md for docs/performance.md, and the lines that end a
run. Only formats."""
import document as documents
import peers
import report


def cell(text):
    """Text that cannot end a table's cell."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def short(result):
    """A line for each experiment, and what came of the targets."""
    lines = [f"{one['id']:6} {one['title']}: {one['verdict']}" for one in result["experiments"]]
    said = documents.counts(result)
    lines.append(
        f"{documents.targets_text(sum(said.values()))}: "
        + ", ".join(f"{number} {verdict}" for verdict, number in said.items())
        + f"; {rounds_text(result)}")
    lines += documents.caveats(result)
    return "\n".join(lines)


def rounds_text(result):
    counts = [one["rounds"] for one in result["answers"]]
    if not counts:
        return "nothing was run"
    most, least = max(counts), min(counts)
    return f"{most} round{'s' * (most != 1)}" if most == least else f"{least} to {most} rounds"


def experiment_lines(one, answers):
    lines = [
        f"## {one['id']}: {one['title']}",
        "",
        f"After {one['source']}. Verdict: {one['verdict']}.",
        ""]
    if one["original"]:
        lines += ["| | the original | here |", "|---|---|---|"]
        lines += [
            f"| {cell(each['what'])} | {cell(each['said'])} | {cell(each['here'])} |"
            for each in one["original"]
        ] + [""]
    for name in one["questions"]:
        lines += [
            "#" + line if line.startswith("## ") else line
            for line in report.answer_lines(answers[name])]
        if documents.elsewhere(answers[name]):
            lines += [documents.elsewhere(answers[name]) + ".", ""]
        lines += [f"Repeat: `sluice bench --only {name}`", ""]
    if one["missing"]:
        lines += (
            ["Not measured:", ""]
            + [f"- {'; '.join(what)}: {why}" for why, what in documents.by_reason(one["missing"])]
            + [""])
    return lines


def failing_lines(result):
    failing = documents.failing(result)
    if not failing:
        return []
    lines = [
        "## What fails",
        "",
        "| question | target | bound | ratio | remarks |",
        "|---|---|---|---|---|"]
    for name, target in failing:
        compared, bound, ratio, _, remark = report.target_line(target)[2:-2].split(" | ")
        lines.append(f"| {name} | {compared} | {bound} | {ratio} | {remark} |")
    return lines + [""]


def markdown(result):
    answers = {one["question"]: one for one in result["answers"]}
    about = "; ".join(f"{key} {value}" for key, value in result["environment"].items())
    lines = [
        f"Taken {result['started']} by `{' '.join(result['command'])}` in {result['seconds']:.0f}"
        f" s, {rounds_text(result)}"
        + (", **interrupted**" if result["interrupted"] else "")
        + ".",
        "", *(text for each in documents.caveats(result) for text in (each + ".", "")),
        f"Machine: {about}", ""]
    said = documents.counts(result)
    lines += [
        f"{documents.targets_text(sum(said.values()))}: "
        + ", ".join(f"{number} {verdict}" for verdict, number in said.items())
        + ".",
        "", *failing_lines(result)]
    for one in result["experiments"]:
        lines += experiment_lines(one, answers)
    absent = [
        f"{each['program']} ({peers.where_from(each)})"
        for each in result["peers"]
        if not each["installed"]]
    if absent:
        lines += ["Peers that are not installed: " + ", ".join(absent) + ".", ""]
    return "\n".join(lines)
