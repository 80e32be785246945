#!/usr/bin/env python3
"""Relative links of the documents: the file is there, and the anchor is a heading of it.

    tools/site/links.py [ROOT]        prints dead links; exit 1 if there are any
"""
import os
import re
import sys
import urllib.parse

_FENCE = re.compile(r"^(\s*)(```|~~~).*?^\s*\2\s*$", re.M | re.S)
_SPAN = re.compile(r"`[^`\n]*`")
# [text](target), with text that may go on in the next line
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.M)


def _blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def _spans_as_text(text):
    """Code in spans cannot hold a link; its brackets would be taken for one."""
    return _SPAN.sub(lambda match: "".join("x" if c in "[]()" else c for c in match.group(0)), text)


def documents(root):
    """Paths of the Markdown files of the tree."""
    for base, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "bazel-")))
        for name in sorted(names):
            if name.endswith(".md"):
                yield os.path.relpath(os.path.join(base, name), root)


def links(text):
    """(number of the line, target) of each link that is not code."""
    text = _spans_as_text(_FENCE.sub(_blank, text))
    for match in _LINK.finditer(text):
        yield text.count("\n", 0, match.start(1)) + 1, match.group(1)


def prose(text):
    """(number, line) of the lines that are neither code nor rows of a table."""
    for number, line in enumerate(_FENCE.sub(_blank, text).split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("|"):
            yield number, line


def anchors(text):
    """What GitHub and MkDocs call the headings: small letters, no punctuation, `-` for a space."""
    found = set()
    for heading in _HEADING.findall(_FENCE.sub(_blank, text)):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        number, wanted = 1, name
        while name in found:
            name = "%s-%d" % (wanted, number)
            number += 1
        found.add(name)
    return found


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def dead(root):
    """One line of text for each link that leads nowhere."""
    for document in documents(root):
        for number, target in links(read(os.path.join(root, document))):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue  # of another site
            path, _, anchor = target.partition("#")
            where = "%s:%d: " % (document, number)
            full = os.path.join(root, os.path.dirname(document), urllib.parse.unquote(path))
            full = os.path.normpath(full) if path else os.path.join(root, document)
            if os.path.relpath(full, root).startswith(".."):
                yield where + "%s is outside the tree" % target
            elif not os.path.exists(full):
                yield where + "no file %s" % target
            elif anchor and not (full.endswith(".md") and anchor in anchors(read(full))):
                yield where + "no heading #%s in %s" % (anchor, os.path.relpath(full, root))


def tree_root():
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def main():
    found = list(dead(os.path.realpath(sys.argv[1]) if len(sys.argv) > 1 else tree_root()))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
