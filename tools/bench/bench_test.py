#!/usr/bin/env python3
"""Tests of `sluice bench` without its programs: scripted rows, scripted time, and fake programs in
a folder of their own."""
import argparse
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "benchmarks")]

import bench  # noqa: E402
import compare  # noqa: E402
import document as documents  # noqa: E402
import experiments as catalogue  # noqa: E402
import peers  # noqa: E402
import question as questions  # noqa: E402
import schedule  # noqa: E402

RECORDED = os.path.join(HERE, "recorded.json")
ASKED_FOR = "E01 E02 E03 E04 E05 E08 E09 E10 E11 E13 E14 E15 E20".split()


def recorded():
    with open(RECORDED, encoding="utf-8") as file:
        return json.load(file)


class Catalogue(unittest.TestCase):
    def test_names_every_experiment_that_was_asked_for_and_says_what_is_missing_of_it(self):
        known = {one["id"]: one for one in catalogue.load()}
        self.assertLessEqual(set(ASKED_FOR), set(known))
        for name in ASKED_FOR:
            with self.subTest(experiment=name):
                self.assertTrue(known[name]["questions"] or known[name]["missing"])
                self.assertTrue(known[name]["original"])
                self.assertTrue(
                    all(each["what"] and each["why"] for each in known[name]["missing"]))

    def test_puts_figures_beside_the_originals_that_its_questions_have(self):
        for one in catalogue.load():
            for ours in (each["ours"] for each in one["original"] if "ours" in each):
                with self.subTest(experiment=one["id"], row=ours["row"]):
                    self.assertIn(ours["question"], one["questions"])
                    question = questions.load(compare.question_path(ours["question"]))
                    names = [row["name"] for row in questions.without_peers(question)["rows"]]
                    self.assertIn(ours["row"], names)
                    self.assertIn(ours.get("of", names[0]), names)

    def test_asks_every_committed_question_but_the_check_of_the_harness_itself(self):
        committed = {
            path.stem for path in pathlib.Path(ROOT, "benchmarks", "questions").glob("*.json")}
        asked = {name for one in catalogue.load() for name in one["questions"]}
        self.assertEqual(committed - asked, {"self_check"})

    def test_is_selected_by_experiment_or_question_and_suggests_the_nearest_name(self):
        known = catalogue.load()
        chosen = catalogue.select(known, ["e5", "wake", "E05"])
        self.assertEqual([(one["id"], one["questions"]) for one in chosen],
                         [("E05", ["half_round_trip"]), ("E15", ["wake"])])
        for wrong, near in (
            ("E055", "E05"), ("E06x", "E06"), ("e21", "E[12][0-9]"),
            ("half_round", "half_round_trip"), ("zzz", "did you mean")
        ):
            with self.assertRaisesRegex(catalogue.Unknown, near):
                catalogue.select(known, [wrong])

    def test_leaves_peers_out_unless_they_are_asked_for_and_shortens_what_is_quick(self):
        chosen = catalogue.select(catalogue.load(), ["tcp_latency"])
        without = catalogue.questions_of(chosen, quick=False, peers=False)["tcp_latency"]
        beside = catalogue.questions_of(chosen, quick=True, peers=True)["tcp_latency"]
        names = {row["name"] for row in without["rows"]}
        self.assertNotIn("NetPIPE", names)
        self.assertLessEqual(
            {"NetPIPE", "qperf tcp_lat", "UCX tag_lat tcp"}, {row["name"] for row in beside["rows"]}
        )
        ours = next(
            row["command"] for row in beside["rows"] if row["name"] == "sluice send_lat spinning")
        self.assertEqual(ours[ours.index("-n") + 1], "2000")

    def test_of_haste_lengthens_no_command(self):
        for path in pathlib.Path(ROOT, "benchmarks", "questions").glob("*.json"):
            whole = questions.load(str(path))
            for row, short in zip(whole["rows"], questions.shortened(whole)["rows"]):
                both = zip(row["command"], short["command"])
                changed = [(before, after) for before, after in both if before != after]
                self.assertFalse(
                    [pair for pair in changed if float(pair[1]) > float(pair[0])], row["name"])

    def test_narrowed_keeps_what_decides_something_in_every_experiment_and_counts_the_rest(self):
        chosen = catalogue.select(catalogue.load(), None)
        asked = catalogue.questions_of(chosen, quick=True, peers=False)
        narrow = catalogue.narrowed(chosen, asked)
        self.assertEqual(set(narrow), set(asked))
        for name, one in narrow.items():
            names = {row["name"] for row in one["rows"]}
            self.assertEqual(len(names) + one["left_out"], len(asked[name]["rows"]))
            self.assertIn(one["baseline"], names)
            self.assertTrue(one["targets"] or not asked[name]["targets"], name)
            self.assertLessEqual(
                {each for target in one["targets"] for each in questions.names_in(target)}, names)
        for ours in (each["ours"] for one in chosen for each in one["original"] if "ours" in each):
            names = {row["name"] for row in narrow[ours["question"]]["rows"]}
            self.assertLessEqual({ours["row"], ours.get("of", ours["row"])}, names)
        self.assertLess(sum(len(one["rows"]) for one in narrow.values()),
                        sum(len(one["rows"]) for one in asked.values()) / 2)

    def test_leaves_out_a_target_that_is_not_for_haste_with_the_rows_of_it_alone(self):
        asked = question(
            "q", "abcd",
            targets=[
                {"row": "b", "of": "a", "at_most": 1},
                {"row": "c", "of": "a", "at_most": 1, "quick": False}])
        narrow = questions.narrowed(asked)
        self.assertEqual(([row["name"] for row in narrow["rows"]],
                          [target["row"] for target in narrow["targets"]], narrow["left_out"]),
                         (["a", "b"], ["b"], 2))
        self.assertEqual(
            [target["row"] for target in questions.narrowed(asked, every_target=True)["targets"]],
            ["b", "c"])

    def test_of_peers_names_the_package_of_what_is_not_installed(self):
        absent = {
            each["program"]: each
            for each in peers.installed(which=lambda program: None, exists=lambda header: False)}
        self.assertEqual(
            (absent["NPtcp"]["package"], absent["NPtcp"]["installed"]), ("netpipe-tcp", False))
        self.assertEqual(
            (absent["gRPC"]["package"], absent["gRPC"]["installed"]), ("libgrpc++-dev", False))
        self.assertEqual((peers.where_from(absent["NPtcp"]), peers.where_from(absent["iceoryx2"])),
                         ("Debian package netpipe-tcp", "benchmarks/peers/install.py iceoryx2"))
        self.assertFalse(absent["iceoryx2"]["installed"] or absent["UCX 1.22"]["installed"])
        self.assertLessEqual(
            {"ib_send_lat", "iperf3", "qperf", "NPtcp", "ucx_perftest", "fi_pingpong"}, set(absent))


def question(name, commands, **more):
    rows = [{"name": command, "command": [command], "metric": "one_way_ns"} for command in commands]
    return dict(
        {"question": name, "asks": "?", "baseline": commands[0], "rows": rows, "targets": []},
        **more)


class Clock:
    """Time that passes only while a command runs: `seconds` each."""

    def __init__(self, seconds=1.0, interrupt_at=None, fail_late=False):
        self.now, self.seconds, self.interrupt_at, self.fail_late, self.order = (
            0.0, seconds, interrupt_at, fail_late, [])

    def __call__(self):
        return self.now

    def run(self, row, _bin):
        self.order.append(row["command"][0])
        if self.interrupt_at == len(self.order):
            raise KeyboardInterrupt
        self.now += min(self.seconds, row.get("limit_seconds", 1e9))
        if self.fail_late and self.seconds > row.get("limit_seconds", 1e9):
            return compare.outcome(compare.FAILED, "ended")
        return compare.outcome(
            compare.OK, records=[{"identity": {}, "metrics": {"one_way_ns": 5.0}, "verified": True}]
        )


def scheduled(asked, clock, rounds=2, seconds=None, judge=False):
    said = []
    options = argparse.Namespace(
        rounds=rounds, judge=judge, seconds=seconds, bin="nowhere", max_steal=101.0)
    plan = schedule.Schedule(
        {one["question"]: one for one in asked}, options, lambda *what: said.append(what),
        clock.run, clock)
    return plan, plan.execute(), said


class Schedule(unittest.TestCase):
    def test_runs_a_round_of_everything_before_the_second_round_of_anything(self):
        clock = Clock()
        _, rounds, said = scheduled([question("one", "ab"), question("two", "cd")], clock)
        self.assertEqual({name: len(ran) for name, ran in rounds.items()}, {"one": 2, "two": 2})
        self.assertEqual(
            (sorted(clock.order[:4]), sorted(clock.order[4:])), (list("abcd"), list("abcd")))
        self.assertEqual([(done, total) for _, done, total, _ in said], [(n, 8) for n in range(8)])
        self.assertEqual(said[0][0], "one, round 1: a")
        self.assertEqual(said[-1][3], 2.0)  # the last question's last round: two commands of 1 s

    def test_begins_no_round_that_would_not_end_in_time(self):
        clock = Clock(seconds=1.0)
        plan, rounds, _ = scheduled(
            [question("one", "ab"), question("two", "c")], clock, rounds=50, seconds=10)
        self.assertLessEqual(clock.now, 10)
        self.assertGreaterEqual(clock.now, 9)
        self.assertGreaterEqual(len(rounds["two"]), len(rounds["one"]))
        self.assertFalse(plan.interrupted)

    def test_out_of_time_in_the_first_round_says_so_of_each_row_that_did_not_run(self):
        clock = Clock(seconds=4.0, fail_late=True)
        plan, rounds, _ = scheduled(
            [question("one", "abc"), question("two", "d")], clock, seconds=6)
        self.assertEqual(clock.now, 6)
        figures = rounds["one"][0]["figures"]
        self.assertEqual([figures[name]["state"] for name in "abc"], ["ok", "missing", "missing"])
        self.assertIn("no time", figures["b"]["why"])
        self.assertTrue(plan.out_of_time)
        self.assertIn("no time", rounds["two"][0]["figures"]["d"]["why"])

    def test_lets_no_question_and_no_command_use_the_time_of_the_others(self):
        clock = Clock(seconds=5.0, fail_late=True)
        names = [f"q{number}" for number in range(9)]
        _, rounds, _ = scheduled(
            [question(name, [f"{name} {row}" for row in "abcdef"]) for name in names], clock,
            seconds=90)
        self.assertTrue(
            all(
                rounds[name] and rounds[name][0]["figures"][f"{name} a"]["state"] == "ok"
                for name in names))
        clock = Clock(seconds=1e6, fail_late=True)
        _, rounds, _ = scheduled(
            [question("hangs", "a"), question("too", "b")], clock, seconds=90, rounds=1)
        self.assertEqual([rounds[name][0]["figures"][row]["state"]
                          for name, row in (("hangs", "a"), ("too", "b"))],
                         ["failed", "failed"])
        self.assertLessEqual(clock.now, 2 * schedule.COMMAND_SECONDS)

    def test_gives_a_question_the_shares_that_it_asks_for(self):
        for shares, ran in ((2.0, 3), (6.0, 6)):
            clock = Clock(seconds=5.0, fail_late=True)
            asked = [question("main", [f"main {row}" for row in "abcdef"], shares=shares)] + [
                question(f"q{at}", [f"q{at}"]) for at in range(9)]
            _, rounds, _ = scheduled(asked, clock, rounds=1, seconds=90)
            self.assertEqual(
                sum(figure["state"] == "ok" for figure in rounds["main"][0]["figures"].values()),
                ran)
            self.assertEqual(rounds["q8"][0]["figures"]["q8"]["state"], "ok")

    def test_gives_the_short_questions_their_next_round_first_where_time_is_limited(self):
        clock = Clock()
        _, rounds, _ = scheduled(
            [question("long", "abcde"), question("short", "f"), question("other", "g")], clock,
            rounds=9, seconds=12.5)
        self.assertEqual(clock.order[:9], list("abcdefgfg"))
        self.assertEqual(len(rounds["long"]), 1)  # its second would have fitted alone

    def test_interrupted_keeps_what_it_has_and_drops_half_a_later_round(self):
        clock = Clock(interrupt_at=2)
        plan, rounds, _ = scheduled([question("one", "abc"), question("two", "d")], clock)
        self.assertTrue(plan.interrupted)
        self.assertEqual([rounds["one"][0]["figures"][name]["why"] for name in "abc"],
                         ["", "interrupted", "interrupted"])
        clock = Clock(interrupt_at=5)
        _, rounds, _ = scheduled([question("one", "abc")], clock)
        self.assertEqual(len(rounds["one"]), 1)

    def test_repeats_no_round_for_ever(self):
        clock = Clock()
        options = argparse.Namespace(
            rounds=3, judge=False, seconds=None, bin="nowhere", max_steal=-1.0)
        plan = schedule.Schedule(
            {"one": question("one", "a")}, options, lambda *what: None, clock.run, clock)
        self.assertEqual(len(plan.execute()["one"]), 6)


class Document(unittest.TestCase):
    def built(self, figures, item, rounds=7, **more):
        ask = question(
            "q", list(figures), targets=[{"row": "b", "of": "a", "at_most": 3.0}], **more)
        ran = [
            {
                "figures": {
                    name: {"state": "ok", "why": "", "value": values[at], "unchecked": False}
                    for name, values in figures.items()},
                "steal_percent": 0.0, "foreign_percent": 0.0, "rejected": False}
            for at in range(rounds)]
        one = {
            "id": "E99", "title": "t", "source": "s", "questions": ["q", "r"], "original": [item],
            "missing": []}
        return documents.build(
            [one], {"q": ask, "r": question("r", "z")}, {"q": ran, "r": []}, {"environment": {}})

    def test_puts_our_ratio_beside_the_original_and_names_what_was_not_run(self):
        item = {"what": "w", "said": "2.43", "ours": {"question": "q", "row": "b", "of": "a"}}
        built = self.built({"a": [1, 2, 1, 2, 1, 2, 1], "b": [2, 4, 2, 4, 2, 4, 2]}, item)
        one, = built["experiments"]
        self.assertEqual(one["original"][0]["here"], "2 times (2 to 2)")
        self.assertEqual(
            (one["state"], one["missing"]), ("partial", [{"what": "r", "why": "not run"}]))
        self.assertEqual(one["verdict"], "1 target (1 pass); 1 not measured")
        self.assertEqual(built["schema"], "sluice.bench/1")

    def test_says_of_too_few_rounds_that_nothing_was_judged_and_what_would_be(self):
        few = self.built(
            {"a": [1] * 7, "b": [2] * 7}, {"what": "w", "said": "x"}, rounds=3, left_out=5)
        self.assertEqual(few["experiments"][0]["verdict"],
                         "1 target (1 inconclusive for want of rounds: 3 of 7); 1 not measured")
        wanting, left_out = documents.caveats(few)
        self.assertIn(
            "1 of 1 target is not judged, with 3 rounds where a verdict takes 7, or 21 where 5 %"
            " decide",
            wanting)
        self.assertIn("sluice bench --only E99 --rounds 21", wanting)
        self.assertIn("2 of 7 rows", left_out)
        self.assertIn("--quick ran", left_out)
        self.assertIn("--judge ran", documents.caveats(dict(few, quick=False))[1])
        close = self.built({"a": [1] * 7, "b": [3.01] * 7}, {"what": "w", "said": "x"})
        self.assertEqual(close["experiments"][0]["verdict"],
                         "1 target (1 inconclusive for want of rounds: 7 of 21); 1 not measured")
        self.assertEqual(
            documents.caveats(self.built({"a": [1] * 7, "b": [2] * 7}, {"what": "w", "said": "x"})),
            [])

    def test_says_a_reason_once_for_all_that_it_holds_for(self):
        missing = [{"what": what, "why": why} for what, why in (("a", "x"), ("b", "y"), ("c", "x"))]
        self.assertEqual(documents.by_reason(missing), [("x", ["a", "c"]), ("y", ["b"])])

    def test_says_that_a_machine_was_busy(self):
        built = self.built({"a": [1] * 7, "b": [2] * 7}, {"what": "w", "said": "x"})
        built["answers"][0]["foreign_percent"] = [10.0, 80.0, 90.0]
        self.assertIn("busy: other programs took 80 %", documents.caveats(built)[0])
        built["answers"][0]["foreign_percent"] = [10.0, 10.0, 90.0]
        self.assertEqual(documents.caveats(built), [])

    def test_says_of_one_round_that_it_is_one(self):
        one = self.built(
            {"a": [1] * 7, "b": [2] * 7},
            {"what": "w", "said": "x", "ours": {"question": "q", "row": "b", "of": "a"}}, rounds=1)
        self.assertEqual(one["experiments"][0]["original"][0]["here"], "2 times (1 round)")

    def test_says_of_a_sum_of_rows_how_often_it_is_what_a_line_leaves_a_frame(self):
        built = self.built(
            {"a": [100e-9] * 7, "b": [34.4e-9] * 7},
            {
                "what": "w", "said": "x",
                "ours": {"question": "q", "row": "a", "plus": ["b"], "budget_ns": [67.2, 16.8]}})
        self.assertEqual(
            built["experiments"][0]["original"][0]["here"], "134 ns, 7.44 Mpps: 2, 8 times")

    def test_says_nothing_of_ours_where_there_is_no_figure(self):
        built = self.built(
            {"a": [1] * 7, "b": [None] * 7},
            {"what": "w", "said": "x", "ours": {"question": "q", "row": "b", "of": "a"}})
        self.assertEqual(built["experiments"][0]["original"][0]["here"], "-")
        built = self.built(
            {"a": [1500e9 / 7] * 7, "b": [1] * 7},
            {
                "what": "w", "said": "x",
                "ours": {
                    "question": "q", "row": "a", "bytes_per_item": 1500, "unit": "ns per frame"}})
        self.assertEqual(built["experiments"][0]["original"][0]["here"], "7 (7 to 7) ns per frame")


def program(folder, name, script):
    path = pathlib.Path(folder, "benchmarks", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + script + "\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


SAYS_FIVE = 'echo \'{"name": "x", "seconds": {"p50": 5e-9}, "verified": true}\''


class Command(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = self.folder.name
        program(self.path, "bare/malloc_pair", SAYS_FIVE)
        program(self.path, "allocate_pair", SAYS_FIVE)

    def start(self, *arguments):
        return subprocess.Popen(
            [sys.executable, "-B", os.path.join(HERE, "bench.py"), *arguments], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(os.environ, SLUICE_BENCH_BIN=self.path))

    def run_bench(self, *arguments):
        process = self.start(*arguments)
        out, errors = process.communicate(timeout=100)
        return process.returncode, out, errors

    def inside(self, name):
        return os.path.join(self.path, name)

    def test_writes_page_summary_and_result_and_says_where_it_is(self):
        code, out, errors = self.run_bench(
            "--only", "alloc", "--rounds", "2", "--max-steal", "101", "--report",
            self.inside("out"), "--json", self.inside("r.json"))
        self.assertEqual(code, 0, errors)
        with open(self.inside("r.json"), encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual((result["schema"], result["interrupted"]), ("sluice.bench/1", False))
        self.assertEqual(result["answers"][0]["rows"][0]["values"], [5e-9, 5e-9])
        self.assertEqual(sorted(os.listdir(self.inside("out"))),
                         ["index.html", "result.json", "rounds.json", "summary.md"])
        self.assertIn("[1 of 10, 0:10 left] alloc, round 1: bare malloc and free 64 B", errors)
        self.assertIn("alloc", out)

    def test_reports_again_from_a_recorded_result(self):
        code, _, errors = self.run_bench("--from", RECORDED, "--report", self.inside("out"))
        self.assertEqual(code, 0, errors)
        self.assertGreater(os.path.getsize(self.inside("out/index.html")), 10000)
        with open(self.inside("old.json"), "w", encoding="utf-8") as file:
            file.write('{"schema": "sluice.bench/0"}')
        code, _, errors = self.run_bench(
            "--from", self.inside("old.json"), "--report", self.inside("out"))
        self.assertEqual(code, 2)
        self.assertIn("sluice.bench/0", errors)

    def test_gives_the_result_to_a_pipe_and_the_summary_to_people(self):
        code, out, errors = self.run_bench(
            "--only", "alloc", "--rounds", "1", "--max-steal", "101", "--json", "-")
        self.assertEqual(code, 0, errors)
        self.assertEqual(json.loads(out)["answers"][0]["question"], "alloc")
        self.assertIn("Allocating", errors)

    def test_refuses_bad_usage_in_one_line_with_the_nearest_name_and_opens_nothing(self):
        cases = [
            (["--repot", "out"], "did you mean --report"), (["E01"], "did you mean --only E01?"),
            (["--only", "E055"], "did you mean E05"), (["--rounds", "0"], "1 to 1000"),
            (["--rounds", "x"], "invalid int value"),
            (["--from", "x", "--quick"], "--from runs nothing"),
            (["--from", self.inside("none.json")], "cannot be read: No such file"),
            (["--from", __file__], "is no JSON"), (["--seconds", "-1"], "more than 0"),
            (["--only", "alloc", "--json", self.inside("no/such/r.json")], "cannot be written"),
            (["--only", "alloc", "--json", self.path], "cannot be written"),
            (
                ["--only", "alloc", "--report", self.inside("benchmarks/allocate_pair")],
                "cannot be written")]
        for arguments, said in cases:
            with self.subTest(arguments=arguments):
                code, out, errors = self.run_bench(
                    *arguments,
                    *(
                        []
                        if "--report" in arguments or "--json" in arguments
                        else ["--report", self.inside("out")]))
                self.assertEqual((code, out), (2, ""))
                self.assertIn(said, errors)
                self.assertEqual(len(errors.splitlines()), 1)
                self.assertFalse(os.path.exists(self.inside("out")))

    def test_interrupted_keeps_what_it_has_leaves_no_program_and_says_so(self):
        self.interrupted(signal.SIGINT)

    def test_terminated_does_so_too_where_a_shell_had_ctrl_c_ignored(self):
        # what is started inherits it, as a job in the background does
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        self.interrupted(signal.SIGTERM)

    def interrupted(self, by):
        os.mkfifo(self.inside("never"))
        program(
            self.path, "allocate_pair",
            f'echo $$ > {self.inside("pid")}; exec cat {self.inside("never")}')
        process = self.start(
            "--only", "alloc", "--max-steal", "101", "--json", self.inside("r.json"))
        while "allocate" not in (line := process.stderr.readline()):
            self.assertTrue(line, "ended before it was interrupted")
        while (
            not os.path.exists(self.inside("pid"))
            or not pathlib.Path(self.inside("pid")).read_text(encoding="utf-8").strip()
        ):
            self.assertIsNone(process.poll())
        self.addCleanup(
            subprocess.run,
            [
                "kill", "-9", str(process.pid),
                pathlib.Path(self.inside("pid")).read_text(encoding="utf-8").strip()],
            stderr=subprocess.DEVNULL, check=False)
        process.send_signal(by)
        out, errors = process.communicate(timeout=100)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("interrupted: 1 figures are kept", errors)
        with open(self.inside("r.json"), encoding="utf-8") as file:
            result = json.load(file)
        self.assertTrue(result["interrupted"])
        states = [(row["state"], row["why"]) for row in result["answers"][0]["rows"]]
        self.assertEqual(states, [("ok", "")] + [("missing", "interrupted")] * 4)
        with self.assertRaises(ProcessLookupError):
            os.kill(int(pathlib.Path(self.inside("pid")).read_text(encoding="utf-8")), 0)

    def test_lists_experiments_with_what_is_missing_of_them(self):
        code, out, _ = self.run_bench("--list")
        self.assertEqual(code, 0)
        for name in ASKED_FOR:
            self.assertRegex(out, rf"(?m)^{name} ")
        self.assertIn("missing: MSG_ZEROCOPY", out)


if __name__ == "__main__":
    unittest.main()
