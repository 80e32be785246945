#!/usr/bin/env python3
"""Tests of what `sluice bench` writes for people: the page, the summary and the charts, of a
recorded run and of made-up ones."""
import html.parser
import json
import os
import re
import sys
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "benchmarks")]

import chart  # noqa: E402
import document as documents  # noqa: E402
import experiments as catalogue  # noqa: E402
import made_up  # noqa: E402
import page  # noqa: E402
import summary  # noqa: E402


def recorded():
    with open(os.path.join(HERE, "recorded.json"), encoding="utf-8") as file:
        return json.load(file)


class Tags(html.parser.HTMLParser):
    VOID = {"meta", "line", "circle", "rect", "polygon", "polyline", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.texts, self.ids, self.links = [], [], [], set(), set()

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        self.ids.add(dict(attributes).get("id"))
        self.links.add(dict(attributes).get("href", "#")[1:])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.texts.append(data)


def tags(text):
    read = Tags()
    read.feed(text)
    read.close()
    assert not read.open, read.open
    return read


class Page(unittest.TestCase):
    def test_of_a_recorded_run_stands_alone_without_script_and_network(self):
        text = page.html(recorded())
        read = tags(text)
        self.assertNotIn("script", [tag for tag, _ in read.seen])
        self.assertFalse(
            [
                attributes
                for _, attributes in read.seen
                if {"src", "onload", "onclick", "style"} & set(attributes)])
        self.assertNotRegex(text, r"https?://|@import|url\(")
        self.assertLessEqual(read.links - {""}, read.ids)
        self.assertIn("svg", [tag for tag, _ in read.seen])

    def test_shows_every_figure_verdict_and_missing_thing_of_the_recorded_run(self):
        result = recorded()
        shown = " ".join(tags(page.html(result)).texts)
        for answer in result["answers"]:
            for row in answer["rows"]:
                self.assertIn(row["name"], shown)
            for target in answer["targets"]:
                self.assertIn(target["verdict"], shown)
        for one in result["experiments"]:
            for each in one["missing"]:
                self.assertIn(each["why"], shown)
            for each in one["original"]:
                self.assertIn(each["said"], shown)
                self.assertIn(each["here"], shown)
        self.assertIn(result["environment"]["kernel"], shown)

    def test_escapes_whatever_stands_in_the_result(self):
        evil = '<script>alert("x")</script>&\'"'

        def poisoned(value, key=None):
            if isinstance(value, dict):
                return {each: poisoned(inner, each) for each, inner in value.items()}
            if isinstance(value, list):
                return [poisoned(inner, key) for inner in value]
            free = key in (
                "asks", "title", "source", "note", "why", "what", "said", "here", "command",
                "started", "series", "kernel", "cpu", "verdict")
            return evil if isinstance(value, str) and free else value

        read = tags(page.html(poisoned(recorded())))
        self.assertNotIn("script", [tag for tag, _ in read.seen])
        self.assertIn("alert(", " ".join(read.texts))

    def test_of_few_rounds_says_so_at_the_top_and_beside_each_target(self):
        ask = {
            "question": "alloc", "asks": "?", "baseline": "a",
            "rows": [{"name": name, "command": [name], "metric": "one_way_ns"} for name in "ab"],
            "targets": [{"row": "b", "of": "a", "at_most": 3.0}], "left_out": 4}
        ran = [
            {
                "figures": {
                    name: {"state": "ok", "why": "", "value": 1.0, "unchecked": False}
                    for name in "ab"},
                "steal_percent": 0.0, "foreign_percent": 0.0, "rejected": False}]
        one = {
            "id": "alloc", "title": "t", "source": "s", "questions": ["alloc"], "original": [],
            "missing": []}
        about = {
            key: recorded()[key]
            for key in (
                "command", "started", "seconds", "interrupted", "out_of_time", "environment",
                "peers")}
        built = documents.build([one], {"alloc": ask}, {"alloc": ran}, about)
        shown = " ".join(tags(page.html(built)).texts)
        for said in (
            "1 of 1 target is not judged, with 1 round where", "(1 of 7 rounds)",
            "--quick left out 4 more rows"
        ):
            self.assertIn(said, shown)
        for text in (summary.markdown(built), summary.short(built)):
            self.assertIn("1 of 1 target is not judged", text)

    def test_shows_every_experiment_of_the_catalogue_with_every_row_beside_what_the_original_said(
        self,
    ):
        known = catalogue.load()
        result = made_up.run_of(known, recorded())
        read = tags(page.html(result))
        shown, text = " ".join(read.texts), summary.markdown(result)
        for one in result["experiments"]:
            self.assertIn(f"{one['id']}: {one['title']}", text)
            self.assertIn(one["verdict"], shown)
            self.assertIn(one["verdict"], text)
            for each in one["original"]:
                self.assertNotEqual(each["here"], "-", each["what"])
                self.assertIn(f"| {each['what']} | {each['said']} | {each['here']} |", text)
                self.assertTrue(each["what"] in shown and each["here"] in shown)
        for answer in result["answers"]:
            self.assertIn(f"sluice bench --only {answer['question']}", shown)
            for row in answer["rows"]:
                self.assertIn(row["name"], shown)
                self.assertIn(row["name"], text)

    def test_of_nothing_at_all_is_still_a_page(self):
        empty = dict(recorded(), answers=[], experiments=[], peers=[], interrupted=True)
        self.assertIn("interrupted", " ".join(tags(page.html(empty)).texts))
        self.assertIn("interrupted", summary.markdown(empty))

    def test_summary_has_the_same_figures_and_whole_tables(self):
        text = summary.markdown(recorded())
        for answer in recorded()["answers"]:
            for row in answer["rows"]:
                self.assertIn(row["name"], text)
        for before, line in zip(text.splitlines(), text.splitlines()[1:]):
            if before.startswith("|") and line.startswith("|"):
                count = [re.sub(r"\\\|", "", each).count("|") for each in (before, line)]
                self.assertEqual(count[0], count[1], line)


class Charts(unittest.TestCase):
    def test_ticks_enclose_the_figures_and_are_few(self):
        for low, high in ((3.1, 3.2), (0.001, 9e6), (1, 1), (17, 420), (0.031, 0.36)):
            ticks = chart.decades(low, high)
            self.assertLessEqual(ticks[0], low * 1.001)
            self.assertGreaterEqual(ticks[-1], high * 0.999)
            self.assertTrue(2 <= len(ticks) <= 8, ticks)

    def test_numbers_the_points_of_settings_and_joins_those_on_the_front(self):
        drawn = chart.points(
            [("a", 10, 5, True), ("b", 10, 50, False), ("c", 1000, 40, True)], "GB/s", "us", "t")
        self.assertEqual((drawn.count("<circle"), drawn.count("<rect")), (2, 1))
        front = re.search(r'<polyline [^>]*points="([^"]+)"', drawn)[1].split()
        self.assertEqual(len(front), 2)
        (x0, y0), (x1, y1) = (map(float, each.split(",")) for each in front)
        self.assertTrue(x0 < x1 and y0 > y1)
        self.assertEqual(re.findall(r">(\d)</text>", drawn)[-3:], ["1", "2", "3"])

    def test_points_lie_inside_and_higher_figures_higher(self):
        drawn = chart.lines({"a": [(1, 2, 3, 4), (1 << 22, 300, 400, 600)]}, "us", "t")
        marks = [
            (float(x), float(y))
            for x, y in re.findall(r'<circle [^>]*cx="([\d.]+)" cy="([\d.]+)"', drawn)]
        self.assertEqual(len(marks), 2)
        self.assertTrue(
            all(chart.LEFT <= x <= chart.RIGHT and chart.TOP <= y <= chart.BOTTOM for x, y in marks)
        )
        self.assertLess(marks[1][1], marks[0][1])
        self.assertEqual(drawn.count('class="error'), 2)

    def test_size_ticks_keep_apart(self):
        kept = chart.spread_out([1 << power for power in range(23)])
        self.assertTrue(4 <= len(kept) <= 12, kept)


if __name__ == "__main__":
    unittest.main()
