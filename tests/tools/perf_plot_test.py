#!/usr/bin/env python3
"""`sluice perf --plot`: the figures of a run as a chart, as a script, as bars."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import xml.etree.ElementTree

import command

SVG = "{http://www.w3.org/2000/svg}"
SIZES = [2 ** exponent for exponent in range(1, 24)]


class Plots(command.CommandTest):
    def run_all(self, test, name, *more):
        path, beside = self.file(name), self.file("figures.json")
        self.run_command("perf", test, "--self", "--transport", "shm", "-a", "-n", "5", "--plot", path, "--json", beside, *more)
        return pathlib.Path(path).read_text(encoding="utf-8"), json.loads(pathlib.Path(beside).read_text(encoding="utf-8"))["results"]

    def test_a_chart_is_one_well_formed_file_with_every_size(self):
        for test, unit, band in (("send_lat", "us", 1), ("send_bw", "MiB/s", 0)):
            with self.subTest(test=test):
                text, results = self.run_all(test, "chart.svg")
                root = xml.etree.ElementTree.fromstring(text)
                self.assertEqual(root.tag, SVG + "svg")
                self.assertEqual(root.find(SVG + "title").text, f"{test} over shm")
                marks = [mark.find(SVG + "title").text for mark in root.iter(SVG + "circle")]
                self.assertEqual([int(mark.split(" ")[0]) for mark in marks], SIZES)
                figures = [result["latency_ns"]["p50"] / 1e3 if band else result["bytes_per_second"] / 2 ** 20 for result in results]
                for mark, figure in zip(marks, figures):
                    self.assertAlmostEqual(float(mark.split(" ")[2]) / figure, 1, delta=1e-4)
                    self.assertTrue(mark.endswith(unit))
                self.assertEqual(len(list(root.iter(SVG + "polygon"))), band)

    def test_a_script_has_the_figures_and_gnuplot_takes_it(self):
        text, results = self.run_all("send_lat", "chart.gp")
        rows = re.findall(r"^(\d+) ([\d.e+-]+) ([\d.e+-]+)$", text, re.MULTILINE)
        self.assertEqual([int(row[0]) for row in rows], SIZES)
        for row, result in zip(rows, results):
            self.assertAlmostEqual(float(row[1]), result["latency_ns"]["p50"] / 1e3, delta=1e-3)
            self.assertAlmostEqual(float(row[2]), result["latency_ns"]["p99"] / 1e3, delta=1e-3)
        if shutil.which("gnuplot") is None:
            return
        drawn = subprocess.run(["gnuplot", "-e", "set terminal svg", os.path.join(self.folder, "chart.gp")], capture_output=True, text=True, timeout=60, check=True)
        self.assertIn("<svg", drawn.stdout)

    def test_bars_follow_the_table(self):
        lines = self.run_command("perf", "send_bw", "--self", "--transport", "shm", "-n", "5", "--perturb", "3", "-s", "64", "--plot", "-").stdout.splitlines()
        self.assertEqual(len(lines), 4 + 4)
        self.assertEqual(lines[4], "send_bw over shm, bandwidth [MiB/s]")
        self.assertEqual([line.split()[0] for line in lines[5:]], ["61", "64", "67"])
        self.assertEqual(max(line.count("#") for line in lines[5:]), 50)

    def test_what_cannot_be_drawn_is_refused_before_the_run(self):
        for path, why in (("/nowhere/chart.svg", "No such file"), (os.path.join(self.folder, "chart.png"), ".svg"), ("", ".svg"), ("chart", ".gp")):
            done = self.run_command("perf", "send_lat", "--self", "--plot", path, expect=2)
            for part in ("--plot", why, "example"):
                self.assertIn(part, done.stderr)
        self.run_command("perf", "send_lat", "--self", "--plot", "-", "--format", "csv", expect=2)
        self.run_command("perf", "send_lat", "--self", "--plot", "-", "--json", "-", expect=2)
        self.run_command("perf", "send_lat", "--plot", "-", expect=2)

    def test_nothing_is_drawn_of_damaged_bytes(self):
        self.run_command("perf", "send_lat", "--self", "--transport", "shm", "-n", "5", "--corrupt", "--plot", os.path.join(self.folder, "none.svg"), expect=4)


if __name__ == "__main__":
    command.main()
