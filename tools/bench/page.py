"""A result (sluice.bench/1) as one HTML file: no script, nothing fetched, light and dark, readable
on a phone.

Only formats; decides nothing. Every text of the result is escaped: a JSON file may come from
anywhere.
"""
import os
from html import escape

import chart
import document as documents
import judging
import peers
import report
import row_results
import summary

FOLDER = os.path.dirname(os.path.realpath(__file__))
TITLE = "sluice bench"


def text(value):
    return escape(str(value), quote=True)


def table(heads, rows):
    """`rows`: lists of (class, HTML); a column that is empty throughout is left out.

    On a phone each cell has a line of its own, with its head before it; the first is the row's
    title.
    """
    kept = [at for at in range(len(heads)) if any(row[at][1] for row in rows)]
    heads, rows = [heads[at] for at in kept], [[row[at] for at in kept] for row in rows]
    out = [
        '<table class="stack"><thead><tr>'
        + "".join(f'<th scope="col">{text(head)}</th>' for head in heads)
        + "</tr></thead><tbody>"]
    for row in rows:
        cells = []
        for at, (head, (kind, content)) in enumerate(zip(heads, row)):
            shown = (
                f' data-head="{text(head)}"'
                if at and head and content and kind != "barcell"
                else "")
            cells.append(
                f'<td class="{kind}"{shown}>{content}</td>'
                if kind
                else f"<td{shown}>{content}</td>")
        out.append("<tr>" + "".join(cells) + "</tr>")
    return "\n".join(out + ["</tbody></table>"])


def verdict_word(verdict):
    known = verdict if verdict in ("pass", "fail", "inconclusive", "missing") else "missing"
    return f'<span class="{known}">{text(verdict)}</span>'


def few_rounds(target):
    return (
        f" <span class=\"quiet\">({target['ratio']['rounds']} of {target['rounds_needed']}"
        " rounds)</span>"
        if judging.wants_rounds(target)
        else "")


def ours(name):
    return str(name).startswith("sluice")


def line_charts(answer):
    """A chart for each metric of the rows that are series over sizes."""
    sized = [row for row in answer["rows"] if row.get("series") and row["summary"]]
    out = []
    for metric in sorted({row["metric"] for row in sized}):
        unit, scale = report.SHOWN[metric]
        series = {}
        for row in (row for row in sized if row["metric"] == metric):
            figures = [row["summary"][key] * scale for key in ("low", "median", "high")]
            if min(figures) > 0:
                series.setdefault(row["series"], []).append((row["size"], *figures))
        series = {name: points for name, points in series.items() if len(points) > 1}
        if series:
            legend = "".join(
                f"<li>{chart.legend_key(index)}{text(name)}</li>"
                for index, name in enumerate(series))
            out.append(
                f"<figure>{chart.lines(series, unit or 's', answer['question'] + ': ' + metric)}<ul"
                f" class=\"legend\">{legend}</ul></figure>")
    return out


def pareto_chart(answer):
    """What each setting gains and costs, as points; of fewer than two there is no chart."""
    named = report.pareto(answer) if "pareto" in answer else []
    if len(named) < 2:
        return []
    metrics = {row["name"]: row["metric"] for row in answer["rows"]}
    (x_unit, x_scale), (y_unit, y_scale) = (
        report.SHOWN[metrics[name]] for name in (named[0][0], named[0][0] + answer["pareto"]))
    scaled = [(name, x * x_scale, y * y_scale, best) for name, x, y, best in named]
    legend = "".join(
        f"<li>{at}: {text(name)}{' (on the front)' if best else ''}</li>"
        for at, (name, _, _, best) in enumerate(scaled, 1))
    return [
        f"<figure>{chart.points(scaled, x_unit, y_unit, answer['question'])}<ul"
        f" class=\"legend\">{legend}</ul></figure>"]


def figure(metric, values):
    """Without the unit where the table's head has it."""
    unit, scale = report.SHOWN[metric]
    return report.spread(values, scale) if unit else report.shown(metric, values)


def figure_tables(answer):
    """A table for each metric; the figures that a chart shows are folded away."""
    out = []
    for metric in sorted(
        {row["metric"] for row in answer["rows"]},
        key=lambda name: (name in row_results.MORE_IS_BETTER, name)
    ):
        better = "more is better" if metric in row_results.MORE_IS_BETTER else "less is better"
        heads = [
            f"{report.SHOWN[metric][0] or 'time'}, {better}", "", "median (minimum to maximum)",
            "ratio (95 %)", "remarks"]
        rows = [row for row in answer["rows"] if row["metric"] == metric]
        alone, charted = [row for row in rows if not row.get("series")], [
            row for row in rows if row.get("series")]
        if alone:
            out.append(table(heads, figure_rows(alone, metric)))
        if charted:
            folded = table(
                heads,
                [
                    [("", "") if kind == "barcell" else (kind, content) for kind, content in line]
                    for line in figure_rows(charted, metric)])
            out.append(
                "<details><summary>The figures of the chart,"
                f" {text(heads[0])}</summary>{folded}</details>")
    return out


def figure_rows(rows, metric):
    most = max((row["summary"]["high"] for row in rows if row["summary"]), default=0)
    out = []
    for row in rows:
        remarks = [text(row["note"])] if row["note"] else []
        if row["state"] != "ok":
            remarks.insert(
                0, f"<span class=\"missing\">{text(row['state'])}</span>: {text(row['why'])}")
        if row["unchecked"]:
            remarks.append("payload not checked by this tool")
        values = row["summary"]
        bar = (
            chart.bar(values["low"], values["median"], values["high"], most, ours(row["name"]))
            if values
            else "")
        out.append(
            [
                ("", text(row["name"])), ("barcell", bar),
                ("figure", text(figure(metric, values)) if values else ""),
                ("figure", text(report.estimate(row["ratio"])) if row["ratio"] else ""),
                ("note", "; ".join(remarks))])
    return out


def target_rows(answer):
    out = []
    for target in answer["targets"]:
        bound = (
            f"at most {report.digits(target['at_most'])}"
            if target["at_most"] is not None
            else f"at least {report.digits(target['at_least'])}")
        note = "; ".join(
            filter(
                None,
                [
                    target["note"],
                    "no figure: " + ", ".join(target["absent"]) if target["absent"] else ""]))
        out.append(
            [
                ("", text(report.compared(target))), ("figure", text(bound)),
                ("figure", text(report.estimate(target["ratio"])) if target["ratio"] else ""),
                ("verdictcell", verdict_word(target["verdict"]) + few_rounds(target)),
                ("note", text(note))])
    return out


def commands(answer):
    shown = "\n".join(
        f"<p class=\"quiet\">{text(name)}</p><pre><code>{text(' '.join(command))}</code></pre>"
        for name, command in answer["commands"].items())
    return (
        "<details><summary>The command of each row ({bin}: the built programs, {json}: a file"
        f" for the result)</summary>{shown}</details><p class=\"quiet\">Repeat: <code>sluice bench"
        f" --only {text(answer['question'])}</code></p>")


def answer_section(answer, flag):
    steal, foreign = (max(answer[key], default=0) for key in ("steal_percent", "foreign_percent"))
    left_out = (
        f" {flag} left out {text(answer['left_out'])} more rows." if answer.get("left_out") else "")
    out = [
        f"<h3 id=\"{text(answer['question'])}\">{text(answer['asks'])}</h3>",
        (
            f"<p class=\"quiet\">{text(documents.rounds(str(answer['rounds'])))},"
            f" {text(answer['rejected_rounds'])} not counted for steal; steal at most {text(steal)}"
            f" %, other processes at most {text(foreign)} % of the CPUs. Ratios are to"
            f" {text(answer['baseline'])}. Whiskers: 95 % interval, of fewer than 7 rounds the"
            f" whole spread.{left_out}</p>")]
    if documents.elsewhere(answer):
        out.append(f"<p class=\"quiet\">{text(documents.elsewhere(answer))}</p>")
    if answer["targets"]:
        out.append(
            table(["target", "bound", "ratio (95 %)", "verdict", "remarks"], target_rows(answer)))
    out += pareto_chart(answer) + line_charts(answer)
    out += figure_tables(answer)
    return out + [commands(answer)]


def experiment_section(one, answers, flag):
    out = [
        f"<section><h2 id=\"{text(one['id'])}\">{text(one['id'])}: {text(one['title'])}</h2>",
        f"<p class=\"quiet\">After {text(one['source'])}.</p>",
        f"<p class=\"verdict\">{text(one['verdict'])}</p>"]
    if one["original"]:
        out.append(
            table(
                ["figure", "the original", "here"],
                [
                    [("", text(each["what"])), ("", text(each["said"])), ("", text(each["here"]))]
                    for each in one["original"]]))
    for name in one["questions"]:
        out += answer_section(answers[name], flag)
    if one["missing"]:
        items = "".join(
            f"<li>{text('; '.join(what))}: <span class=\"quiet\">{text(why)}</span></li>"
            for why, what in documents.by_reason(one["missing"]))
        out.append(f"<h3>Not measured</h3><ul>{items}</ul>")
    return out + ["</section>"]


def machine_text(result):
    about = result["environment"]
    return (
        f"Machine and run: {about.get('cpu')}, {about.get('cpus')} processors, kernel"
        f" {about.get('kernel')}; {result['started'][:16].replace('T', ' ')} UTC,"
        f" {result['seconds']:.0f} s, {summary.rounds_text(result)}")


def failing(result):
    """The first table: what fails."""
    rows = []
    for name, target in documents.failing(result):
        answer = {"targets": [target]}
        rows.append([("", f"<a href=\"#{text(name)}\">{text(name)}</a>"), *target_rows(answer)[0]])
    return (
        [table(["what fails", "target", "bound", "ratio (95 %)", "verdict", "remarks"], rows)]
        if rows
        else [])


def head(result):
    said = documents.counts(result)
    counts = ", ".join(f"{number} {verdict_word(verdict)}" for verdict, number in said.items())
    how = (
        "interrupted; what did not run is listed as missing"
        if result["interrupted"]
        else "ended by its time" if result["out_of_time"] else "complete")
    pairs = [
        ("command", f"<code>{text(' '.join(result['command']))}</code>"),
        ("begun", text(result["started"])),
        ("took", f"{result['seconds']:.0f} s, {text(summary.rounds_text(result))}, {how}")]
    pairs += [(text(key), text(value)) for key, value in result["environment"].items()]
    listed = "".join(f"<dt>{key}</dt><dd>{value}</dd>" for key, value in pairs)
    rows = [
        [
            ("", f"<a href=\"#{text(one['id'])}\">{text(one['id'])}</a>"),
            ("", text(one["title"])),
            ("", text(one["verdict"]))]
        for one in result["experiments"]]
    absent = [
        f"{text(each['program'])} ({text(peers.where_from(each))})"
        for each in result["peers"]
        if not each["installed"]]
    return [
        f"<h1>{TITLE}</h1>",
        f"<p class=\"verdict\">{documents.targets_text(sum(said.values()))}: {counts}</p>",
        *(f"<p class=\"caveat\">{text(each)}.</p>" for each in documents.caveats(result)),
        (
            "<p>Figures of this machine beside those of the documents that sluice comes from. A"
            " target is a bound for the ratio of two rows. Compare by ratios: those are of programs"
            " that ran one after the other in the same round. Times depend on the machine, and"
            " those of an emulated guest say nothing about hardware.</p>"),
        *failing(result), table(["experiment", "", "verdict"], rows),
        (
            f"<p class=\"quiet\">Peers that are not installed: {', '.join(absent)}.</p>"
            if absent
            else ""),
        f"<details><summary>{text(machine_text(result))}</summary><dl>{listed}</dl></details>"]


def html(result):
    answers = {one["question"]: one for one in result["answers"]}
    with open(os.path.join(FOLDER, "page.css"), encoding="utf-8") as file:
        style = file.read()
    body = head(result) + [
        line
        for one in result["experiments"]
        for line in experiment_section(one, answers, documents.narrowing(result))]
    return "\n".join(
        [
            "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            (
                "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';"
                " style-src 'unsafe-inline'\">"),
            f"<title>{TITLE}</title>", f"<style>{style}</style></head><body><main>", *body,
            "</main></body></html>", ""])
