#!/usr/bin/env python3
"""Tests of compare.py and its modules, on synthetic figures and tiny commands."""
import argparse
import contextlib
import glob
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import by_state  # noqa: E402
import compare  # noqa: E402
import grpc_rows  # noqa: E402
import judging  # noqa: E402
import machine  # noqa: E402
import question as questions  # noqa: E402
import report  # noqa: E402
import row_results  # noqa: E402

FOLDER = os.path.dirname(os.path.abspath(__file__))


def line(p50, **more):
    return dict({"name": "x", "size_bytes": 64, "one_way_ns": {"min": 1, "p50": p50, "max": 900},
                 "verified": True}, **more)


def printing(document, exit_code=0):
    """A command that prints `document` and exits."""
    return [
        sys.executable, "-c",
        f"print({json.dumps(json.dumps(document))}); raise SystemExit({exit_code})"]


def row(name, command, **more):
    return dict({"name": name, "command": command, "metric": "one_way_ns"}, **more)


def ask(rows, targets=(), rounds=7, run=None, max_steal=101.0):
    question = {"question": "q", "asks": "?", "baseline": rows[0]["name"], "rows": list(rows),
                "targets": list(targets)}
    options = argparse.Namespace(rounds=rounds, bin="nowhere", max_steal=max_steal)
    with contextlib.redirect_stderr(io.StringIO()):
        ran = compare.run_rounds(question, options, run or compare.run_once)
    answer = compare.answer(question, ran)
    return answer, report.markdown({"environment": {}, "answers": [answer]})


def scripted(figures):
    """A runner that gives each command its next figure; the command's first word names it."""
    taken = {name: iter(values) for name, values in figures.items()}

    def run(row_, _bin):
        value = next(taken[row_["command"][0]])
        if isinstance(value, str):
            return compare.outcome(value, "scripted")
        return compare.outcome(compare.OK, records=row_results.parse(json.dumps(line(value))))
    return run


class States(unittest.TestCase):
    def test_rounds_are_compared_in_which_both_rows_met_the_machine_in_one_state(self):
        ours, theirs = [155, 360, 370, 160, 365, None], [100, 400, 105, 98, 390, 400]
        found = by_state.ratios(ours, theirs)
        self.assertEqual(
            found, {"near": [155 / 100, 160 / 98], "far": [360 / 400, 365 / 390], "one state": []})

    def test_a_row_that_met_one_state_only_is_compared_in_the_state_of_the_other(self):
        self.assertEqual(by_state.states_of([100, 110, 120, None]), [None] * 4)
        self.assertEqual(
            by_state.ratios([100, 110], [30, 160]),
            {"near": [100 / 30], "far": [110 / 160], "one state": []})
        self.assertEqual(
            by_state.ratios([100, 0], [50, 50]), {"near": [], "far": [], "one state": [2]})


class Results(unittest.TestCase):
    def test_of_a_bare_program_are_read_from_its_last_json_line(self):
        record, = row_results.parse("noise\n" + json.dumps(line(31, bytes_per_second=5)) + "\n")
        self.assertEqual(record["metrics"], {"one_way_ns": 31, "bytes_per_second": 5})
        self.assertIs(record["verified"], True)

    def test_of_sluice_perf_are_selected_by_size(self):
        document = {"schema": "sluice.perf/1", "results": [
            {"test": "send_lat", "transport": "shm", "size_bytes": size, "iterations": 9,
             "latency_ns": {"min": 1, "p50": size * 2, "p99": 9}, "bytes_per_second": 7,
             "cpu_ns_per_byte": 0.5, "verified_bytes": 10, "errors": 0} for size in (64, 128)]}
        record = row_results.select(row_results.parse(json.dumps(document)), {"size_bytes": 128})
        self.assertEqual(
            record["metrics"],
            {
                "one_way_ns": 256, "one_way_p99_ns": 9, "bytes_per_second": 7,
                "messages_per_second": 7 / 128,
                "cpu_seconds_per_gb": 0.5, "cpu_ns_per_message": 64})
        with self.assertRaisesRegex(row_results.Unreadable, "2 of 2"):
            row_results.select(row_results.parse(json.dumps(document)), {"test": "send_lat"})

    def test_of_sluice_perf_have_the_processor_of_each_end_where_it_says_so(self):
        result = {
            "test": "send_bw", "transport": "tcp", "size_bytes": 64, "verified_bytes": 10,
            "errors": 0, "bytes_per_second": 7,
            "used": {"client": {"cpu_share": 0.5}, "server": None}}
        metrics = row_results.parse(json.dumps({"schema": "sluice.perf/1", "results": [result]}))[
            0
        ]["metrics"]
        self.assertEqual(metrics, {"bytes_per_second": 7, "messages_per_second": 7 / 64, "cpu_percent_client": 50.0})

    def test_of_sluice_demo_are_the_median_pull_by_mode_and_path(self):
        document = {"schema": "sluice.demo/1", "results": [
            {"mode": "zerocopy", "path": path, "step_seconds": {"median": 9},
             "pull_seconds": {"median": seconds}, "verified": True}
            for path, seconds in (("shm", 0.02), ("tcp", 0.18))]}
        record = row_results.select(row_results.parse(json.dumps(document)),
                                    {"mode": "zerocopy", "path": "tcp"})
        self.assertEqual(record["metrics"], {"seconds": 0.18, "step_seconds": 9})

    def test_lose_every_figure_if_the_payload_did_not_verify(self):
        for verified in (False, None, "yes", 1):
            record, = row_results.parse(json.dumps(line(31, verified=verified)))
            self.assertEqual((record["verified"], record["metrics"]), (False, {}))
        unsaid = line(31)
        del unsaid["verified"]
        self.assertEqual(row_results.parse(json.dumps(unsaid))[0]["metrics"], {})
        for errors, verified_bytes in ((1, 10), (0, 0), (None, 10)):
            document = {"schema": "sluice.perf/1", "results": [
                {"latency_ns": {"p50": 5}, "errors": errors, "verified_bytes": verified_bytes}]}
            self.assertEqual(row_results.parse(json.dumps(document))[0]["metrics"], {})

    def test_of_the_table_of_grpc_tensors_are_its_ways_in_seconds(self):
        table = (
            "16 MiB                ms         (min to max)     GB/s  x\ngRPC tcp           20.978  "
            " (20.978 to 20.978)     0.80\nexpert unix whole    7.288     (7.288 to 7.288)    "
            " 2.30\n")
        self.assertEqual(
            [(each["mode"], each["step_seconds"]["p50"]) for each in grpc_rows.results(table)],
            [("gRPC tcp", 0.020978), ("expert unix whole", 0.007288)])

    def test_are_numbers(self):
        for value in (float("inf"), float("nan"), True, "5", None):
            self.assertEqual(
                row_results.parse(json.dumps(line(31) | {"one_way_ns": value}))[0]["metrics"].get(
                    "one_way_ns"),
                None, value)

    def test_of_an_empty_message_stand_though_there_was_no_byte_to_compare(self):
        def record(errors):
            return row_results.parse(
                json.dumps(
                    {
                        "schema": "sluice.perf/1",
                        "results": [
                            {
                                "size_bytes": 0, "latency_ns": {"p50": 5}, "cpu_ns_per_byte": 0,
                                "errors": errors, "verified_bytes": 0}]})
            )[0]
        self.assertEqual(record(0)["metrics"]["one_way_ns"], 5)
        self.assertNotIn("cpu_ns_per_message", record(0)["metrics"])
        self.assertEqual(record(1)["metrics"], {})

    def test_of_an_unknown_kind_are_refused(self):
        for text in ("", "[1]", "hello", '{"schema": "sluice.perf/9", "results": []}', "{broken"):
            with self.assertRaises(row_results.Unreadable):
                row_results.parse(text)


class Comparison(unittest.TestCase):
    def test_judges_the_median_of_the_rounds_ratios(self):
        rows = [row("base", ["base"]), row("fast", ["fast"])]
        figures = {
            "base": [100, 200, 100, 200, 100, 200, 100], "fast": [50, 100, 50, 120, 50, 90, 50]}
        answer, text = ask(
            rows, [{"row": "fast", "of": "base", "at_most": 0.7}], run=scripted(figures))
        ratio = answer["rows"][1]["ratio"]
        self.assertEqual(
            [ratio[key] for key in ("median", "min", "max", "rounds")], [0.5, 0.45, 0.6, 7])
        self.assertEqual(answer["targets"][0]["verdict"], judging.PASS)
        self.assertIn("0.5 (0.45 to 0.6)", text)

    def test_says_inconclusive_in_the_table(self):
        rows = [row("base", ["base"]), row("near", ["near"])]
        figures = {"base": [100] * 7, "near": [90, 95, 100, 105, 110, 112, 114]}
        answer, text = ask(
            rows, [{"row": "near", "of": "base", "at_most": 1.1}], run=scripted(figures))
        self.assertEqual(answer["targets"][0]["verdict"], judging.INCONCLUSIVE)
        self.assertIn("| inconclusive |", text)

    def test_names_the_settings_that_no_other_beats_in_gain_and_cost(self):
        def point(name, gain, cost):
            return [
                {"name": name + end, "metric": metric, "summary": judging.summary([value])}
                for end, metric, value in (
                    ("", "bytes_per_second", gain), (", CPU", "cpu_ns_per_message", cost))]
        answer = {
            "pareto": ", CPU",
            "rows": (
                point("slow", 1, 1)
                + point("less", 0.5, 1)
                + point("worse", 1, 2)
                + point("fast", 3, 3)
                + point("equal", 3, 3)
                + point("dearer", 3, 4)
                + [{"name": "alone", "metric": "bytes_per_second", "summary": None}])}
        self.assertEqual(
            [(name, best) for name, _, _, best in report.pareto(answer)],
            [
                ("slow", True), ("less", False), ("worse", False), ("fast", True), ("equal", True),
                ("dearer", False)])
        self.assertEqual(
            [line.split(" | ")[0] for line in report.pareto_lines(answer)[3:]],
            ["| slow", "| fast", "| equal"])
        self.assertEqual(report.pareto_lines({"rows": []}), [])

    def test_prints_no_number_for_a_row_whose_payload_was_wrong_in_one_round(self):
        rows = [row("base", ["base"]), row("wrong", ["wrong"])]
        figures = {"base": [100] * 7, "wrong": [77] * 3 + [compare.CORRUPT] + [77] * 3}
        answer, text = ask(
            rows, [{"row": "wrong", "of": "base", "at_most": 1.0}], run=scripted(figures))
        self.assertEqual(answer["rows"][1]["values"], [None] * 7)
        self.assertEqual(answer["targets"][0]["verdict"], judging.MISSING)
        table_row = next(each for each in text.splitlines() if each.startswith("| wrong"))
        self.assertIn("did not verify", table_row)
        self.assertNotIn("0.077", table_row)

    def test_reports_missing_failing_and_unreadable_rows_instead_of_dropping_them(self):
        rows = [row("base", printing(line(100))),
                row("absent", ["{bin}/no/such/program"]),
                row("needy", printing(line(1)), needs=["{bin}/no/such/file"]),
                row("nothing to run on", printing(line(1), exit_code=77)),
                row("corrupt", printing(line(1), exit_code=4)),
                row("unverified", printing(line(1, verified=False))),
                row("crashing", printing(line(1), exit_code=3)),
                row("mute", [sys.executable, "-c", "pass"]),
                row("other metric", printing({"seconds": 1, "verified": True}))]
        answer, text = ask(rows, rounds=1)
        states = [each["state"] for each in answer["rows"]]
        self.assertEqual(states, ["ok"] + ["missing"] * 3 + [compare.CORRUPT] * 2 + ["failed"] * 3)
        for each in rows:
            self.assertIn(f"{each['name']}", text)
        self.assertEqual([each["summary"] for each in answer["rows"][1:]], [None] * 8)
        # By names that are the same on each machine: the result is published.
        self.assertEqual(
            [each["why"] for each in answer["rows"][1:3]],
            ["bazel-bin/no/such/program is not there", "bazel-bin/no/such/file is not there"])

    def test_reads_the_file_of_a_command_that_writes_one(self):
        code = (
            "import sys, json; json.dump({'one_way_ns': 5, 'verified': True}, open(sys.argv[1],"
            " 'w'))")
        answer, _ = ask([row("base", [sys.executable, "-c", code, "{json}"])], rounds=1)
        self.assertEqual(answer["rows"][0]["values"], [5])

    def test_ends_a_command_that_takes_too_long(self):
        endless = row("base", [sys.executable, "-c", "while True: pass"], limit_seconds=0.2)
        answer, _ = ask([endless], rounds=1)
        self.assertEqual(answer["rows"][0]["state"], "failed")
        self.assertIn("ended after", answer["rows"][0]["why"])

    def test_leaves_no_program_when_interrupted_while_it_starts(self):
        made, popen = [], subprocess.Popen

        def interrupted(*arguments, **more):
            made.append(popen(*arguments, **more))
            signal.raise_signal(signal.SIGINT)
            return made[0]
        with unittest.mock.patch.object(subprocess, "Popen", interrupted), self.assertRaises(
            KeyboardInterrupt
        ):
            compare.run_command([sys.executable, "-c", "while True: pass"], 60)
        self.assertEqual(made[0].returncode, -signal.SIGKILL)
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)

    def test_turns_the_order_of_the_rows_and_runs_a_shared_command_once(self):
        order = []

        def run(row_, _bin):
            order.append(row_["command"][0])
            return compare.outcome(compare.OK, records=row_results.parse(json.dumps(line(1))))
        rows = [row("one", ["a"]), row("two", ["b"]), row("two again", ["b"]), row("three", ["c"])]
        ask(rows, rounds=4, run=run)
        self.assertEqual(order, list("abc" "acb" "bca" "bac"))

    def test_does_not_count_a_round_in_which_the_host_stole_too_much(self):
        answer, _ = ask(
            [row("base", ["base"])], rounds=2, run=scripted({"base": [1, 2, 3, 4]}), max_steal=-1.0)
        self.assertEqual(answer["rejected_rounds"], 4)
        self.assertIsNone(answer["rows"][0]["summary"])

    def test_repeats_a_round_in_which_the_host_stole_and_keeps_its_steal_on_record(self):
        stolen = iter([9.0, 0.0, 5.0, 5.1, 0.0])
        with unittest.mock.patch.object(
            machine.Disturbance, "since_last",
            side_effect=lambda: {"steal": next(stolen), "foreign": 0.0}
        ):
            answer, text = ask(
                [row("base", ["base"])], rounds=3, run=scripted({"base": [1, 2, 3, 4, 5]}),
                max_steal=5.0)
        self.assertEqual(answer["rows"][0]["values"], [None, 2, 3, None, 5])
        self.assertEqual(answer["steal_percent"], [9.0, 0.0, 5.0, 5.1, 0.0])
        self.assertIn("2 not counted for steal", text)

    def test_does_not_claim_to_beat_the_best_of_several_when_one_is_absent(self):
        rows = [row("base", ["base"]), row("other", ["other"]), row("ours", ["ours"])]
        figures = {"base": [100] * 7, "other": [compare.FAILED] * 7, "ours": [10] * 7}
        answer, _ = ask(rows, [{"row": "ours", "of": ["base", "other"], "at_most": 0.5}],
                        run=scripted(figures))
        self.assertEqual(answer["targets"][0]["verdict"], judging.INCONCLUSIVE)
        self.assertEqual(answer["targets"][0]["absent"], ["other"])

    def test_takes_one_row_in_all_rounds_where_the_best_overall_is_asked_for(self):
        rows = [row("base", ["base"]), row("other", ["other"]), row("ours", ["ours"])]
        figures = {"base": [100, 120] * 4, "other": [110, 111] * 4, "ours": [110] * 8}
        target = {"row": "ours", "of": ["base", "other"], "at_most": 2}
        answer, text = ask(
            rows, [target, dict(target, best="overall")], rounds=8, run=scripted(figures))
        self.assertEqual([one["ratio"]["max"] for one in answer["targets"]], [1.1, 1.1])
        self.assertEqual([one["ratio"]["min"] for one in answer["targets"]], [110 / 111, 110 / 120])
        self.assertIn("best overall of base, other", text)

    def test_judges_how_much_more_one_row_grows_than_another(self):
        rows = [row("a", ["a"]), row("a+", ["a+"]), row("b", ["b"]), row("b+", ["b+"])]
        figures = {"a": [100] * 7, "a+": [150] * 7, "b": [10] * 7, "b+": [30] * 7}
        grows = {"row": "a+", "over": "a", "of": "b+", "of_over": "b"}
        answer, text = ask(
            rows, [dict(grows, at_most=1), dict(grows, at_least=0.6)], run=scripted(figures))
        self.assertEqual([target["ratio"]["median"] for target in answer["targets"]], [0.5, 0.5])
        self.assertEqual(
            [target["verdict"] for target in answer["targets"]], [judging.PASS, judging.FAIL])
        self.assertIn("(a+ / a) / (b+ / b)", text)

    def test_marks_a_row_whose_tool_cannot_check_its_payload(self):
        _, text = ask([row("base", printing(line(100, verified="unchecked")))], rounds=1)
        self.assertIn("payload not checked by this tool", text)


class Machine(unittest.TestCase):
    def test_reads_steal_busy_and_total_ticks_and_counts_guest_time_once(self):
        text = "cpu  10 1 5 100 2 0 3 7 4 4\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
        self.assertEqual(machine.parse_cpu_ticks(text), {"steal": 7, "busy": 19, "total": 128})

    def test_share_of_other_processes_leaves_out_our_own(self):
        readings = [({"steal": 0, "busy": 100, "total": 1000}, 0.0),
                    ({"steal": 10, "busy": 400, "total": 2000}, 100 / os.sysconf("SC_CLK_TCK"))]
        with unittest.mock.patch.object(machine.Disturbance, "_read", side_effect=readings):
            self.assertEqual(machine.Disturbance().since_last(), {"steal": 1.0, "foreign": 20.0})

    def test_description_names_what_a_figure_depends_on(self):
        self.assertLessEqual({"kernel", "cpu", "governor", "thp", "lo_mtu", "congestion_control"},
                             set(machine.describe()))


class Questions(unittest.TestCase):
    def test_that_are_committed_load_and_name_their_rows(self):
        paths = glob.glob(os.path.join(FOLDER, "questions", "*.json"))
        self.assertGreaterEqual(len(paths), 8)
        for path in paths:
            with self.subTest(path=path):
                loaded = questions.load(path)
                self.assertEqual(loaded["question"] + ".json", os.path.basename(path))

    def test_of_some_rows_have_their_targets_only_and_a_baseline(self):
        whole = {
            "question": "q", "asks": "?", "baseline": "shm a",
            "rows": [row(name, ["x"]) for name in ("shm a", "tcp a", "tcp b")],
            "targets": [
                {"row": "tcp a", "of": "shm a", "at_most": 1},
                {"row": "tcp b", "of": ["tcp a"], "at_most": 1}]}
        part = questions.beginning(whole, ["tcp"])
        self.assertEqual([each["name"] for each in part["rows"]], ["tcp a", "tcp b"])
        self.assertEqual(part["targets"], whole["targets"][1:])
        self.assertEqual(part["baseline"], "tcp a")
        self.assertEqual(questions.beginning(whole, ["shm", "tcp"]), whole)
        with self.assertRaisesRegex(questions.BadQuestion, "no row begins with 'udp'.*'tcp b'"):
            questions.beginning(whole, ["udp"])

    def test_with_a_mistake_are_refused_by_name(self):
        good = {"question": "q", "asks": "?", "baseline": "a", "rows": [row("a", ["x"])],
                "targets": [{"row": "a", "of": "a", "at_most": 1}]}
        mistakes = [
            (dict(good, baseline="b"), "baseline 'b'"),
            (dict(good, rows=[row("a", ["x"], metric="speed")]), "row 'a'"),
            (dict(good, rows=[row("a", ["x"]), row("a", ["y"])]), "two rows"),
            (dict(good, targets=[{"row": "a", "of": "c", "at_most": 1}]), "'c'"),
            (dict(good, targets=[{"row": "a", "of": "a"}]), "at_most or at_least"),
            (
                dict(good, targets=[{"row": "a", "of": "a", "at_most": 1, "best": "ever"}]),
                "overall"),
            (
                dict(good, targets=[{"row": "a", "of": "a", "at_most": 1, "over": "a"}]),
                "over and of_over"),
            (
                dict(
                    good,
                    targets=[{"row": "a", "of": "a", "at_most": 1, "over": "a", "of_over": "c"}]),
                "'c'"),
            ({"question": "q"}, "'asks'"),
        ]
        for mistake, expected in mistakes:
            with self.subTest(expected=expected), tempfile.NamedTemporaryFile(
                "w", suffix=".json"
            ) as file:
                json.dump(mistake, file)
                file.flush()
                with self.assertRaisesRegex(questions.BadQuestion, expected):
                    questions.load(file.name)


if __name__ == "__main__":
    unittest.main()
