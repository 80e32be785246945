#!/usr/bin/env python3
"""Makes the folders that the site is built from: documents, shown sources, and headers for Doxygen.

    tools/site/stage.py ROOT OUT      writes OUT/stage and OUT/headers; removes what was there
"""
import os
import re
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import links  # noqa: E402
import reference  # noqa: E402

_LANGUAGES = {".cc": "cpp", ".h": "cpp", ".c": "c", ".py": "python", ".sh": "bash", "": ""}
MAINPAGE = """sluice: API reference
=====================

The headers that a program includes, most of them by `<sluice/sluice.h>`. Begin with
[the API, level by level](../docs/api.html), which shows the calls in the order in which you need
them. [All documents](../index.html)
"""


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def page_of(target):
    """The page in which the site shows a file or folder that is no document."""
    return target.rstrip("/") + ("/README.md" if target.endswith("/") else ".md")


def source_page(root, path):
    """A folder as a list of its files, or a file as code; and the files it lists."""
    full = os.path.join(root, path)
    if os.path.isdir(full):
        names = sorted(name for name in os.listdir(full)
                       if os.path.isfile(os.path.join(full, name)) and not name.startswith("."))
        listed = "".join("- [`%s`](%s.md)\n" % (name, name) for name in names)
        return "# %s/\n\n%s" % (path, listed), [os.path.join(path, name) for name in names]
    text = links.read(full)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    language = _LANGUAGES.get(os.path.splitext(path)[1], "")
    return "# %s\n\n%s%s\n%s\n%s\n" % (path, fence, language, text.rstrip("\n"), fence), []


def pipes_in_code(text):
    """GitHub wants `a\\|b` in a table's code; Python-Markdown would show the backslash."""
    return re.sub(r"^\|.*$", lambda row: re.sub(
        r"`[^`]*`", lambda code: code.group(0).replace("\\|", "|"), row.group(0)), text, flags=re.M)


def stage_documents(root, out):
    """Copies every document; what it links to that is none becomes a page."""
    wanted = []
    for document in links.documents(root):
        text = links.read(os.path.join(root, document))
        folder = os.path.dirname(document)
        shown = {}
        for _, target in links.links(text):
            path = target.partition("#")[0]
            full = os.path.normpath(os.path.join(root, folder, path))
            if re.match(r"[a-z][a-z0-9+.-]*:", target) or not path or path.endswith(".md"):
                continue
            shown[target] = page_of(path + ("" if path.endswith("/") or os.path.isfile(full) else "/"))
            wanted.append(os.path.relpath(full, root))
        for target, page in shown.items():
            text = re.sub(r"\]\(%s\)" % re.escape(target), "](%s)" % page, text)
        write(os.path.join(out, document), pipes_in_code(text))
    done = set()
    while wanted:
        path = wanted.pop()
        page = os.path.join(out, page_of(path + ("/" if os.path.isdir(os.path.join(root, path)) else "")))
        if path in done or os.path.exists(page):
            continue
        done.add(path)
        text, more = source_page(root, path)
        write(page, text)
        wanted += more


def stage_headers(root, out):
    for name in reference.public_headers(root):
        text = links.read(reference.path_of(root, name))
        write(os.path.join(out, "sluice", name), reference.documented(text))
    write(os.path.join(out, "mainpage.md"), MAINPAGE)


def main():
    root, out = os.path.realpath(sys.argv[1]), sys.argv[2]
    for folder in ("stage", "headers"):
        shutil.rmtree(os.path.join(out, folder), ignore_errors=True)
    stage_documents(root, os.path.join(out, "stage"))
    stage_headers(root, os.path.join(out, "headers"))


if __name__ == "__main__":
    main()
