"""Builds copies of the tree with one edit each, as cheaply as can be: the product's sources lie in one shared
library, the tests are linked to it once, and a bug costs one compilation and one link. Objects are kept by the
digest of all that they were made from, so that the next run begins where this one ended. Which sources and
environment a test has, Bazel says; Bazel builds nothing here."""
import concurrent.futures
import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import signal
import resource
import subprocess
import threading
import xml.etree.ElementTree as ElementTree

PRODUCT = ("allocator", "transport", "kernel_compat/slp")
# Optimised a little: as fast to build as unoptimised code, and the tests end sooner. No debug information, so that an
# edit which changes nothing gives the same object. Warnings are the compiler's business elsewhere.
OPTIONS = ["-O1", "-fPIC", "-w", "-fno-omit-frame-pointer", "-I.", "-Iinclude"]
CXX = ["g++", "-std=c++20", *OPTIONS]
C = ["gcc", "-std=c11", "-ffreestanding", *OPTIONS]
# Files of cases: their own speed is no matter, and most of their compilation is Catch2's header, which is read once for all.
CASES = [*CXX, "-O0"]
CATCH = "catch2/catch.hpp"
LINK = ["g++", "-fuse-ld=gold"]
LIBRARIES = ["-lfmt", "-lcares", "-lpthread", "-ldl"]
# A test that needs more than ten times as long as without a bug, and at least this, hangs.
SECONDS_AT_LEAST = 20
MOST_MEMORY = 8 << 30  # bytes of data of one test: a bug that allocates for ever harms nobody else


@dataclasses.dataclass
class Program:
    """A test: what is linked into it, and how it is run. One that ends with anything but 0 has noticed."""
    sources: list
    environment: dict = dataclasses.field(default_factory=dict)
    arguments: list = dataclasses.field(default_factory=list)


class Broken(Exception):
    """It does not compile or link."""


def _path_of(label):
    package, _, name = label.removeprefix("//").partition(":")
    return f"{package}/{name}" if package else name


def programs_of(root, labels):
    """(programs by label, the product's sources), as the BUILD files have them. Labels may end with `?NAME=VALUE`: another environment."""
    plain = sorted({label.split("?")[0] for label in labels})
    everywhere = subprocess.run(["tools/build/packages.py"], cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    query = f"deps(set({' '.join(plain)})) intersect set({everywhere})"
    text = subprocess.run(["bazel", "query", "--noshow_progress", "--output=xml", query], cwd=root, check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True).stdout
    rules = {rule.get("name"): rule for rule in ElementTree.fromstring(re.sub(r"^<\?xml.*?\?>", "", text)).iter("rule")}

    def listed(rule, name):
        return [each.get("value") for found in rule.findall("list") if found.get("name") == name for each in found]

    def is_product(label):
        return label.startswith(tuple(f"//{room}" for room in PRODUCT)) and rules[label].get("class") == "cc_library" and \
            not any(each.get("name") == "testonly" and each.get("value") == "true" for each in rules[label].findall("boolean"))

    product = set()

    def gather(label, seen, sources):
        if label in seen or label not in rules:
            return
        seen.add(label)
        of = [_path_of(each) for each in listed(rules[label], "srcs") if each.endswith((".cc", ".c"))]
        (product.update if is_product(label) else sources.extend)(of)
        for each in listed(rules[label], "deps"):
            gather(each, seen, sources)

    programs = {}
    for label in labels:
        name, _, more = label.partition("?")
        sources = []
        gather(name, set(), sources)
        package = name.removeprefix("//").partition(":")[0]
        environment = {pair[0].get("value"): pair[1].get("value") for found in rules[name].findall("dict") if found.get("name") == "env"
                       for pair in found.findall("pair")}
        environment.update(each.split("=", 1) for each in more.split("&") if each)
        arguments = [re.sub(r"\$\((?:root)?location ([^)]*)\)", lambda m: f"{package}/{m.group(1)}", each) for each in listed(rules[name], "args")]
        programs[label] = Program(sources, environment, arguments)
    return programs, sorted(product)


class Cache:
    """Objects by what they were made from, as a compiler cache does it: the source's digest leads to the list of
    what it includes, and their digests to the object."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.making = threading.Lock()

    def _manifest(self, command, source, text):
        return self.folder / ("m" + hashlib.sha256("\0".join([*command, source]).encode() + b"\0" + text).hexdigest())

    @staticmethod
    def _digest(tree, names):
        digest = hashlib.sha256()
        for name in names:
            digest.update(name.encode() + b"\0" + hashlib.sha256((tree / name).read_bytes()).digest())
        return digest.hexdigest()

    def precompiled(self, header, command):
        """A header that includes it, and is ready to use."""
        version = subprocess.run([command[0], "--version"], stdout=subprocess.PIPE, text=True).stdout
        folder = self.folder / ("p" + hashlib.sha256("\0".join([version, header, *command]).encode()).hexdigest()[:16])
        source, made = folder / "all.h", folder / "all.h.gch"
        with self.making:
            if not made.exists():
                folder.mkdir(exist_ok=True)
                source.write_text(f"#include <{header}>\n")
                part = folder / f"t{os.getpid()}"
                subprocess.run([*command, "-x", "c++-header", str(source), "-o", str(part)], cwd=folder, check=True)
                part.rename(made)
        return source

    def compile(self, tree, command, source):
        """(the object's path in the cache, what it was made from inside the tree)."""
        text = (tree / source).read_bytes()
        manifest = self._manifest(command, source, text)
        if manifest.exists():
            names = manifest.read_text().splitlines()
            if all((tree / name).exists() for name in names):
                kept = self.folder / ("o" + manifest.name[1:17] + self._digest(tree, names)[:32])
                if kept.exists():
                    return kept, names
        made = self.folder / f"t{os.getpid()}_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
        depends = made.with_suffix(".d")
        run = subprocess.run([*command, "-MD", "-MF", str(depends), "-c", source, "-o", str(made)], cwd=tree, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
        if run.returncode != 0:
            made.unlink(missing_ok=True)
            depends.unlink(missing_ok=True)
            raise Broken(run.stdout[-2000:])
        names = depends.read_text().replace("\\\n", " ").split(":", 1)[1].split()
        names = sorted({os.path.normpath(name) for name in names if not name.startswith("/")})
        depends.unlink()
        manifest.write_text("\n".join(names))
        kept = self.folder / ("o" + manifest.name[1:17] + self._digest(tree, names)[:32])
        made.rename(kept)
        return kept, names


class Tree:
    """A copy of the tree in a folder of its own, with the product's library and whatever tests were asked for."""

    def __init__(self, root, folder, programs, product, cache, jobs=2):
        self.folder, self.programs, self.product, self.jobs = pathlib.Path(folder), programs, product, jobs
        self.cache = Cache(cache)
        self.objects, self.made_from = {}, {}
        self.linked = {}   # program: its file
        self.seconds = {}  # program: how long it took without a bug
        self._copy(pathlib.Path(root))

    def _copy(self, root):
        names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        for name in names:
            if (root / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, self.folder / name)
        include = self.folder / "include" / "sluice"
        include.mkdir(parents=True)
        rules = self.folder / "tools" / "build" / "sluice.bzl"
        rooms = re.findall(r'"([\w/]+)": "(sluice[\w/]*)"', rules.read_text()) if rules.exists() else []
        for folder, prefix in rooms:
            if prefix == "sluice":
                for header in (self.folder / folder).glob("*.h"):
                    (include / header.name).symlink_to(header)
            elif not (include / prefix.removeprefix("sluice/")).exists():  # a room inside another lies there already
                (include / prefix.removeprefix("sluice/")).symlink_to(self.folder / folder)

    def _real(self, names):
        """Names of what was included, without the links of include/."""
        return {os.path.relpath(os.path.realpath(self.folder / name), os.path.realpath(self.folder)) for name in names}

    def compile(self, source):
        return self.cache.compile(self.folder, C if source.endswith(".c") else self._cases(source) or CXX, source)

    def _cases(self, source):
        text = (self.folder / source).read_text(encoding="utf-8")
        if "TEST_CASE(" not in text or "CATCH_CONFIG" in text:
            return None
        return [*CASES, "-include", str(self.cache.precompiled(CATCH, CASES))]

    def build(self, wanted):
        """The product's library, and the programs named."""
        needed = [*self.product, *sorted({source for name in wanted for source in self.programs[name].sources})]
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            for source, (made, names) in zip(needed, pool.map(self.compile, needed)):
                self.objects[source], self.made_from[source] = made, self._real(names)
        (self.folder / "out").mkdir(exist_ok=True)
        self.library = self.link_library(self.folder / "out", {})
        for name in wanted:
            if name not in self.linked:
                self.linked[name] = self.link_program(name, self.folder / "out", {})

    def link_library(self, folder, instead):
        made = folder / "libproduct.so"
        objects = [str(instead.get(source, self.objects[source])) for source in self.product]
        self._link([*LINK, "-shared", "-Wl,-soname,libproduct.so", *objects, "-o", str(made), *LIBRARIES])
        return made

    def link_program(self, name, folder, instead):
        made = folder / re.sub(r"\W+", "_", name).strip("_")
        objects = [str(instead.get(source, self.objects[source])) for source in self.programs[name].sources]
        self._link([*LINK, *objects, str(self.library), "-o", str(made), *LIBRARIES])
        return made

    @staticmethod
    def _link(command):
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if run.returncode != 0:
            raise Broken(run.stdout[-2000:])

    def run(self, name, program, library, seconds):
        """(exit code, None if it hangs; the last words). What it started is ended with it."""
        own = {key: value for key, value in os.environ.items() if not key.startswith("SLUICE_")}
        own.update(self.programs[name].environment, LD_LIBRARY_PATH=str(library.parent), TEST_TMPDIR=str(self.folder / "out"))

        def limits():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))

        with open(self.folder / "out" / "said", "w+", errors="replace") as said:
            # A file, not a pipe: nothing that survives the test keeps us waiting for its end.
            started = subprocess.Popen([str(program), *self.programs[name].arguments], cwd=self.folder, env=own, stdin=subprocess.DEVNULL,
                                       stdout=said, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=limits)
            try:
                code = started.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                try:
                    os.killpg(started.pid, signal.SIGKILL)  # our own child's session, and nothing else
                except ProcessLookupError:
                    pass
                started.wait()
            said.seek(0, os.SEEK_END)
            said.seek(max(0, said.tell() - 20000))
            return code, said.read()
