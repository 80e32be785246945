#!/usr/bin/env python3
"""The site's parts: comments become documentation, links become pages, and wrong links are found.

Doxygen reads every public header without a warning. MkDocs, which comes from PyPI, is not run here.
"""
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
import check_site  # noqa: E402
import reference  # noqa: E402
import stage  # noqa: E402


def write(root, files):
    for path, text in files.items():
        stage.write(os.path.join(root, path), text)


def doxygen(folder):
    """Exit code and warnings for the headers in `folder`."""
    with open(os.path.join(HERE, "Doxyfile"), encoding="utf-8") as file:
        settings = file.read()
    with tempfile.TemporaryDirectory(prefix="sluice-doxygen.") as out:
        path = os.path.join(out, "Doxyfile")
        write(out, {"Doxyfile": settings + "".join(
            '%s = "%s"\n' % pair for pair in (("INPUT", folder), ("STRIP_FROM_PATH", folder),
                                              ("INCLUDE_PATH", folder), ("OUTPUT_DIRECTORY", out),
                                              ("USE_MDFILE_AS_MAINPAGE", "")))})
        try:
            done = subprocess.run(["doxygen", path], capture_output=True, text=True, timeout=240)
        except FileNotFoundError:
            raise AssertionError("doxygen is not installed; type tools/setup --docs") from None
        return done.returncode, done.stderr


class Reference(unittest.TestCase):
    def test_comments_before_and_after_document_what_they_stand_at(self):
        self.assertEqual(
            reference.documented("// A file.\n#ifndef A\n\n// Adds. Thread: any.\nint add(int a);\n"
                                 "struct S {\n  int a;  // one,\n          // and more\n};\n"
                                 "enum E {\n  kA,  // first\n  kB  // last\n};\n#endif  // A\n"),
            "/// @file\n/// A file.\n#ifndef A\n\n/// Adds.\n/// @par Thread\n/// any.\nint add(int a);\n"
            "struct S {\n  int a;  ///< one,\n///< and more\n};\n"
            "enum E {\n  kA,  ///< first\n  kB  ///< last\n};\n#endif  // A\n")

    def test_markup_in_a_comment_is_text_but_for_code(self):
        self.assertEqual(reference.escaped("<a> #b `c<d>` @e"), r"\<a\> \#b `c<d>` \@e")

    def test_a_literal_with_slashes_is_no_comment(self):
        line = '#define A "a  // b";'
        self.assertEqual(reference.documented(line), line)

    def test_every_header_that_a_program_includes_is_public(self):
        found = reference.public_headers(ROOT)
        for name in ("sluice.h", "api/endpoint.h", "exchange/exchange.h", "allocator/dlpack.h"):
            self.assertIn(name, found)
        for name in found:
            self.assertNotIn(name.split("/")[0], ("proto", "shm", "tcp", "verbs", "l2", "wire"), name)

    def test_doxygen_has_no_warning_about_a_public_header(self):
        with tempfile.TemporaryDirectory(prefix="sluice-headers.") as folder:
            stage.stage_headers(ROOT, folder)
            code, text = doxygen(folder)
            self.assertEqual((code, text), (0, ""))

    def test_a_warning_is_a_failure(self):
        with tempfile.TemporaryDirectory(prefix="sluice-headers.") as folder:
            write(folder, {"a.h": "/// @file\n/// @nosuch\nint a();\n"})
            code, text = doxygen(folder)
            self.assertNotEqual(code, 0)
            self.assertIn("nosuch", text)


class Site(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-site.")
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def test_sources_and_folders_that_a_document_links_to_become_pages(self):
        write(self.root, {"in/a.md": "[f](b/) [g](b/c.cc) [h](d.md) [i](https://x.org/) [j](#k)\n",
                          "in/d.md": "x\n", "in/b/c.cc": "int c;\n"})
        out = os.path.join(self.root, "out")
        stage.stage_documents(os.path.join(self.root, "in"), out)
        read = stage.links.read
        self.assertEqual(read(out + "/a.md"),
                         "[f](b/README.md) [g](b/c.cc.md) [h](d.md) [i](https://x.org/) [j](#k)\n")
        self.assertIn("(c.cc.md)", read(out + "/b/README.md"))
        self.assertIn("```cpp\nint c;\n```", read(out + "/b/c.cc.md"))

    def test_a_pipe_in_the_code_of_a_table_is_shown_without_its_backslash(self):
        self.assertEqual(stage.pipes_in_code("| `a\\|b` | c\\|d |\n`e\\|f`\n"), "| `a|b` | c\\|d |\n`e\\|f`\n")

    def wrong(self, text):
        write(self.root, {"a.html": text, "b.html": '<h1 id="x">', "s.js": ""})
        return check_site.wrong(self.root)[0]

    def test_links_that_lead_somewhere_pass(self):
        self.assertEqual(self.wrong('<a href="b.html#x"><a href="https://x.org/"><p id="y">'
                                    '<a href="#y"><script src="s.js"></script>'), [])

    def test_dead_links_and_what_is_loaded_from_elsewhere_are_named(self):
        self.assertEqual(self.wrong('<a href="c.html">'), ["a.html: no file c.html"])
        self.assertEqual(self.wrong('<a href="b.html#z">'), ["a.html: no anchor b.html#z"])
        self.assertEqual(self.wrong('<script src="https://x.org/s.js"></script>'),
                         ["a.html loads https://x.org/s.js from elsewhere"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
