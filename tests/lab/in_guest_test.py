#!/usr/bin/env python3
"""What guest_test makes of its arguments and of Bazel's environment, and that no guest is a failure. The lab is a stand-in."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "in_guest.py")
STAND_IN = "import os, sys\nprint(sys.argv[1:], os.environ['SLUICE_REQUIRE'])\nsys.exit(int(os.environ['STATUS']))\n"


class InGuest(unittest.TestCase):
    def run_it(self, *arguments, status=0, **environment):
        with tempfile.TemporaryDirectory() as folder:
            lab = pathlib.Path(folder) / "tools" / "lab" / "lab.py"
            lab.parent.mkdir(parents=True)
            lab.write_text(STAND_IN, encoding="utf-8")
            return subprocess.run([sys.executable, "-B", PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, check=False,
                                  env={"PATH": os.environ["PATH"], "STATUS": str(status), **environment})

    def test_options_and_command_are_passed_on_with_bazels_deadline_and_folder(self):
        done = self.run_it("--nodes", "2", "--peer-program", "server -x", "--", "client", "--", "y", TEST_TIMEOUT="300", TEST_UNDECLARED_OUTPUTS_DIR="/out")
        self.assertEqual(done.stdout, "['run', '--verbose', '--timeout', '275s', '--nodes', '2', '--peer', 'server -x', '--artifacts', '/out', '--', "
                                      "'client', '--', 'y'] rdma\n", done.stderr)

    def test_what_is_required_already_stays_required(self):
        self.assertTrue(self.run_it("--", "x", SLUICE_REQUIRE="netns").stdout.endswith(" netns,rdma\n"))

    def test_the_status_comes_back(self):
        for status in (0, 1, 41, 99, 124):
            self.assertEqual(self.run_it("--", "x", status=status).returncode, status)

    def test_no_guest_is_a_failure_that_says_so(self):
        done = self.run_it("--", "x", status=77)
        self.assertEqual(done.returncode, 77)
        self.assertIn("is not skipped", done.stderr)

    def test_no_command_is_refused(self):
        self.assertEqual(self.run_it("--nodes", "2").returncode, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
