#!/usr/bin/env python3
"""`sluice perf --confidence`: a size is repeated until its figure is known well enough, or often enough."""
import csv
import io
import json
import re
import statistics

import command

# Two-sided Student quantiles of 95 %, by degrees of freedom.
T_95 = {2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 6: 2.4469, 7: 2.3646}


class Confidence(command.CommandTest):
    def check(self, result, most_runs):
        found = result["confidence"]
        values = found["values"]
        self.assertEqual(found["runs"], len(values))
        self.assertGreaterEqual(len(values), 3)
        self.assertLessEqual(len(values), most_runs)
        self.assertAlmostEqual(found["mean"] / statistics.mean(values), 1, delta=1e-9)
        self.assertEqual(found["reached"], found["half_width_percent"] <= found["wanted_percent"])
        if not found["reached"]:
            self.assertEqual(len(values), most_runs)
        if len(values) - 1 in T_95 and found["level_percent"] == 95:
            half = T_95[len(values) - 1] * statistics.stdev(values) / len(values) ** 0.5
            self.assertAlmostEqual(found["high"] - found["mean"], half, delta=half * 1e-3 + 1e-9)
            self.assertAlmostEqual(found["mean"] - found["low"], half, delta=half * 1e-3 + 1e-9)
        return found

    def test_each_size_is_repeated_until_its_figure_is_known(self):
        document = self.perf("send_lat", "--self", "--transport", "shm", "-n", "200", "--confidence", "100", "--perturb", "3", "-s", "64")
        for result in document["results"]:
            found = self.check(result, 30)
            self.assertEqual(found["figure"], "latency_ns.p50")
            self.assertEqual(result["iterations"], 200 * found["runs"])
            # The median of all lies among those of the runs.
            self.assertGreaterEqual(result["latency_ns"]["p50"], min(found["values"]) * 0.999)
            self.assertLessEqual(result["latency_ns"]["p50"], max(found["values"]) * 1.001)
        self.assertEqual(len(document["results"]), 3)

    def test_a_bound_ends_it_with_a_warning(self):
        document = self.perf("send_bw", "--self", "--transport", "tcp", "-s", "4K", "-n", "50", "--confidence", "99,0.01%", "--runs", "5")
        found = self.check(document["results"][0], 5)
        self.assertEqual((found["figure"], found["level_percent"]), ("bytes_per_second", 99))
        self.assertFalse(found["reached"])
        self.assertEqual(len([line for line in document["warnings"] if line.startswith("--confidence: 4 KiB: known to ")]), 1)
        result = document["results"][0]
        # The runs together took as long as their figures say.
        took = sum(50 * 4096 / value for value in found["values"])
        self.assertAlmostEqual(took / result["seconds"], 1, delta=1e-6)

    def test_a_run_may_be_a_time(self):
        result, = self.perf("write_lat", "--self", "--transport", "shm", "-D", "0.05", "--confidence", "100")["results"]
        found = self.check(result, 30)
        self.assertGreaterEqual(result["seconds"], 0.05 * found["runs"])

    def test_the_table_has_a_line_for_it(self):
        done = self.run_command("perf", "send_lat", "--self", "--transport", "shm", "-n", "50", "--confidence", "0.01", "--runs", "3")
        line = done.stdout.splitlines()[2]
        self.assertRegex(line, r"^   95 % interval of the median: [\d.-]+ to [\d.]+ usec, [\d.]+ \+- [\d.]+ %, 3 runs(, wider than was asked for)?$")
        # Three runs may give the same figure. Their interval is then as narrow as was asked.
        width = float(re.search(r"\+- ([\d.]+) %", line)[1])
        # Two decimals are printed: 0.01 may be either.
        if line.endswith("wider than was asked for"):
            self.assertGreaterEqual(width, 0.01, line)
        else:
            self.assertLessEqual(width, 0.01, line)

    def test_csv_has_columns_for_it_at_the_end(self):
        path = self.file("both.json")
        for test, unit, figure in (("send_lat", "ns", "p50_ns"), ("send_bw", "bytes_per_second", "bytes_per_second")):
            with self.subTest(test=test):
                done = self.run_command("perf", test, "--self", "--transport", "shm", "-n", "50", "--confidence", "0.01", "--runs", "3", "--format", "csv", "--json", path)
                row, = csv.DictReader(io.StringIO(done.stdout))
                with open(path, encoding="utf-8") as file:
                    found = json.load(file)["results"][0]["confidence"]
                names = ("low_" + unit, "high_" + unit, "runs", "reached")
                self.assertEqual([float(row["confidence_" + name]) for name in names], [found["low"], found["high"], found["runs"], found["reached"]])
                self.assertEqual(list(row)[-4:], ["confidence_" + name for name in names])
                self.assertIn(figure, row)

    def test_nothing_is_repeated_unasked(self):
        self.assertNotIn("confidence", json.loads(self.run_command("perf", "send_lat", "--self", "-n", "20", "--json", "-").stdout)["results"][0])

    def test_what_makes_no_sense_is_refused(self):
        for flag, arguments in (("--confidence", ["--confidence", "x"]), ("--confidence", ["--confidence", ""]), ("--confidence", ["--confidence", "0"]),
                                ("--confidence", ["--confidence", "101"]), ("--confidence", ["--confidence", "100,5"]), ("--confidence", ["--confidence", "95,5,1"]),
                                ("'perftest' has no place for it; text, json, ndjson and csv have", ["--confidence", "5", "--format", "perftest"]),
                                ("--confidence", ["--confidence", "5", "-D", "1", "--interval", "0.5"]),
                                ("--runs", ["--runs", "5"]), ("--runs", ["--confidence", "5", "--runs", "2"])):
            with self.subTest(arguments=arguments):
                done = self.run_command("perf", "send_lat", "--self", *arguments, expect=2)
                self.assertIn(flag, done.stderr)
                self.assertIn("example", done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1)
        self.run_command("perf", "send_lat", "--confidence", "5", expect=2)


if __name__ == "__main__":
    command.main()
