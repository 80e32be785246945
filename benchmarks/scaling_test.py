#!/usr/bin/env python3
"""Tests of scaling.py, on programs that print made-up tables."""
import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = """#!/bin/sh
echo "asked: $*" >&2
echo ' workers  servers      step ms   speed-up  efficiency    NIC %%    cores %%'
echo '       1        1     1408.536       1.00      100.0%%       20         21     1055.6'
echo '      16       16     1601.000      %s       88.0%%       59         13   16889.3'
exit %d
"""


class Scaling(unittest.TestCase):
    def run_with(self, text, workers="16"):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "sluice")
            with open(program, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(program, stat.S_IRWXU)
            command = [sys.executable, "-B", os.path.join(HERE, "scaling.py"), "--workers", workers,
                       "--", program, "graph", "scale"]
            return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_the_speed_up_is_that_of_the_line_of_so_many_workers(self):
        done = self.run_with(TABLE % ("14.08", 0))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout), {"name": "scaling", "mode": "16 workers",
                                                   "verified": True, "speed_up": 14.08})

    def test_a_table_without_the_line_or_without_a_number_has_no_figure(self):
        for text, workers in ((TABLE % ("14.08", 0), "8"), (TABLE % ("many", 0), "16"),
                              ("#!/bin/sh\n", "16")):
            done = self.run_with(text, workers)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("printed no line of", done.stderr)

    def test_a_command_that_fails_is_named_with_what_it_said(self):
        done = self.run_with(TABLE % ("14.08", 2))
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("exit code 2: asked: graph scale --scale 1,16 --costs", done.stderr)


if __name__ == "__main__":
    unittest.main()
