#!/usr/bin/env python3
"""Plants bugs by rules in copies of the sources, and lists those that no test notices.

    tests/mutants/run.py [--seed N] [--count N] [--part K --of N] [--only PREFIX] [--rule RULE] [--list] [--repeat KEY]

The seed alone decides which bugs are planted and in which order: the rooms in turn, in each room the rules in
turn. Bugs that do not compile, or that compile to what was there before, do not count. Each of the others is
met by the tests that are nearest to its file (nearest.py), one after the other, until one fails twice or hangs; a
survivor is printed with its place and its difference, and looked up in survivors.md, which explains those that no
test can notice. The checkout is not touched: everything happens in a copy, which is removed at the end; compiled
objects are kept in --cache. What was tried goes to --ledger, and is not tried again on the same sources.
Ends with "N planted, N caught, N explained, N survived"; exit code 1 if less than --enough of those that are not
explained were caught."""
import argparse
import difflib
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import build
import nearest
import rules

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KEPT = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "sluice-mutants"
SURVIVORS = pathlib.Path(__file__).resolve().parent / "survivors.md"


class Mutant:
    def __init__(self, file, text, site):
        self.file, self.text, self.site = file, text, site
        self.key = site.key(file, text)
        self.line = text.count("\n", 0, site.at) + 1
        self.planted = site.apply(text)

    def difference(self):
        lines = difflib.unified_diff(self.text.splitlines(), self.planted.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def files_of(root, room, prefix=""):
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *nearest.ROOMS[room]], cwd=root, check=True, stdout=subprocess.PIPE,
                           text=True).stdout.splitlines()
    return sorted(name for name in names
                  if name.startswith(prefix) and not name.startswith(nearest.LEFT_OUT) and "_test." not in name and "/testing" not in name
                  and (name.endswith((".cc", ".c")) or name in nearest.HEADERS))


def choose(root, seed, prefix="", rule=""):
    """All that could be planted, in the order in which it is: room by room in turn, rule by rule in each."""
    queues = []
    for room in nearest.ROOMS:
        by_rule = {name: [] for name in rules.RULES if not rule or name == rule}
        for file in files_of(root, room, prefix):
            text = (pathlib.Path(root) / file).read_text(encoding="utf-8")
            for name, found in rules.sites(text, file.endswith(".c")).items():
                if name in by_rule:
                    by_rule[name] += [Mutant(file, text, site) for site in found]
        chance = random.Random(f"{seed}/{room}")
        lists = [chance.sample(found, len(found)) for found in by_rule.values() if found]
        queues.append(in_turn(lists))
    yield from in_turn(queues)


def in_turn(queues):
    queues = [iter(queue) for queue in queues]
    while queues:
        left = []
        for queue in queues:
            for each in queue:
                yield each
                left.append(queue)
                break
        queues = left


class Trial:
    """Tries one mutant after the other on one tree."""

    def __init__(self, tree, tests_of, quiet=False):
        self.tree, self.tests_of, self.quiet = tree, tests_of, quiet
        self.known_objects = {}

    def baseline(self, name):
        """Its time without a bug; a test that fails so is of no use here, and is said."""
        if name not in self.tree.seconds:
            begin = time.monotonic()
            code, said = self.tree.run(name, self.tree.linked[name], self.tree.library, 600)
            self.tree.seconds[name] = time.monotonic() - begin if code == 0 else None
            if code != 0:
                print(f"LEFT OUT  {name} fails without a bug: {last_words(said)}", file=sys.stderr, flush=True)
        return self.tree.seconds[name]

    def fails(self, name, program, library):
        """How it noticed, or None. Once may be chance."""
        seconds = max(build.SECONDS_AT_LEAST, 10 * self.tree.seconds[name])
        code, said = self.tree.run(name, program, library, seconds)
        if code is None:
            return "hangs"
        if code == 0:
            return None
        again, _ = self.tree.run(name, program, library, seconds)
        return last_words(said) if again != 0 else None

    def attempt(self, mutant):
        """(verdict, by which test, what it said)"""
        tree = self.tree
        folder = tree.folder / "mutant"
        folder.mkdir(exist_ok=True)
        place = tree.folder / mutant.file
        tests = [name for name in self.tests_of(mutant.file) if name in tree.linked]
        place.write_text(mutant.planted, encoding="utf-8")
        try:
            concerned = [source for source, names in tree.made_from.items() if mutant.file in names]
            product = {source for source in concerned if source in tree.product}
            needed = product | {source for name in tests for source in tree.programs[name].sources if source in concerned}
            try:
                instead = {source: tree.compile(source)[0] for source in sorted(needed)}
            except build.Broken as broken:
                return "does not compile", "", str(broken).splitlines()[0][:100] if str(broken) else ""
            same = all(made.read_bytes() == tree.objects[source].read_bytes() for source, made in instead.items())
            if same:
                return "same object", "", ""
            digest = hashlib.sha256(b"".join(instead[source].read_bytes() for source in sorted(instead))).hexdigest()
            before = self.known_objects.setdefault(digest, mutant.key)
            if before != mutant.key:
                return "same object", "", f"as {before}"
            try:
                library = tree.link_library(folder, instead)
            except build.Broken as broken:
                return "does not compile", "", str(broken)[:100]
            for name in tests:
                if self.baseline(name) is None:
                    continue
                program = tree.linked[name]
                if any(source in instead for source in tree.programs[name].sources):
                    program = tree.link_program(name, folder, instead)
                noticed = self.fails(name, program, library)
                if noticed is not None:
                    return "caught", name, noticed
            return "survived", "", ""
        finally:
            place.write_text(mutant.text, encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)


def last_words(said):
    lines = said.splitlines()
    for number, line in enumerate(lines):
        if "FAILED:" in line or "fatal error" in line or "seed " in line:
            return " ".join(part.strip() for part in lines[number:number + 2])[:140]
    return (lines or ["?"])[-1][:140]


def explained():
    return set(re.findall(r"^### `([0-9a-f]{10})`", SURVIVORS.read_text(encoding="utf-8"), re.MULTILINE)) if SURVIVORS.exists() else set()


def stale(root):
    """Explained, and not there any more: the line has changed."""
    there = {mutant.key for mutant in choose(root, 0)}
    return sorted(explained() - there)


def tried_before(path):
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return {(line["key"], line["sources"]): line for line in lines}


class Digests:
    """Of what a verdict depends on most: the file with the bug, and the folders of the tests that are near to it."""

    def __init__(self, root):
        self.root, self.folders = pathlib.Path(root), {}

    def of_folder(self, folder):
        if folder not in self.folders:
            digest = hashlib.sha256()
            for path in sorted((self.root / folder).glob("*")):
                if path.is_file() and path.suffix in (".cc", ".h", ".txt") and (folder.startswith("tests/") or "test" in path.name):
                    digest.update(path.name.encode() + b"\0" + path.read_bytes())
            self.folders[folder] = digest.digest()
        return self.folders[folder]

    def of(self, mutant):
        digest = hashlib.sha256(mutant.text.encode())
        for name in nearest.tests_of(mutant.file):
            digest.update(name.encode() + self.of_folder(name.removeprefix("//").partition(":")[0]))
        return digest.hexdigest()[:16]


def report(mutant, verdict, by, said, explained_keys):
    line = {"key": mutant.key, "file": mutant.file, "line": mutant.line, "rule": mutant.site.rule, "verdict": verdict}
    if by:
        line.update(by=by, said=said)
    if verdict == "survived":
        verdict = "explained" if mutant.key in explained_keys else "SURVIVED"
    print(f"{verdict:16}  {mutant.key}  {mutant.file}:{mutant.line}  {mutant.site.rule}  {by} {said}".rstrip(), flush=True)
    if verdict == "SURVIVED":
        print("\n".join("    " + each for each in mutant.difference().splitlines()), flush=True)
    return line


def program_arguments(programs):
    for name, program in programs.items():
        plain = name.split("?")[0]
        # Catch2's; the first failure is enough.
        program.arguments = nearest.ARGUMENTS.get(plain, [*program.arguments, "--abort"] if uses_catch(program) else program.arguments)


def uses_catch(program):
    return any(source.endswith("catch_main.cc") for source in program.sources)


def run(options):
    digests = Digests(ROOT)
    before = tried_before(options.ledger)
    explained_keys = explained()
    sums = {"planted": 0, "caught": 0, "explained": 0, "survived": 0}
    chosen = choose(ROOT, options.seed, options.only, options.rule)
    if options.repeat:
        chosen = (mutant for mutant in chosen if mutant.key in options.repeat)
    KEPT.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="sluice-mutants.") as folder:
        trial = None
        for number, mutant in enumerate(chosen):
            if number % options.of != options.part:
                continue
            if sums["planted"] >= options.count or time.monotonic() >= end:
                break
            sources = digests.of(mutant)
            line = before.get((mutant.key, sources)) if not options.repeat else None
            if line is None:
                if trial is None:
                    trial = make_trial(folder, options)
                line = report(mutant, *trial.attempt(mutant), explained_keys)
                line["sources"] = sources
                if options.ledger is not None:
                    with options.ledger.open("a") as ledger:
                        ledger.write(json.dumps(line) + "\n")
            if line["verdict"] not in ("caught", "survived"):
                continue
            sums["planted"] += 1
            verdict = line["verdict"] if line["verdict"] == "caught" else "explained" if mutant.key in explained_keys else "survived"
            sums[verdict] += 1
    print(f"{sums['planted']} planted, {sums['caught']} caught, {sums['explained']} explained, {sums['survived']} survived")
    return sums


def make_trial(folder, options):
    names = sorted({name for room in nearest.ROOMS for file in files_of(ROOT, room, options.only) for name in nearest.tests_of(file)})
    programs, product = build.programs_of(ROOT, names)
    program_arguments(programs)
    tree = build.Tree(ROOT, folder, programs, product, options.cache, options.jobs)
    print(f"building {len(product)} sources and {len(names)} tests", file=sys.stderr, flush=True)
    tree.build(names)
    return Trial(tree, nearest.tests_of)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=150, help="so many that compile to something else")
    parser.add_argument("--part", type=int, default=0, help="of so many parts (--of), each a run of its own; from 0")
    parser.add_argument("--of", type=int, default=1)
    parser.add_argument("--only", default="", metavar="PREFIX", help="only in files whose path begins so")
    parser.add_argument("--rule", default="", choices=["", *rules.RULES])
    parser.add_argument("--repeat", nargs="*", metavar="KEY", help="these alone, whatever the ledger says")
    parser.add_argument("--list", action="store_true", help="print what would be planted, and nothing else")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no more after so many")
    parser.add_argument("--enough", type=float, default=0.9)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", type=pathlib.Path, default=KEPT / "objects")
    parser.add_argument("--ledger", type=pathlib.Path, default=KEPT / "ledger.jsonl")
    return parser.parse_args()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the copy goes with us
    options = arguments()
    if options.list:
        for number, mutant in enumerate(choose(ROOT, options.seed, options.only, options.rule)):
            if number >= options.count:
                break
            print(f"{mutant.key}  {mutant.file}:{mutant.line}  {mutant.site.rule}")
            print("\n".join("    " + each for each in mutant.difference().splitlines()))
        return 0
    for key in stale(ROOT):
        print(f"survivors.md explains {key}, which is nowhere: take the entry out", file=sys.stderr)
    sums = run(options)
    judged = sums["planted"] - sums["explained"]
    return 0 if judged == 0 or sums["caught"] >= options.enough * judged else 1


if __name__ == "__main__":
    sys.exit(main())
