#!/usr/bin/env python3
"""SECURITY.md promises nothing without a test, and the check of that sees what is wrong."""
import os
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import claims  # noqa: E402

TABLE = claims.HEADING + "\n\n| claim | test |\n|---|---|\n"


class Claims(unittest.TestCase):
    def test_each_claim_names_a_test_that_exists(self):
        found = list(claims.wrong(claims.tree_root()))
        self.assertEqual(found, [], "\n" + "\n".join(found))
        with open(os.path.join(claims.tree_root(), "SECURITY.md"), encoding="utf-8") as file:
            self.assertGreater(len(list(claims.rows(file.read()))), 20)

    def of(self, table):
        root = tempfile.mkdtemp(prefix="sluice-claims.")
        self.addCleanup(shutil.rmtree, root)
        for path, text in {"SECURITY.md": table, "a_test.cc": 'TEST_CASE("it holds", "[a]") {}\n',
                           "b_test.py": "    def test_it_holds(self):\n",
                           "cut_test.cc": 'TEST_CASE(\n    "a long "\n    "name of a case", "[a]") {}\n'}.items():
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        return list(claims.wrong(root))

    def test_tests_of_both_languages_are_found(self):
        self.assertEqual(self.of(TABLE + '| One. | `a_test.cc` "it holds" |\n| Two. | `b_test.py` "test_it_holds" |\n\n## Next\n\n| x | y |\n'), [])

    def test_a_name_that_the_formatter_cut_is_found(self):
        self.assertEqual(self.of(TABLE + '| One. | `cut_test.cc` "a long name of a case" |\n'), [])

    def test_what_is_missing_is_named(self):
        self.assertIn("no table", self.of("# Security\n")[0])
        self.assertIn("has no case 'it does not'", self.of(TABLE + '| One. | `a_test.cc` "it does not" |\n')[0])
        self.assertIn("no file c_test.cc", self.of(TABLE + '| One. | `c_test.cc` "it holds" |\n')[0])
        self.assertIn("no test is named", self.of(TABLE + "| One. | tried by hand |\n")[0])
        row = '| One. | `a_test.cc` "it holds" |\n'
        self.assertIn("named twice", self.of(TABLE + row + row)[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
