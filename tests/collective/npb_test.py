#!/usr/bin/env python3
"""NPB's kernels over sluice: class S verifies on both paths, and a result that does not verify gives no figure."""
import json
import os
import subprocess
import unittest

NPB = os.path.join(os.environ.get("TEST_SRCDIR", "bazel-bin"), os.environ.get("TEST_WORKSPACE", ""), "benchmarks/npb/npb")


def run(*arguments):
    return subprocess.run([NPB, "--limit", "100", *arguments], capture_output=True, text=True)


class Npb(unittest.TestCase):
    def verifies(self, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertTrue(result["verified"])
        self.assertGreaterEqual(result["communication_share"], 0)
        return result

    def test_class_s_has_the_official_values(self):
        for path in ("shm", "tcp"):
            for kernel in ("is", "cg", "ft", "lu"):
                for ranks in ("2", "4"):
                    with self.subTest(kernel=kernel, path=path, ranks=ranks):
                        self.assertEqual(self.verifies("--kernel", kernel, "--path", path, "--ranks", ranks)["path"], "sluice " + path)

    def test_hpl_solves_on_both_grids_with_every_block(self):
        for rows, path in (("2", "shm"), ("1", "shm"), ("2", "tcp"), ("1", "tcp")):
            for block in ("32", "64", "128"):
                with self.subTest(rows=rows, path=path, block=block):
                    result = self.verifies("--kernel", "hpl", "--order", "512", "--block", block, "--ranks", "4", "--rows", rows, "--path", path)
                    self.assertLess(result["residual"], 16)
                    self.assertEqual(result["grid"], {"2": "2x2", "1": "1x4"}[rows])

    def test_a_wrong_result_gives_no_figure(self):
        for arguments in (("is",), ("cg",), ("ft",), ("lu",), ("hpl", "--order", "128", "--block", "32"), ("allreduce", "--bytes", "4096", "-n", "10")):
            with self.subTest(kernel=arguments[0]):
                done = run("--kernel", *arguments, "--corrupt")
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertIn("did not verify", done.stderr)

    def test_wrong_flags_are_refused_by_name(self):
        for arguments, text in ((("--kernel", "ep"), "--kernel 'ep'"), (("--kernel", "is", "--class", "B"), "--class B"),
                                (("--kernel", "is", "--ranks", "0"), "--ranks 0"), (("--kernel", "cg", "--ranks", "3"), "rows do not divide"),
                                (("--kernel", "is", "--path", "pigeon"), "--path pigeon"), (("--nonsense",), "--nonsense"),
                                (("--kernel", "hpl", "--order", "100", "--block", "32"), "--block must divide"),
                                (("--kernel", "lu", "--ranks", "7"), "too many for class S")):
            with self.subTest(arguments=arguments):
                done = run(*arguments)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(text, done.stderr)
                self.assertEqual(done.stderr.count("usage:"), 1, "said before ranks meet, by one of them: " + done.stderr)
                self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main(verbosity=2)
