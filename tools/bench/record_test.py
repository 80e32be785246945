#!/usr/bin/env python3
"""Tests of a report that goes on where it stopped: rounds of several runs, of several results, and
of a guest."""
import itertools
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "benchmarks")]

import argparse  # noqa: E402

import compare  # noqa: E402
import document as documents  # noqa: E402
import guest  # noqa: E402
import judging  # noqa: E402
import question as questions  # noqa: E402
import record  # noqa: E402
import schedule  # noqa: E402

MACHINE = {"kernel": "1", "cpu": "x", "cpus": 2}


def question(name, names, targets=(), **more):
    rows = [{"name": each, "command": [each], "metric": "one_way_ns"} for each in names]
    return dict(
        {
            "question": name, "asks": "?", "baseline": names[0], "rows": rows,
            "targets": list(targets)},
        **more)


def one_round(values, at=0, **more):
    figures = {name: dict(compare.NO_FIGURE, value=value) for name, value in values.items()}
    return dict(
        {
            "figures": figures, "steal_percent": 0.0, "foreign_percent": 0.0, "rejected": False,
            "started": f"t{at:03}", "seconds": 1.0},
        **more)


def result_of(asked, rounds, environment=None, code="c", experiment="E99"):
    environment = environment or MACHINE
    identity = {"machine": record.machine_of(environment), "code": code}
    about = {"environment": environment, "command": ["x"], "started": "s", "seconds": 1.0}
    chosen = [
        {
            "id": experiment, "title": "t", "source": "s", "questions": [asked["question"]],
            "original": [], "missing": []}]
    return documents.build(
        chosen, {asked["question"]: asked}, {asked["question"]: rounds}, about,
        {asked["question"]: identity})


class Rounds(unittest.TestCase):
    ASKED = question("q", "ab", [{"row": "b", "of": "a", "at_most": 3.0}])

    def identity(self, code="c", **machine):
        return {"q": {"machine": record.machine_of(dict(MACHINE, **machine)), "code": code}}

    def test_of_a_result_are_those_that_were_measured(self):
        rounds = [
            one_round({"a": 1.0, "b": 2.0}, 0), one_round({"a": None, "b": None}, 1, rejected=True),
            one_round({"a": 3.0, "b": None}, 2)]
        rounds[2]["figures"]["b"] = dict(compare.NO_FIGURE, state=compare.FAILED, why="exit 1")
        stored = json.loads(json.dumps(result_of(self.ASKED, rounds)))
        self.assertEqual(record.rounds_of(stored["answers"][0]), rounds)

    def test_keep_the_state_that_the_machine_was_in(self):
        rounds = [one_round({"a": 1.0, "b": 2.0}, at) for at in range(2)]
        for one, state in zip(rounds, ("near", None)):
            for figure in one["figures"].values():
                figure["machine"] = state
        stored = json.loads(json.dumps(result_of(self.ASKED, rounds)))
        self.assertEqual(record.rounds_of(stored["answers"][0]), rounds)

    def test_that_were_not_finished_do_not_count(self):
        rounds = [one_round({"a": 1.0, "b": 2.0}, 0)]
        rounds[0]["figures"]["b"] = dict(
            compare.NO_FIGURE, state=compare.ROW_MISSING, why=schedule.INTERRUPTED)
        self.assertEqual(record.rounds_of(result_of(self.ASKED, rounds)["answers"][0]), [])

    def test_are_gone_on_from_on_the_same_machine_with_the_same_programs_alone(self):
        stored = result_of(self.ASKED, [one_round({"a": 1.0, "b": 2.0})])
        asked = {"q": self.ASKED}
        self.assertEqual(
            len(record.rounds_before(stored, asked, self.identity(), replace=False)["q"]), 1)
        for changed, said in (
            (self.identity(code="d"), "other programs"),
            (self.identity(kernel="2"), r"another machine \(kernel was 1, is 2\)")
        ):
            with self.assertRaisesRegex(record.Differs, said + ".*--replace"):
                record.rounds_before(stored, asked, changed, replace=False)
            self.assertEqual(record.rounds_before(stored, asked, changed, replace=True), {"q": []})

    def test_without_any_figure_are_no_loss(self):
        rounds = [one_round({"a": None, "b": None})]
        stored = result_of(self.ASKED, rounds)
        self.assertEqual(
            record.rounds_before(stored, {"q": self.ASKED}, self.identity(code="d"), replace=False),
            {"q": []})

    def test_depend_on_what_is_in_a_program_and_on_its_arguments(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "p")
            path.write_text("1", encoding="utf-8")
            path.chmod(stat.S_IRWXU)
            asked = {
                "rows": [{"name": "a", "command": ["{bin}/p", "--size", "4"], "metric": "seconds"}]}
            more = {"rows": [dict(asked["rows"][0], command=["{bin}/p", "--size", "8"])]}
            before, other = (record.Programs(folder).of(each) for each in (asked, more))
            path.write_text("2", encoding="utf-8")
            self.assertEqual(len({before, other, record.Programs(folder).of(asked)}), 3)


class Merged(unittest.TestCase):
    ASKED = question("q", "ab", [{"row": "b", "of": "a", "at_most": 3.0}])

    def test_adds_up_the_rounds_of_one_question_and_counts_none_twice(self):
        first = result_of(self.ASKED, [one_round({"a": 1.0, "b": 2.0}, at) for at in range(4)])
        second = result_of(self.ASKED, [one_round({"a": 1.0, "b": 2.0}, at) for at in range(2, 7)])
        self.assertEqual(first["answers"][0]["targets"][0]["verdict"], judging.INCONCLUSIVE)
        both = documents.merged([first, second], [])
        self.assertEqual(
            (both["answers"][0]["rounds"], both["answers"][0]["targets"][0]["verdict"]),
            (7, judging.PASS))
        self.assertNotIn("elsewhere", both["answers"][0])

    def test_keeps_the_rounds_of_other_programs_apart(self):
        first, other = (
            result_of(
                self.ASKED, [one_round({"a": 1.0, "b": 2.0}, at) for at in range(4)], code=code)
            for code in "cd")
        self.assertEqual(documents.merged([first, other], [])["answers"][0]["rounds"], 4)

    def test_takes_an_answer_from_where_it_has_figures_and_says_so(self):
        here = result_of(self.ASKED, [one_round({"a": None, "b": None})])
        there = result_of(
            self.ASKED, [one_round({"a": 1.0, "b": 2.0}, at) for at in range(7)],
            {"kernel": "guest", "rdma_devices": "rxe0"})
        known = [
            {
                "id": "E99", "title": "t", "source": "s", "questions": ["q"],
                "original": [
                    {"what": "w", "said": "2", "ours": {"question": "q", "row": "b", "of": "a"}}],
                "missing": []}]
        both = documents.merged([here, there], known)
        self.assertIn(
            "Measured elsewhere: s, x, kernel guest", documents.elsewhere(both["answers"][0]))
        self.assertEqual(
            (both["environment"], both["experiments"][0]["original"][0]["here"]),
            (MACHINE, "2 times (2 to 2)"))
        self.assertEqual(both["experiments"][0]["verdict"], "1 target (1 pass)")

    def test_fills_rows_that_have_no_figure_here_and_compares_none_across_machines(self):
        asked = question(
            "q", "abc",
            [{"row": "b", "of": "a", "at_most": 3.0}, {"row": "c", "of": "b", "at_most": 3.0}])
        here = result_of(
            asked, [one_round({"a": 1.0, "b": None, "c": None}, at) for at in range(7)])
        there = result_of(
            question("q", "bc", [{"row": "c", "of": "b", "at_most": 3.0}]),
            [one_round({"b": 1.0, "c": 2.0}, at) for at in range(7)], {"kernel": "guest"})
        answer, = documents.merged([here, there], [])["answers"]
        self.assertEqual(
            [(row["name"], row["summary"]["median"], bool(row["ratio"])) for row in answer["rows"]],
            [("a", 1.0, True), ("b", 1.0, False), ("c", 2.0, False)])
        self.assertEqual(
            [target["verdict"] for target in answer["targets"]], [judging.MISSING, judging.PASS])
        self.assertIn("Of these rows 2 were measured elsewhere", documents.elsewhere(answer))


class Goes(unittest.TestCase):
    """The scheduler, with rounds of before and with the judgement that is asked for."""

    def scheduled(self, asked, values, rounds=7, judge=False, before=None, max_steal=101.0):
        ran = []

        def run(row, _bin):
            ran.append(row["name"])
            return compare.outcome(
                compare.OK,
                records=[
                    {
                        "identity": {}, "metrics": {"one_way_ns": values[row["name"]]},
                        "verified": True}])
        options = argparse.Namespace(
            rounds=rounds, judge=judge, seconds=None, bin="nowhere", max_steal=max_steal)
        plan = schedule.Schedule(
            {asked["question"]: asked}, options, lambda *_: None, run,
            before={asked["question"]: before or []})
        return plan.execute()[asked["question"]], ran

    def test_on_from_the_rounds_that_are_there(self):
        before = [one_round({"a": 5.0, "b": 5.0}, at) for at in range(5)]
        rounds, ran = self.scheduled(question("q", "ab"), {"a": 1.0, "b": 2.0}, before=before)
        self.assertEqual((rounds[:5], len(rounds), sorted(ran)), (before, 7, ["a", "a", "b", "b"]))
        self.assertEqual(self.scheduled(question("q", "ab"), {}, before=rounds), (rounds, []))

    def test_on_to_21_rounds_only_with_the_rows_of_a_target_that_5_percent_decide(self):
        asked = question(
            "q", "abcd",
            [{"row": "b", "of": "a", "at_most": 1.0}, {"row": "d", "of": "c", "at_most": 3.0}])
        rounds, ran = self.scheduled(asked, {"a": 100.0, "b": 99.0, "c": 1.0, "d": 2.0}, judge=True)
        self.assertEqual(
            (len(rounds), {name: ran.count(name) for name in "abcd"}),
            (21, {"a": 21, "b": 21, "c": 7, "d": 7}))
        answer = compare.answer(asked, rounds)
        self.assertEqual(
            [target["verdict"] for target in answer["targets"]], [judging.PASS, judging.PASS])
        self.assertEqual(
            [(row["state"], row["summary"]["rounds"]) for row in answer["rows"]],
            [("ok", 21), ("ok", 21), ("ok", 7), ("ok", 7)])

    def test_on_to_enough_rounds_in_one_state_of_the_machine_but_not_for_ever(self):
        asked = question("q", "ab", [{"row": "b", "of": "a", "at_most": 1.0}])
        asked["gauge"] = ["flag"]
        values = {"a": 100.0, "b": 99.0}

        def flag(pattern):
            """Of the rows in turn: near (n) or far (f). It runs twice for each."""
            states = itertools.cycle(each for state in pattern for each in (state, state))
            return lambda _row, _bin: compare.outcome(
                compare.OK,
                records=[{"metrics": {"one_way_ns": 30.0 if next(states) == "n" else 160.0}}])

        def ran(pattern):
            with unittest.mock.patch.object(compare, "run_once", flag(pattern)):
                return len(self.scheduled(asked, {"a": 100.0, "b": 99.0}, judge=True)[0])

        self.assertEqual(
            [ran("n"), ran("nnff"), ran("nnnf"), ran("nnnfnfnf")], [21, 21, 41, 63])
        asked["targets"][0]["state"] = "far"
        self.assertEqual(ran("nnnf"), 7)  # none in which both rows met it: nothing to go on for

    def test_not_on_for_ever_where_every_round_is_robbed(self):
        before = [one_round({"a": 1.0}, at, rejected=True) for at in range(20)]
        rounds, ran = self.scheduled(
            question("q", "a"), {"a": 1.0}, rounds=3, before=before, max_steal=-1.0)
        self.assertEqual((len(rounds), len(ran)), (26, 6))


SAYS = 'echo \'{"name": "x", "seconds": {"p50": %s}, "verified": true}\''


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = folder.name
        self.program("bare/malloc_pair", "5e-9")
        self.program("allocate_pair", "5e-9")

    def program(self, name, seconds):
        path = pathlib.Path(self.path, "benchmarks", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n" + SAYS % seconds + "\n", encoding="utf-8")
        path.chmod(stat.S_IRWXU)

    def bench(self, *arguments):
        ran = subprocess.run(
            [
                sys.executable, "-B", os.path.join(HERE, "bench.py"), "--max-steal", "101",
                "--report", os.path.join(self.path, "out"), *arguments],
            text=True, capture_output=True, env=dict(os.environ, SLUICE_BENCH_BIN=self.path),
            timeout=100, check=False)
        return ran.returncode, ran.stderr

    def result(self, name="result.json"):
        return json.loads(pathlib.Path(self.path, "out", name).read_text(encoding="utf-8"))

    def values(self):
        return self.result()["answers"][0]["rows"][0]["values"]

    def test_adds_rounds_to_those_of_the_last_run_and_says_when_nothing_is_left(self):
        self.assertEqual(self.bench("--only", "alloc", "--rounds", "2")[0], 0)
        self.assertEqual(self.bench("--only", "alloc", "--rounds", "3")[0], 0)
        self.assertEqual((self.values(), self.result()["runs"]), ([5e-9] * 3, 2))
        code, said = self.bench("--only", "alloc", "--rounds", "3")
        self.assertEqual((code, self.values()), (0, [5e-9] * 3))
        self.assertIn("nothing is left to run", said)

    def test_refuses_rounds_of_another_program_and_replaces_them_when_told(self):
        self.bench("--only", "alloc", "--rounds", "2")
        self.program("allocate_pair", "7e-9")
        code, said = self.bench("--only", "alloc", "--rounds", "3")
        self.assertEqual((code, len(said.splitlines()), self.values()), (2, 1, [5e-9] * 2))
        self.assertIn("1 question there (alloc) cannot be gone on with: other programs", said)
        self.assertEqual(self.bench("--only", "alloc", "--rounds", "1", "--replace")[0], 0)
        self.assertEqual(self.values(), [5e-9])

    def test_keeps_what_was_not_asked_this_time(self):
        self.bench("--only", "operation_cost", "--rounds", "1")
        first = self.result()
        self.bench("--only", "alloc", "--rounds", "1")
        self.assertEqual((self.result()["runs"], self.result()["started"]), (2, first["started"]))
        for name in ("result.json", "rounds.json"):
            self.assertEqual(
                [one["question"] for one in self.result(name)["answers"]],
                ["alloc", "operation_cost"])
        self.assertEqual([one["id"] for one in self.result()["experiments"]], ["E10", "alloc"])

    def test_the_command_in_the_result_names_no_folder_of_this_machine(self):
        self.bench("--only", "alloc", "--rounds", "1")
        self.assertEqual(
            self.result()["command"],
            ["sluice", "bench", "--max-steal", "101", "--only", "alloc", "--rounds", "1"])

    def test_refuses_a_file_of_rounds_that_is_cut_short(self):
        self.bench("--only", "alloc", "--rounds", "1")
        path = pathlib.Path(self.path, "out", "rounds.json")
        path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
        code, said = self.bench("--only", "alloc", "--rounds", "1")
        self.assertEqual((code, len(said.splitlines())), (2, 1))
        self.assertIn("is no JSON", said)


class Guest(unittest.TestCase):
    def test_is_wanted_for_rows_whose_device_is_not_here(self):
        asked = {
            name: questions.load(compare.question_path(name))
            for name in ("module", "rdma_cpu", "wake", "registration_cache")}
        with unittest.mock.patch("machine.rdma_devices", return_value=[]), unittest.mock.patch(
            "machine.has_module", return_value=False
        ):
            self.assertEqual(guest.wanted(asked), ["module", "rdma_cpu", "registration_cache"])
        with unittest.mock.patch(
            "machine.rdma_devices", return_value=["rxe0"]
        ), unittest.mock.patch("machine.has_module", return_value=True):
            self.assertEqual(guest.wanted(asked), [])

    def test_runs_the_rows_that_need_a_device_and_gives_back_what_they_said(self):
        with tempfile.TemporaryDirectory() as folder:
            lab = os.path.join(folder, "lab.py")
            pathlib.Path(lab).write_text(
                "import json, sys\nfolder = sys.argv[sys.argv.index('--artifacts') +"
                " 1]\njson.dump({'asked': sys.argv[-1], 'bin':"
                " __import__('os').environ['SLUICE_BENCH_BIN']}, open(folder + '/rounds.json',"
                " 'w'))\nsys.exit(99)\n",
                encoding="utf-8")
            options = argparse.Namespace(
                report=folder, bin="/b", rounds=7, max_steal=5.0, judge=True, peers=False,
                replace=False)
            said = []
            with unittest.mock.patch.object(guest, "LAB", lab):
                result = guest.run(options, ["module", "rdma_cpu"], said.append)
            asked = result["asked"]
            self.assertEqual(result["bin"], "/b")
            self.assertIn(
                "--devices --only module,rdma_cpu --rounds 7 --max-steal 5.0 --report"
                f" {folder}/guest --judge",
                asked)
            self.assertIn("ended with 99", said[-1])

    def test_asks_no_row_that_needs_no_device(self):
        one = questions.needing_devices(questions.load(compare.question_path("registration_cache")))
        self.assertTrue(all(row["device"] == "rdma" for row in one["rows"]))
        self.assertEqual((one["baseline"], len(one["targets"])), (one["rows"][0]["name"], 4))


if __name__ == "__main__":
    unittest.main()
