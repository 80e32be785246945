#!/usr/bin/env python3
"""Tests of before_after.py, on programs that print made-up figures."""
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

import before_after  # noqa: E402


class BeforeAfter(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def program(self, name, p50, rate, code=0):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                "#!/bin/sh\necho p50_ns,bytes_per_second,messages_per_second\necho"
                f" {p50},{rate},{rate}\necho no such path >&2\nexit {code}\n")
        os.chmod(path, stat.S_IRWXU)
        return path

    def run_it(self, old, new, *more):
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = before_after.main([old, new, "--rounds", "21", *more])
        return code, out.getvalue(), errors.getvalue()

    def test_a_slower_build_fails_in_times_and_in_rates(self):
        old, slower = self.program("old", 100, 1000), self.program("slower", 110, 900)
        for row, ratio in (("shm send_lat", "0.909"), ("tcp send_bw 64K", "0.900")):
            code, out, _ = self.run_it(old, slower, "--only", row)
            self.assertEqual(code, 1)
            self.assertIn(f"{ratio} ({ratio} to {ratio}), 21 rounds: fail", out)

    def test_a_faster_build_and_the_same_one_pass(self):
        old, faster = self.program("old", 100, 1000), self.program("faster", 50, 2000)
        for new in (old, faster):
            code, out, _ = self.run_it(old, new)
            self.assertEqual(code, 0, out)
            self.assertEqual(out.count(": pass"), len(before_after.ROWS))

    def test_all_figures_are_in_the_json(self):
        path = os.path.join(self.folder.name, "out.json")
        self.run_it(
            self.program("old", 100, 1000), self.program("new", 100, 1000), "--only",
            "udp send_lat", "--json", path)
        with open(path, encoding="utf-8") as file:
            row, = json.load(file)
        self.assertEqual(
            (row["row"], row["old"], len(row["ratios"])), ("udp send_lat 64", [100.0] * 21, 21))

    def test_a_program_that_fails_is_named_with_what_it_said(self):
        code, _, errors = self.run_it(
            self.program("old", 100, 1000), self.program("new", 1, 1, code=3), "--only",
            "shm send_lat")
        self.assertEqual(code, 2)
        self.assertIn("exit code 3: no such path", errors)

    def test_rows_that_nobody_knows_are_refused_with_those_that_are(self):
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as errors:
            before_after.main(["a", "b", "--only", "frob"])
        self.assertIn("shm send_lat 64", errors.getvalue())


if __name__ == "__main__":
    unittest.main()
