#!/usr/bin/env python3
"""Every relative link of a document leads somewhere, and the check of that sees a dead one."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools/site"))
import links  # noqa: E402


class Links(unittest.TestCase):
    def test_every_link_of_the_documents_leads_somewhere(self):
        found = list(links.dead(links.tree_root()))
        self.assertEqual(found, [], "\n" + "\n".join(found))
        root, count = links.tree_root(), 0
        for document in links.documents(root):
            count += len(list(links.links(links.read(os.path.join(root, document)))))
        self.assertGreater(count, 50)

    def test_prose_is_wrapped_at_100_columns(self):
        root = links.tree_root()
        generated = ("docs/bench-report.md", "docs/settings.md")
        for document in links.documents(root):
            if document in generated or document.startswith("tests/"):
                continue
            long = [number for number, line in links.prose(links.read(os.path.join(root, document)))
                    if len(line) > 100]
            self.assertEqual(long, [], document)

    def test_tables_and_code_are_no_prose(self):
        text = "one\n```\ntwo\n```\n| three |\nfour\n"
        self.assertEqual(list(links.prose(text)), [(1, "one"), (6, "four")])

    def of(self, text):
        with tempfile.TemporaryDirectory(prefix="sluice-links.") as root:
            os.makedirs(os.path.join(root, "docs"))
            for path, content in {"docs/a.md": text,
                                  "docs/b.md": "# One\n\n## Two: `x()`, three\n\n## One\n",
                                  "c.txt": ""}.items():
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(content)
            return list(links.dead(root))

    def test_files_folders_and_headings_are_found(self):
        self.assertEqual(self.of("# Me\n[a](b.md) [b](../c.txt) [c](b.md#two-x-three)\n[d](#me) "
                                 "[e](../docs/) [f\ng](b.md#one-1) [h](https://example.org/x)\n"), [])

    def test_code_has_no_links(self):
        self.assertEqual(self.of("```\n[a](none)\n```\n`[b](none)`\n"), [])

    def test_a_dead_link_is_named(self):
        self.assertEqual(self.of("x\n[a](none.md)\n"), ["docs/a.md:2: no file none.md"])
        self.assertEqual(self.of("[`[x]` a](none.md)\n"), ["docs/a.md:1: no file none.md"])
        self.assertEqual(self.of("[a](b.md#four)"), ["docs/a.md:1: no heading #four in docs/b.md"])
        self.assertEqual(self.of("[a](#two)"), ["docs/a.md:1: no heading #two in docs/a.md"])
        self.assertEqual(self.of("[a](../c.txt#x)"), ["docs/a.md:1: no heading #x in c.txt"])
        self.assertEqual(self.of("[a](../../c.txt)"), ["docs/a.md:1: ../../c.txt is outside the tree"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
