#!/usr/bin/env python3
"""The promises of SECURITY.md have tests: each row of its table of claims names a file and a case in it that exist.

    tests/layering/claims.py [ROOT]        prints what is wrong; exit 1 if anything is
"""
import os
import re
import sys

HEADING = "## Claims and their tests"
# `path` "name of a case"
_TEST = re.compile(r'^`([^`]+)` "(.+)"$')
_CASE_CC = 'TEST_CASE("%s"'
_CASE_PY = "def %s("
# What the formatter does to a long name: "one "\n  "two", and TEST_CASE(\n    "one"
_CUT = re.compile(r'"\s*\n\s*"|(?<=TEST_CASE\()\s+')


def rows(text):
    """(number of the line, claim, test) of each row of the table."""
    lines = text.split("\n")
    if HEADING not in lines:
        return
    for number, line in enumerate(lines[lines.index(HEADING) + 1:], lines.index(HEADING) + 2):
        if line.startswith("## "):
            return
        if not line.startswith("|") or set(line) <= set("|- ") or line.startswith("| claim |"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        yield number, cells[0], cells[-1] if len(cells) == 2 else ""


def wrong(root):
    """One line of text for each claim without its test."""
    with open(os.path.join(root, "SECURITY.md"), encoding="utf-8") as file:
        found = list(rows(file.read()))
    if not found:
        yield "SECURITY.md: no table under '%s'" % HEADING
    seen = set()
    for number, claim, test in found:
        where = "SECURITY.md:%d: " % number
        match = _TEST.match(test)
        if not match:
            yield where + "no test is named: write `path` \"case\""
            continue
        path, case = match.groups()
        if test in seen:
            yield where + "the test is named twice"
        seen.add(test)
        if not claim and number == found[0][0]:
            yield where + "no claim"
        full = os.path.join(root, path)
        if not os.path.isfile(full):
            yield where + "no file " + path
            continue
        with open(full, encoding="utf-8") as file:
            text = file.read()
        wanted = _CASE_PY % case if path.endswith(".py") else _CASE_CC % case
        if wanted not in _CUT.sub("", text):
            yield where + "%s has no case '%s'" % (path, case)


def tree_root():
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def main():
    found = list(wrong(os.path.realpath(sys.argv[1]) if len(sys.argv) > 1 else tree_root()))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
