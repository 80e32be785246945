#!/usr/bin/env python3
"""Links of a built site: every file and anchor is there, and no page loads anything from elsewhere.

    tools/site/check_site.py SITE        prints what is wrong; exit 1 if anything is
"""
import html.parser
import os
import re
import sys
import urllib.parse

# Doxygen 1.9.4 links to the list of a class's private classes, which it leaves out.
_DOXYGENS_OWN = "nested-classes"
_OTHER = re.compile(r"^[a-z][a-z0-9+.-]*:", re.I)


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], set()

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors.update(filter(None, (values.get("id"), values.get("name") if tag == "a" else None)))
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        loaded = values.get("src") or (values.get("href") if tag == "link" else None)
        if loaded and tag in ("script", "img", "link", "iframe", "source"):
            self.loads.append(loaded)


def pages(site):
    for base, _, names in os.walk(site):
        for name in sorted(names):
            if name.endswith(".html"):
                path = os.path.join(base, name)
                page = Page()
                with open(path, encoding="utf-8", errors="replace") as file:
                    page.feed(file.read())
                yield os.path.relpath(path, site), page


def wrong(site):
    """(lines of text for what is wrong, number of links that were followed)."""
    known = dict(pages(site))
    found, followed = [], 0
    for path, page in known.items():
        for target in page.loads:
            if re.match(r"(?!data:|javascript:)[a-z][a-z0-9+.-]*:|//", target):
                found.append("%s loads %s from elsewhere" % (path, target))
        for target in page.links + page.loads:
            if _OTHER.match(target) or target.startswith("//") or path == "404.html":
                continue
            followed += 1
            name, _, anchor = target.partition("#")
            name = urllib.parse.unquote(name.partition("?")[0])
            to = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
            full = os.path.join(site, to)
            if os.path.isdir(full):
                to, full = os.path.join(to, "index.html"), os.path.join(full, "index.html")
            if not os.path.exists(full):
                found.append("%s: no file %s" % (path, target))
            elif anchor not in ("", _DOXYGENS_OWN) and to in known and urllib.parse.unquote(anchor) not in known[to].anchors:
                found.append("%s: no anchor %s" % (path, target))
    return found, followed


def main():
    found, followed = wrong(sys.argv[1])
    print("\n".join(found) if found else "%d links lead somewhere" % followed)
    return 1 if found or not followed else 0


if __name__ == "__main__":
    sys.exit(main())
