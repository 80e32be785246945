#!/usr/bin/env python3
"""`sluice perf` against what it must reach: an earlier run's figures, or numbers."""
import json
import pathlib

import command

LOAD = ("--self", "--transport", "shm", "-n", "300")


class Baseline(command.CommandTest):
    def baseline(self, test="send_lat", sizes=(64,), **changes):
        """A document as an earlier run would have left it, with figures of our choice."""
        results = [{"test": test, "size_bytes": size, "transport": "shm", "latency_ns": {"p50": 1e15}, "bytes_per_second": 1e-3} for size in sizes]
        for result in results:
            result.update(changes)
        path = self.file("old.json")
        pathlib.Path(path).write_text(json.dumps({"schema": "sluice.perf/1", "results": results}), encoding="utf-8")
        return path

    def refused(self, path, *parts, test="send_lat", more=("-s", "64")):
        done = self.run_command("perf", test, *LOAD, *more, "--baseline", path, "--fail-if-worse", "10%", expect=2)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for part in ("--baseline", *parts, "example"):
            self.assertIn(part, done.stderr)

    def test_a_run_compares_with_the_document_of_another(self):
        path = self.file("first.json")
        arguments = ("perf", "send_bw", *LOAD, "-a")
        self.run_command(*arguments, "--json", path)
        done = self.run_command(*arguments, "--baseline", path)
        self.assertEqual(len([line for line in done.stderr.splitlines() if "in the baseline" in line]), 23)

    def test_what_is_better_passes_and_says_so(self):
        for test in ("send_lat", "send_bw"):
            done = self.run_command("perf", test, *LOAD, "-s", "64", "--baseline", self.baseline(test), "--fail-if-worse", "10%")
            self.assertRegex(done.stderr, r"^sluice perf: 64 bytes: (median|bandwidth) .* in the baseline .*: [\d.]+ % better, limit 10 %\n$")

    def test_what_is_worse_ends_with_3_and_the_figures_are_there_nevertheless(self):
        for test, change in (("send_lat", {"latency_ns": {"p50": 1e-3}}), ("send_bw", {"bytes_per_second": 1e18})):
            with self.subTest(test=test):
                path = self.baseline(test, **change)
                done = self.run_command("perf", test, *LOAD, "-s", "64", "--baseline", path, "--fail-if-worse", "10%", "--format", "json", expect=3)
                self.assertIn("% worse, limit 10 %", done.stderr)
                document = json.loads(done.stdout)
                self.assertEqual(document["baseline"]["limit_percent"], 10)
                comparison, = document["baseline"]["comparisons"]
                self.assertTrue(comparison["missed"])
                self.assertEqual(comparison["size_bytes"], 64)
                self.assertGreater(comparison["worse_percent"], 10)
                self.assertEqual(len(document["results"]), 1)
                # Without a limit it is only told.
                self.run_command("perf", test, *LOAD, "-s", "64", "--baseline", path)

    def test_one_size_of_many_is_enough(self):
        sizes = [2 ** exponent for exponent in range(1, 24)]
        path = self.baseline("send_bw", sizes)
        document = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        document["results"][7]["bytes_per_second"] = 1e18
        pathlib.Path(path).write_text(json.dumps(document), encoding="utf-8")
        done = self.run_command("perf", "send_bw", "--self", "--transport", "shm", "-n", "5", "-a", "--baseline", path, "--fail-if-worse", "10", expect=3)
        self.assertEqual([line.split()[2] for line in done.stderr.splitlines() if "worse" in line], ["256"])

    def test_another_path_is_named(self):
        done = self.run_command("perf", "send_lat", *LOAD, "-s", "64", "--baseline", self.baseline(transport="verbs"))
        self.assertIn("over shm, the baseline over verbs", done.stderr)

    def test_what_cannot_be_compared_with_is_refused_before_anything_is_measured(self):
        self.refused("/nowhere/old.json", "cannot be read", "No such file")
        self.refused(self.folder, "--baseline")
        path = self.file("old.json")
        for text, why in (("", "no JSON"), ("[1]", "no JSON"), ("{", "no JSON"), ("{}", "schema ''"), ('{"schema": "sluice.perf/2"}', "'sluice.perf/2', not 'sluice.perf/1'"),
                          ('{"schema": 1}', "schema"), ('{"schema": "sluice.perf/1"}', "no results"), ('{"schema": "sluice.perf/1", "results": [1, {}, null]}', "no send_lat")):
            with self.subTest(text=text):
                pathlib.Path(path).write_text(text, encoding="utf-8")
                self.refused(path, why)
        self.refused(self.baseline("write_lat"), "has no send_lat of 64 bytes, but write_lat of 64 bytes")
        self.refused(self.baseline(sizes=(128, 256)), "send_lat of 128 bytes, send_lat of 256 bytes")
        self.refused(self.baseline("send_bw", sizes=(2, 4)), "has no send_bw of 8 bytes", test="send_bw", more=("-a",))
        for figure in (0, -1, "1", None, {}):
            self.refused(self.baseline(latency_ns={"p50": figure}), "no figure")
        self.refused(self.baseline(latency_ns=[5]), "no figure")

    def test_flags_of_thresholds_that_mean_nothing_are_refused(self):
        def assert_usage(arguments, *parts):
            done = self.run_command("perf", *arguments, expect=2)
            for part in parts:
                self.assertIn(part, done.stderr)
        assert_usage(["send_lat", "--self", "--fail-if-worse", "10%"], "--fail-if-worse", "--baseline")
        for limit in ("x", "-1", "10%%", "1001", "nan", ""):
            assert_usage(["send_lat", "--self", "--baseline", self.baseline(), f"--fail-if-worse={limit}"], "--fail-if-worse")
        assert_usage(["send_bw", "--self", "-s", "64", "--baseline", self.baseline("send_bw"), "--fail-if-worse", "100%"], "--fail-if-worse")
        assert_usage(["send_lat", "--baseline", self.baseline()], "--baseline", "server")
        assert_usage(["send_bw", "-w", "5"], "--limit_bw", "server")


class Limits(command.CommandTest):
    def test_less_than_a_limit_ends_with_3(self):
        for flag, name in (("-w", "--limit_bw"), ("-y", "--limit_msgrate")):
            done = self.run_command("perf", "send_bw", *LOAD, flag, "1e11", expect=3)
            self.assertIn(name, done.stderr)
            self.assertEqual(len(done.stdout.splitlines()), 2)
            done = self.run_command("perf", "send_bw", *LOAD, flag, "0.0000001")
            self.assertEqual(done.stderr, "")

    def test_a_limit_is_in_gigabits_where_the_report_is(self):
        done = self.run_command("perf", "send_bw", *LOAD, "--report_gbits", "--format", "perftest", "-w", "1e6", expect=3)
        self.assertIn("Gb/s are below --limit_bw", done.stderr)


if __name__ == "__main__":
    command.main()
