#!/usr/bin/env python3
"""Prints the patterns of all packages of this tree, in place of `//...`.

    tools/build/packages.py [ROOT]        //:all //allocator/... //benchmarks/... and so on

Bazel's links (bazel-bin and such) lead out of the tree. It leaves out those that it made itself. A
link of another output base, which stays behind when a clone is renamed or another --output_base was
used, it follows: `//...` then has the packages of a foreign folder, most of which cannot be loaded.
"""
import os
import sys

sys.dont_write_bytecode = True


def patterns(root):
    def has_package(folder):
        return any("BUILD" in names for _, _, names in os.walk(os.path.join(root, folder)))  # follows no links

    folders = sorted(entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."))
    return ["//:all"] + [f"//{folder}/..." for folder in folders if has_package(folder)]


if __name__ == "__main__":
    here = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..")
    print(" ".join(patterns(sys.argv[1] if len(sys.argv) > 1 else here)))
