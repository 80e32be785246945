#!/usr/bin/env python3
"""tools/build/packages.py names the packages of the tree, and none behind a link."""
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import checks  # noqa: E402

PROGRAM = os.path.join(checks.tree_root(), "tools/build/packages.py")


def printed(*arguments):
    return subprocess.run([sys.executable, "-B", PROGRAM, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.split()


class Packages(unittest.TestCase):
    def test_a_link_of_another_output_base_is_no_part_of_the_tree(self):
        with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as other:
            for folder in (os.path.join(root, "transport/api"), os.path.join(root, "docs/pictures"), os.path.join(root, ".git"), os.path.join(other, "tools")):
                os.makedirs(folder)
            for folder in (root, os.path.join(root, "transport/api"), os.path.join(root, ".git"), os.path.join(other, "tools")):
                with open(os.path.join(folder, "BUILD"), "w", encoding="ascii"):
                    pass
            os.symlink(other, os.path.join(root, "bazel-old"))
            os.symlink(other, os.path.join(root, "transport/link"))
            self.assertEqual(printed(root), ["//:all", "//transport/..."])

    def test_this_tree(self):
        found = printed()
        for pattern in ("//:all", "//transport/...", "//tests/...", "//plugins/...", "//tools/..."):
            self.assertIn(pattern, found)
        self.assertFalse([pattern for pattern in found if "bazel" in pattern])

    def test_no_program_of_the_tree_asks_for_everything(self):
        for path in ("tools/test", "tests/full.py", "tests/mutants/build.py"):
            with open(os.path.join(checks.tree_root(), path), encoding="utf-8") as file:
                self.assertNotRegex(file.read(), r"(?<![\w/])//\.\.\.", path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
