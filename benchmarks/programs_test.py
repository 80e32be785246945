#!/usr/bin/env python3
"""Runs our own benchmark programs briefly: what they print, that they notice a flipped bit, and that
what is wasted on purpose shows. As bare/bare_test.py for the bare ones. Must not judge speed."""
import json
import os
import subprocess
import unittest

FOLDER = "benchmarks"

# (program, flags, nanoseconds to waste: far more than the program takes by itself)
CASES = [
    ("cache_victim", ["--mode", "alone", "--working-set", "4096", "-n", "3"], 100_000),
    ("cache_victim", ["--mode", "after_memcpy", "--size", "65536", "--working-set", "4096", "-n", "3"], 100_000),
    ("cache_victim", ["--mode", "after_streaming", "--size", "65536", "--working-set", "4096", "-n", "3"], 100_000),
    ("cache_victim", ["--mode", "beside_memcpy", "--size", "65536", "--working-set", "4096", "-n", "3"], 100_000),
    ("cache_victim", ["--mode", "beside_streaming", "--size", "65536", "--working-set", "4096", "-n", "3"], 100_000),
    ("slp_frame", ["--mode", "header", "-n", "1000"], 100_000),
    ("slp_frame", ["--mode", "protocol", "--size", "100000", "-n", "5"], 1_000_000),
    ("slp_frame", ["--mode", "placed", "--size", "100000", "-n", "5"], 1_000_000),
]


def run(program, flags):
    return subprocess.run([os.path.join(FOLDER, program)] + flags, capture_output=True, text=True, timeout=120)


class EveryProgram(unittest.TestCase):
    def test_prints_one_json_object_with_ordered_times(self):
        for program, flags, _ in CASES:
            with self.subTest(program=program, flags=flags):
                done = run(program, flags)
                self.assertEqual(done.returncode, 0, done.stderr)
                line = json.loads(done.stdout)
                self.assertEqual((line["name"], line["verified"]), (program, True))
                self.assertGreater(line["cpu_seconds"], 0)
                times = line["seconds"]
                self.assertTrue(0 < times["min"] <= times["p50"] <= times["max"], times)

    def test_prints_no_figure_when_one_bit_is_wrong(self):
        for program, flags, _ in CASES:
            with self.subTest(program=program, flags=flags):
                done = run(program, flags + ["--corrupt"])
                self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)
                self.assertIn("did not verify", done.stderr)

    def test_gets_slower_by_what_it_was_told_to_waste(self):
        for program, flags, wasted_ns in CASES:
            with self.subTest(program=program, flags=flags):
                done = run(program, flags[:-1] + ["1", "--slow-ns", str(wasted_ns)])
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertGreaterEqual(json.loads(done.stdout)["seconds"]["min"] * 1e9, wasted_ns * 0.999)


if __name__ == "__main__":
    unittest.main()
