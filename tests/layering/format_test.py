#!/usr/bin/env python3
"""Every C++ file is formatted: tools/format --check finds nothing, and finds what is planted."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import checks  # noqa: E402


def check(root):
    return subprocess.run([os.path.join(root, "tools/format"), "--check"], capture_output=True, text=True, timeout=240)


class Format(unittest.TestCase):
    def test_every_file_is_formatted(self):
        found = check(checks.tree_root())
        self.assertEqual(found.returncode, 0, found.stderr[-4000:] + "\ntype tools/format")

    def test_a_file_that_is_not_formatted_is_found(self):
        with tempfile.TemporaryDirectory(prefix="sluice-format.") as root:
            os.makedirs(os.path.join(root, "tools"))
            for name in (".clang-format", "tools/format"):
                shutil.copy(os.path.join(checks.tree_root(), name), os.path.join(root, name))
            with open(os.path.join(root, "tools/bad.cc"), "w", encoding="ascii") as file:
                file.write("int  f( ) {return 1 ;}\n")
            found = check(root)
            self.assertNotEqual(found.returncode, 0)
            self.assertIn("tools/bad.cc:1", found.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
