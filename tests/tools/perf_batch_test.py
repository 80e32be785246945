#!/usr/bin/env python3
"""`sluice perf --batch FILE`: many command lines, checked together, with one document."""
import csv
import io
import json
import os
import pathlib

import command

LINES = """# two tests, three sizes

send_lat --self --transport shm -n 30 -s 64      # the first
sluice perf write_bw --self --transport tcp -n 30 -s 4K
perf send_lat --self --transport loopback -n 30 --perturb 3 -s 256
"""
EXPECTED = [(3, "send_lat", "shm", 64), (4, "write_bw", "tcp", 4096), (5, "send_lat", "loopback", 253), (5, "send_lat", "loopback", 256),
            (5, "send_lat", "loopback", 259)]


def seen(results):
    return [(result["line"], result["test"], result["transport"], result["size_bytes"]) for result in results]


class Batch(command.CommandTest):
    def batch(self, text):
        path = self.file("batch")
        pathlib.Path(path).write_text(text, encoding="utf-8")
        return path

    def test_results_of_all_lines_are_in_one_document_and_in_one_stream(self):
        path = self.batch(LINES)
        document = json.loads(self.run_command("perf", "--batch", path, "--format", "json").stdout)
        self.assertEqual(document["schema"], "sluice.perf/1")
        self.assertEqual(seen(document["results"]), EXPECTED)
        self.assertEqual([line["line"] for line in document["batch"]["lines"]], [3, 4, 5])
        self.assertEqual(document["batch"]["lines"][0]["command"], "send_lat --self --transport shm -n 30 -s 64")
        self.assertEqual([line["environment"]["transport"]["path"] for line in document["batch"]["lines"]], ["shm", "tcp", "loopback"])
        # What one line was pinned to does not bind the next.
        cpus = len(os.sched_getaffinity(0))
        self.assertEqual({line["environment"]["cpus"] for line in document["batch"]["lines"]}, {cpus})
        self.assertEqual({line["environment"]["pinned"] for line in document["batch"]["lines"]}, {cpus >= 2})
        self.assertEqual(json.loads(self.run_command("perf", "--batch", path, "--json", "-").stdout)["batch"]["file"], path)
        lines = [json.loads(line) for line in self.run_command("perf", "--batch", path, "--format", "ndjson").stdout.splitlines()]
        self.assertEqual(seen(lines), EXPECTED)

    def test_a_table_names_the_line_and_csv_has_one_header(self):
        path = self.batch(LINES)
        beside = self.file("beside.json")
        text = self.run_command("perf", "--batch", path, "--json", beside).stdout.splitlines()
        self.assertEqual([line for line in text if line.startswith("# ")],
                         ["# send_lat --self --transport shm -n 30 -s 64", "# sluice perf write_bw --self --transport tcp -n 30 -s 4K",
                          "# perf send_lat --self --transport loopback -n 30 --perturb 3 -s 256"])
        self.assertEqual(seen(json.loads(pathlib.Path(beside).read_text(encoding="utf-8"))["results"]), EXPECTED)
        rows = list(csv.DictReader(io.StringIO(self.run_command("perf", "--batch", path, "--format", "csv").stdout)))
        self.assertEqual([(row["test"], row["transport"], int(row["size_bytes"])) for row in rows], [each[1:] for each in EXPECTED])

    def test_a_line_that_fails_is_named_and_the_others_run(self):
        path = self.batch("send_lat --self --transport shm -n 20\natomic_lat --self\nsend_bw --self --transport shm -n 20 --corrupt\n"
                          "send_lat --self --transport shm -n 20 -y 1e11\nsend_lat --self --transport module\nsend_lat --self --transport shm -n 20\n")
        done = self.run_command("perf", "--batch", path, "--format", "json", expect=4)
        document = json.loads(done.stdout)
        self.assertEqual([line["exit_code"] for line in document["batch"]["lines"]], [0, 1, 4, 3, 77, 0])
        self.assertEqual([result["line"] for result in document["results"]], [1, 4, 6])
        self.assertIn("line 5: nothing here to run on", document["warnings"])
        self.assertIn(f"sluice perf: {path}, line 2: exit code 1", done.stderr)
        path = self.batch("send_lat --self --transport module\n")
        self.run_command("perf", "--batch", path, expect=77)

    def test_csv_has_one_header_where_the_first_line_has_no_result(self):
        path = self.batch("send_bw --self --transport shm -n 20 --corrupt\nsend_lat --self --transport shm -n 20 -s 64\n")
        lines = self.run_command("perf", "--batch", path, "--format", "csv", expect=4).stdout.splitlines()
        self.assertEqual([line.split(",")[0] for line in lines], ["test", "send_lat"])

    def test_every_line_is_checked_before_anything_runs(self):
        for lines, parts in (("send_lat --self -n 20\nsend_lta --self\n", ("line 2", "send_lta")),
                             ("send_lat --self -n 20\n\n# x\nsend_lat --self --itres 5\n", ("line 4", "did you mean --iters?")),
                             ("send_lat --self -s 12x\n", ("line 1", "--size", "12x")),
                             ("send_lat --self -n 5 -D 5\n", ("line 1", "--duration")),
                             ("--self\n", ("line 1", "TEST")),
                             ("send_lat\n", ("line 1", "HOST")),
                             ("send_lat --self --format csv\n", ("line 1", "--format")),
                             ("send_lat --self --json x\n", ("line 1", "--json")),
                             ("send_lat --self --batch x\n", ("line 1", "--batch")),
                             ("send_lat --self --help\n", ("line 1", "help")),
                             ("send_lat --self 'x\n", ("line 1", "quotation")),
                             ("send_lat --self --baseline /nowhere/x\n", ("line 1", "--baseline")),
                             ("# nothing\n", ("no line",))):
            with self.subTest(lines=lines):
                path = self.batch(lines)
                done = self.run_command("perf", "--batch", path, expect=2)
                self.assertEqual(done.stdout, "")
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                for part in ("--batch", path, "example", *parts):
                    self.assertIn(part, done.stderr)

    def test_what_is_beside_a_batch_must_be_of_all_its_lines(self):
        path = self.batch("send_lat --self -n 20 -d rxe0\n")
        for arguments, part in ((["send_lat"], "TEST"), (["-s", "64"], "--size"), (["--self"], "--self"), (["--percentiles", "90"], "--percentiles")):
            done = self.run_command("perf", *arguments, "--batch", path, expect=2)
            self.assertIn("--batch", done.stderr)
            self.assertIn(part, done.stderr)
        done = self.run_command("perf", "--batch", path, "--strict", expect=2)
        self.assertIn("--ib-dev", done.stderr)
        self.run_command("perf", "--batch", "/nowhere/lines", expect=2)
        self.run_command("perf", "--batch", self.folder, expect=2)
        self.run_command("perf", "--batch", path, "--format", "csv", "--json", "-", expect=2)
        for flag in ("--percentiles 90", "--confidence 5", "--under-load 4K"):
            path = self.batch(f"send_lat --self -n 20 {flag}\n")
            done = self.run_command("perf", "--batch", path, "--format", "csv", expect=2)
            self.assertIn(f"{flag.split()[0]}: 'csv' has the same columns for all lines", done.stderr)

    def test_results_of_a_batch_are_a_baseline(self):
        path = self.batch(LINES)
        old = self.file("old.json")
        self.run_command("perf", "--batch", path, "--json", old)
        done = self.run_command("perf", "send_lat", "--self", "--transport", "shm", "-s", "64", "-n", "30", "--baseline", old)
        self.assertIn("in the baseline", done.stderr)


if __name__ == "__main__":
    command.main()
