#!/usr/bin/env python3
"""Tests of states.py, and of how compare.py judges by the machine's state."""
import argparse
import contextlib
import io
import itertools
import json
import os
import sys
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import compare  # noqa: E402
import judging  # noqa: E402
import question as questions  # noqa: E402
import report  # noqa: E402
import row_results  # noqa: E402
import states  # noqa: E402

NEAR_NS, FAR_NS = 31.0, 155.0


def ran(one_way_ns):
    printed = {"one_way_ns": {"p50": one_way_ns}, "verified": True}
    return compare.outcome(compare.OK, records=row_results.parse(json.dumps(printed)))


def asked(gauge, ours, theirs, targets, rounds):
    """The answer to a question whose rows and gauge take these figures in turn."""
    columns = {"ours": iter(ours), "theirs": iter(theirs)}
    question = {
        "question": "q", "asks": "?", "baseline": "theirs", "gauge": ["flag"],
        "rows": [
            {"name": name, "command": [name], "metric": "one_way_ns"} for name in columns],
        "targets": targets}
    options = argparse.Namespace(rounds=rounds, bin="nowhere", max_steal=101.0)
    flags = iter(gauge)
    with contextlib.redirect_stderr(io.StringIO()), unittest.mock.patch.object(
            compare, "run_once", lambda row, _bin: ran(next(flags))):
        measured = compare.run_rounds(
            question, options, lambda row, _bin: ran(next(columns[row["command"][0]])))
    return compare.answer(question, measured)


class State(unittest.TestCase):
    def within_one(self, *gauge):
        flags, runs = iter(gauge), itertools.count(1)
        return states.within_one(lambda: next(runs), lambda: next(flags))

    def test_of_a_row_is_what_the_gauge_says_before_and_after_it(self):
        self.assertEqual(self.within_one(NEAR_NS, NEAR_NS), (1, states.NEAR))
        self.assertEqual(self.within_one(FAR_NS, FAR_NS), (1, states.FAR))

    def test_that_changes_has_the_row_run_again_but_not_for_ever(self):
        self.assertEqual(self.within_one(NEAR_NS, FAR_NS, FAR_NS, FAR_NS), (2, states.FAR))
        self.assertEqual(self.within_one(*[NEAR_NS, FAR_NS] * states.TRIES), (states.TRIES, None))

    def test_is_none_where_the_gauge_does_not_run(self):
        self.assertEqual(self.within_one(None, None), (1, None))


class Judged(unittest.TestCase):
    AT_MOST = {"row": "ours", "of": "theirs", "at_most": 2.0}

    def test_are_the_rounds_in_which_both_rows_met_one_state(self):
        # In each third round the machine changes between the two rows.
        near, far = [NEAR_NS] * 2, [FAR_NS] * 2
        gauge = (near * 2 + far * 2 + near + far) * 8
        ours, theirs = [150, 300, 150] * 8, [100, 200, 200] * 8
        answer = asked(gauge, ours, theirs, [self.AT_MOST], 24)
        target, = answer["targets"]
        self.assertEqual(target["ratio"]["rounds"], 16)
        self.assertEqual((target["ratio"]["min"], target["ratio"]["max"]), (1.5, 1.5))
        self.assertEqual(target["verdict"], judging.PASS)
        self.assertEqual({state: each["rounds"] for state, each in target["by_state"].items()},
                         {"near": 8, "far": 8})
        self.assertIn("near 1.5 (8), far 1.5 (8)", report.target_line(target))

    def test_have_a_verdict_of_their_own_in_each_state_where_that_is_asked_for(self):
        gauge = ([NEAR_NS] * 4 + [FAR_NS] * 4) * 8
        answer = asked(
            gauge, [300, 300] * 8, [100, 200] * 8,
            [dict(self.AT_MOST, state="near"), dict(self.AT_MOST, state="far")], 16)
        self.assertEqual(
            [(target["ratio"]["median"], target["verdict"]) for target in answer["targets"]],
            [(3.0, judging.FAIL), (1.5, judging.PASS)])
        self.assertIn("| ours / theirs, far |", report.target_line(answer["targets"][1]))

    def test_are_inconclusive_where_the_machine_never_was_in_that_state(self):
        answer = asked(
            itertools.repeat(NEAR_NS), [1] * 7, [1] * 7, [dict(self.AT_MOST, state="far")], 7)
        target, = answer["targets"]
        self.assertEqual((target["ratio"], target["verdict"]), (None, judging.INCONCLUSIVE))

    def test_are_none_where_the_gauge_does_not_run(self):
        row = {"name": "a", "command": ["a"], "metric": "one_way_ns"}
        one = compare.run_round(
            [row], "nowhere", 0, 101.0, lambda _row, _bin: ran(1.0), gauge=["{bin}/flag"])
        self.assertEqual(
            (one["figures"]["a"]["state"], one["figures"]["a"]["why"]),
            (compare.ROW_MISSING, "the gauge of the machine's state: bazel-bin/flag is not there"))

    def test_by_state_need_a_gauge(self):
        question = {
            "question": "q", "asks": "?", "baseline": "a",
            "rows": [{"name": "a", "command": ["a"], "metric": "one_way_ns"}],
            "targets": [{"row": "a", "of": "a", "at_most": 1, "state": "near"}]}
        for broken in (question, dict(
                question, gauge=["flag"], targets=[dict(question["targets"][0], state="close")])):
            with self.assertRaisesRegex(questions.BadQuestion, "near.*or.*far.*gauge"):
                questions._check_targets("q.json", broken)


if __name__ == "__main__":
    unittest.main()
