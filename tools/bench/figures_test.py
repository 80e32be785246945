#!/usr/bin/env python3
"""No document quotes a figure that the recorded result does not have, and the check of that sees a
figure that was changed by hand."""
import os
import re
import sys
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "benchmarks")]

import experiments as catalogue  # noqa: E402
import figures  # noqa: E402
import made_up  # noqa: E402

# A figure of speed in running text, such as "1.5 GB/s", "0.15 us", "2.4 times".
SPEED = re.compile(r"\d(?:\.\d+)? ?(?:GB/s|MB/s|us|ns|times)\b")


def made():
    return made_up.run_of(catalogue.load(), figures.load())


class Documents(unittest.TestCase):
    def test_have_the_figures_of_the_recorded_result(self):
        for path, before, after in figures.pages(figures.load()):
            wrong = figures.wrong_lines(before, after)
            self.assertEqual(wrong[:3], [], f"{path}: tools/bench/figures.py --write")

    def test_of_the_readme_and_the_papers_quote_no_speed_of_ours_outside_of_marks(self):
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
            self.assertEqual(SPEED.findall(figures.MARK.sub("", file.read())), [])
        with open(os.path.join(ROOT, "docs", "papers.md"), encoding="utf-8") as file:
            here = [
                line.rsplit("|", 2)[1]
                for line in file
                if line.startswith("|") and line.count("|") == 5]
        self.assertGreater(len(here), 40)
        self.assertEqual([cell for cell in here if SPEED.search(figures.MARK.sub("", cell))], [])


    def test_of_the_papers_confirm_no_claim_whose_target_fails(self):
        with open(os.path.join(ROOT, "docs", "papers.md"), encoding="utf-8") as file:
            claims = [
                [cell.strip() for cell in line.split("|")]
                for line in file
                if line.startswith("|") and line.count("|") == 5]
        verdicts = [
            (
                cells[1], cells[3],
                [mark[4] for mark in figures.MARK.finditer(cells[4]) if mark[1] == "?"])
            for cells in claims]
        self.assertGreater(sum(bool(targets) for _, _, targets in verdicts), 10)
        self.assertEqual(
            [
                claim
                for claim, said, targets in verdicts
                if said.startswith("confirmed") and "fail" in targets],
            [])


class Marks(unittest.TestCase):
    def setUp(self):
        self.figures = figures.Figures(made())

    def test_become_figures_ratios_what_stands_beside_the_original_and_verdicts(self):
        for mark, said in (
            ("=operation_cost: a system call", r"^[\d.]+ \(.*\) (s|ms|us|ns)$"),
            ("=xdp: AF_XDP, a frame of 32 / ring, a frame of 32", r"^[\d.]+ \([\d.]+ to [\d.]+\)$"),
            ("=E11: zero copies against gRPC", "times"),
            ("?xdp: AF_XDP, a frame of 32 / ring, a frame of 32", "^(pass|fail)")
        ):
            text = figures.written(f"a <!--{mark}-->1<!--/--> b", self.figures)
            found = re.fullmatch(r"a <!--(.*)-->(.*)<!--/--> b", text)
            self.assertEqual(found[1], mark)
            self.assertRegex(found[2], said)
            self.assertEqual(figures.written(text, self.figures), text)

    def test_of_what_was_not_recorded_say_so(self):
        empty = figures.Figures(dict(made(), answers=[], experiments=[]))
        for mark in (
            "=operation_cost: a system call", "=E11: zero copies against gRPC",
            "?xdp: AF_XDP, a frame of 32 / ring, a frame of 32"
        ):
            self.assertEqual(
                figures.written(f"<!--{mark}-->1<!--/-->", empty),
                f"<!--{mark}-->{figures.ABSENT}<!--/-->")

    def test_that_name_nothing_are_refused_with_the_nearest_name(self):
        for mark, near in (
            ("=operation_cost: a sistem call", "a system call"),
            ("=operation_coast: x", "operation_cost"),
            ("=E11: zero copies against grpc", "zero copies against gRPC"),
            ("=xdp: AF_XDP, a frame of 32 / rink, a frame of 32", "ring, a frame of 32"),
            ("?xdp: AF_XDP, a frame of 32 / ring", "AF_XDP")
        ):
            with self.assertRaisesRegex(figures.Unknown, f"did you mean.*{near}"):
                figures.written(f"<!--{mark}-->1<!--/-->", self.figures)
        with self.assertRaisesRegex(figures.Unknown, "did you mean 'wake'"):
            figures.written("<!--targets wakes-->\n<!--/targets-->", self.figures)

    def test_of_a_figure_that_was_changed_by_hand_name_its_line(self):
        right = figures.written(
            "first\n<!--=operation_cost: a system call-->1<!--/-->\n", self.figures)
        wrong = re.sub(r"-->\d", "-->9999", right, count=1)
        (number, one, other), = figures.wrong_lines(wrong, figures.written(wrong, self.figures))
        self.assertEqual((number, one, other), (2, wrong.splitlines()[1], right.splitlines()[1]))

    def test_of_blocks_become_tables_with_a_line_for_each_target(self):
        text = figures.written(
            "<!--targets xdp module-->\nZZZ\n<!--/targets-->\n<!--verdicts-->\n<!--/verdicts-->\n",
            self.figures)
        self.assertNotIn("ZZZ", text)
        self.assertEqual(text.count("| AF_XDP, "), 2)
        self.assertRegex(text, r"\| `xdp` \|")
        self.assertEqual(figures.written(text, self.figures), text)


if __name__ == "__main__":
    unittest.main()
