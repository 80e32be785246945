#!/usr/bin/env python3
"""Tests of profiles.py, on programs that print made-up figures."""
import contextlib
import io
import json
import os
import stat
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import profiles  # noqa: E402

# A program that is recorded leaves a file; advice names what the test says.
SLUICE = """#!/bin/sh
if [ "$1" = demo ]; then
  case "$SLUICE_WAITING" in spin) s=0.1;; sleep) s=0.2;; *) s=0.3;; esac
  for last; do :; done
  echo "{\\"results\\":
    [{\\"step_seconds\\": {\\"max\\": 9, \\"median\\": $s, \\"min\\": 0}}]}" >"$last"
  exit
fi
if [ "$2" = record ]; then touch "$4/one"; shift 5; exec "$@"; fi
echo '{"answers": [{"about": "waiting", "named": "%s",
  "ways": [{"name": "latency", "time_by_fastest": 1.5}]}]}'
"""
NPB = """#!/bin/sh
case "$SLUICE_WAITING" in spin) s=%s;; sleep) s=%s;; *) s=%s;; esac
echo "{\\"seconds\\": $s}"
exit %d
"""


class Profiles(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def program(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, stat.S_IRWXU)
        return path

    def run_it(self, named, spin, sleep, adaptive, code=0, only="is W, shared: 2 on 1"):
        sluice, npb = self.program("sluice", SLUICE % named), self.program(
            "npb", NPB % (spin, sleep, adaptive, code))
        found = os.path.join(self.folder.name, "out.json")
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = profiles.main(
                ["--sluice", sluice, "--npb", npb, "--only", only, "--rounds", "3", "--json", found]
            )
        rows = []
        if os.path.exists(found):
            with open(found, encoding="utf-8") as file:
                rows = json.load(file)
        return code, out.getvalue(), errors.getvalue(), rows

    def test_advice_is_right_if_it_names_the_fastest_or_one_within_five_percent(self):
        for adaptive in ("0.1", "0.104"):
            code, out, _, rows = self.run_it("automatic", "0.1", "0.2", adaptive)
            self.assertEqual(code, 0)
            self.assertIn("| automatic | latency | right |", out)
            self.assertEqual(len(rows[0]["seconds"]["latency"]), 3)

    def test_the_main_job_is_judged_by_its_steps(self):
        code, out, errors, rows = self.run_it(
            "latency", "1", "1", "1", only="demo vgg16, shared: 2 on 1")
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("| latency | latency | right |", out)
        self.assertEqual(rows[0]["seconds"]["latency"], [0.1] * 3)

    def test_advice_is_wrong_if_what_it_names_takes_longer(self):
        code, out, _, rows = self.run_it("automatic", "0.1", "0.2", "0.106")
        self.assertEqual(code, 1)
        self.assertIn("1.50, -, - | 1.00, 2.00, 1.06 | automatic | latency | wrong |", out)
        self.assertFalse(rows[0]["right"])

    def test_a_profile_that_is_far_behind_is_run_once(self):
        _, _, _, rows = self.run_it("low-cpu", "0.9", "0.2", "0.2")
        self.assertEqual(rows[0]["seconds"]["latency"], [0.9, None, None])
        self.assertTrue(rows[0]["right"])

    def test_a_program_that_ends_in_time_under_no_profile_is_named(self):
        before, profiles.Case.run = profiles.Case.run, lambda self, profile=None, under=(): None
        self.addCleanup(setattr, profiles.Case, "run", before)
        code, _, errors, _ = self.run_it("automatic", "1", "1", "1")
        self.assertEqual(code, 2)
        self.assertIn("is W, shared: 2 on 1: under no profile it ended within 20 s", errors)

    def test_a_program_that_fails_is_named(self):
        code, _, errors, _ = self.run_it("automatic", "1", "1", "1", code=4)
        self.assertEqual(code, 2)
        self.assertIn("exit code 4", errors)


if __name__ == "__main__":
    unittest.main(verbosity=2)
