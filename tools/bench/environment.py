"""What a figure depends on: the machine (benchmarks/machine.py), and which sluice it was."""
import os
import re
import subprocess

import machine


def describe(root):
    return dict(version=_version(root), commit=_commit(root), **machine.describe())


def _version(root):
    try:
        with open(os.path.join(root, "tools", "version.h"), encoding="utf-8") as file:
            found = re.search(r'kVersion = "([^"]+)"', file.read())
            return found.group(1) if found else "unknown"
    except OSError:
        return "unknown"


def _commit(root):
    done = subprocess.run(
        ["git", "-C", root, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True,
        text=True, check=False)
    return done.stdout.strip() or "unknown"
