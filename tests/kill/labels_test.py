#!/usr/bin/env python3
"""The list of labels in labels.cc is that of the fault points in transport/: none is missing, none is gone."""
import os
import re
import sys

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
CALL = re.compile(r"(?<!void )\bfault_point\(([^;]*)\);")
WORD = re.compile(r'"([a-z0-9]+\.[a-z_]+)"')


def in_sources():
    found = {}
    for base, _, names in os.walk(os.path.join(TREE, "transport")):
        for name in sorted(names):
            if not name.endswith((".cc", ".h")) or name.endswith("_test.cc"):
                continue
            with open(os.path.join(base, name), encoding="utf-8") as file:
                for call in CALL.findall(file.read()):
                    words = WORD.findall(call)
                    if not words and call.strip() != "const char*":
                        sys.exit(f"{name}: fault_point({call}) names no label")
                    found.update((word, name) for word in words)
    return found


def main():
    sources = in_sources()
    with open(os.path.join(TREE, "tests/kill/labels.cc"), encoding="utf-8") as file:
        listed = re.findall(r'\{"([a-z0-9]+\.[a-z_]+)"', file.read())
    wrong = [f"{word} ({where}) is missing in tests/kill/labels.cc" for word, where in sorted(sources.items()) if word not in listed]
    wrong += [f"{word} in tests/kill/labels.cc is nowhere in transport/" for word in listed if word not in sources]
    wrong += [f"{word} is listed twice" for word in sorted(set(listed)) if listed.count(word) > 1]
    if not sources:
        wrong.append(f"no fault point found under {TREE}/transport")
    print("\n".join(wrong) or f"{len(listed)} labels in the sources and in the list")
    return 1 if wrong else 0


sys.exit(main())
