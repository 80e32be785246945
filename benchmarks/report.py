"""Turns a comparison (sluice.bench/1) into markdown. Only formats; decides nothing."""

# metric -> (unit shown, factor from the stored figure)
SHOWN = {
    "one_way_ns": ("us one way", 1e-3),
    "one_way_p99_ns": ("us one way, 99 of 100", 1e-3),
    "seconds": ("", 1.0),
    "bytes_per_second": ("GB/s", 1e-9),
    "messages_per_second": ("million a second", 1e-6),
    "cpu_seconds_per_gb": ("CPU s/GB", 1.0),
    "cpu_ns_per_message": ("us CPU per message", 1e-3),
    "step_seconds": ("", 1.0),
    "kernel_copied_percent": ("%", 1.0),
    "cpu_percent_client": ("% of a processor", 1.0),
    "cpu_percent_server": ("% of a processor", 1.0),
    "kernel_functions": ("functions of the kernel", 1.0),
    "link_share": ("of the link", 1.0),
    "jain_index": ("Jain's index", 1.0),
    "queued_bytes": ("KiB queued", 1 / 1024),
    "found_share": ("of the best", 1.0),
    "run_share": ("of the runs", 1.0),
    "speed_up": ("times one worker", 1.0),
    "communication_percent": ("% of the time", 1.0),
    "interrupts_per_message": ("interrupts per message", 1.0),
    "switches_per_message": ("switches per message", 1.0),
}
# Times span malloc (ns) to a training step (s).
TIME_UNITS = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (0.0, "ns")]


def digits(value):
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def spread(summary, scale=1.0):
    low, median, high = (digits(summary[key] * scale) for key in ("min", "median", "max"))
    if summary["rounds"] == 1:
        return median
    return f"{median} ({low} to {high})"


def estimate(summary):
    """A ratio's median with its interval; of fewer than 7 rounds the interval is minimum to
    maximum, of one there is none."""
    if summary["rounds"] == 1:
        return f"{digits(summary['median'])} (1 round)"
    low, median, high = (digits(summary[key]) for key in ("low", "median", "high"))
    return f"{median} ({low} to {high})"


def shown(metric, summary):
    unit, scale = SHOWN[metric]
    if metric in ("seconds", "step_seconds"):
        floor, unit = next(pair for pair in TIME_UNITS if summary["median"] >= pair[0])
        scale = 1 / floor if floor else 1e9
    return f"{spread(summary, scale)} {unit}"


def row_line(row, baseline):
    remarks = [row["note"]] if row["note"] else []
    if row["state"] != "ok":
        where = "" if row["summary"] is None else f" in {row['failed_rounds']} rounds"
        remarks.insert(0, f"**{row['state']}**{where}: {row['why']}")
    if row["unchecked"]:
        remarks.append("payload not checked by this tool")
    figure = shown(row["metric"], row["summary"]) if row["summary"] else "-"
    ratio = estimate(row["ratio"]) if row["ratio"] else "-"
    name = f"**{row['name']}**" if row["name"] == baseline else row["name"]
    return f"| {name} | {figure} | {ratio} | {'; '.join(remarks)} |"


def compared(target):
    """What a target divides by what."""
    best = "best overall of " if target.get("best") == "overall" else "best of "
    of = target["of"][0] if len(target["of"]) == 1 else best + ", ".join(target["of"])
    text = f"{target['row']} / {of}"
    if target.get("over"):
        text = f"({target['row']} / {target['over']}) / ({of} / {target['of_over']})"
    return text + (f", {target['state']}" if target.get("state") else "")


def in_each_state(target):
    """"near 4.85 (12), far 2.2 (7)": the median in each state of the machine, and its rounds."""
    return ", ".join(
        f"{state} {digits(each['median'])} ({each['rounds']})"
        for state, each in target.get("by_state", {}).items()
        if each)


def target_line(target):
    bound = f"at most {digits(target['at_most'])}" if target["at_most"] is not None \
        else f"at least {digits(target['at_least'])}"
    ratio = estimate(target["ratio"]) if target["ratio"] else "-"
    remark = "; ".join(filter(None, [
        target["note"], in_each_state(target),
        "no figure: " + ", ".join(target["absent"]) if target["absent"] else ""]))
    return f"| {compared(target)} | {bound} | {ratio} | {target['verdict']} | {remark} |"


def pareto(answer):
    """[(name, gain, cost, on the front)] of the settings of an answer; a setting is on the front if
    no other gains more for less."""
    rows = {row["name"]: row for row in answer["rows"] if row["summary"]}
    pairs = [
        (name, row["summary"]["median"], rows[name + answer["pareto"]]["summary"]["median"])
        for name, row in rows.items()
        if name + answer["pareto"] in rows]
    return [
        (
            name, gain, cost,
            not any(
                other > gain and less <= cost or other >= gain and less < cost
                for _, other, less in pairs))
        for name, gain, cost in pairs]


def pareto_lines(answer):
    """The settings that no other beats in both, with what they gain and cost."""
    if "pareto" not in answer:
        return []
    rows = {row["name"]: row for row in answer["rows"]}

    def figure(name):
        return shown(rows[name]["metric"], rows[name]["summary"])

    front = [
        f"| {name} | {figure(name)} | {figure(name + answer['pareto'])} |"
        for name, _, _, best in pareto(answer)
        if best]
    return (
        [
            "", "| on the Pareto front: no other gains more for less | gain | cost |",
            "|---|---|---|", *front]
        if front
        else [])


def answer_lines(answer):
    steal, foreign = (max(answer[key]) for key in ("steal_percent", "foreign_percent"))
    lines = [f"## {answer['question']}", "", answer["asks"], "",
             f"{answer['rounds']} rounds, {answer['rejected_rounds']} not counted for steal, "
             f"steal at most {steal} %, other processes at most {foreign} % of the CPUs. "
             "Figures: median (minimum to maximum). Ratios: median (95 % interval).", "",
             f"| row | figure | ratio to {answer['baseline']} | remarks |", "|---|---|---|---|"]
    lines += [row_line(row, answer["baseline"]) for row in answer["rows"]]
    lines += pareto_lines(answer)
    if answer["targets"]:
        lines += ["", "| target | bound | ratio | verdict | remarks |", "|---|---|---|---|---|"]
        lines += [target_line(target) for target in answer["targets"]]
    return lines + [""]


def markdown(document):
    about = "; ".join(f"{key} {value}" for key, value in document["environment"].items())
    lines = [f"Machine: {about}", ""]
    for answer in document["answers"]:
        lines += answer_lines(answer)
    return "\n".join(lines)
