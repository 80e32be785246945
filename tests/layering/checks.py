#!/usr/bin/env python3
"""The house's rules about who may see whom, proven from the files: direct dependencies, rooms, doors, headers alone,
no ring of files, no long file.

    tests/layering/checks.py [ROOT]        prints what breaks a rule; exit 1 if anything does

Each check takes a House and yields one line of text per violation.
"""
import concurrent.futures
import fnmatch
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import build_files  # noqa: E402
import source_tree  # noqa: E402

# One door to each outside thing: (what, pattern in the code, files that may, and why each may).
_TESTS = ["tests/*", "*_test.*"]
_YARDSTICKS = ["benchmarks/bare/*", "benchmarks/peers/*"]  # programs without the library
DOORS = [
    ("Boost", r"#\s*include\s*<boost/", [
        "transport/tcp/*", "transport/api/asio.h", "transport/api/asio_drive.h",
        "examples/asio_echo.cc",  # the io_context is the user's
        "tools/perf/report/confidence.cc",  # Boost.Math, which no program links
    ] + _TESTS + _YARDSTICKS),
    ("c-ares", r"#\s*include\s*<ares\.h>", ["transport/runtime/names.cc"]),
    ("the environment", r"(?<!\w)(?:secure_)?getenv\s*\(", [
        "transport/base/settings.cc",
        "transport/base/log.cc",  # SLUICE_LOG, which settings.cc needs
        "transport/tuning/cache_file.cc",  # HOME, XDG_CACHE_HOME
        "tools/python/*",  # of the programs that it starts
        "benchmarks/*",
    ] + _TESTS),
    ("OpenSSL", r"#\s*include\s*<openssl/", ["transport/l2/cipher.cc", "benchmarks/bare/memory_file.cc"]),
    ("verbs", r"#\s*include\s*<(infiniband|rdma)/", ["transport/verbs/verbs_api.*", "tests/module/rxe_line.*"] + _YARDSTICKS),
    ("packet sockets", r"\bAF_PACKET\b|#\s*include\s*<linux/if_packet\.h>", ["transport/l2/carrier/*", "transport/l2/discovery/*", "tools/dump/*"] + _TESTS + _YARDSTICKS),
    ("memory mappings", r"(?<![\w.>])mmap\s*\(|\bmemfd_create\s*\(", [
        "allocator/linux_page_source.*",
        "allocator/device_memory.cc",  # a dma-buf of the program's; addresses that nobody may use
        "transport/base/map_over.cc",  # files over reserved addresses, for the two above and below
        "transport/shm/mapper.*", "transport/shm/ring.*",
        "transport/l2/carrier/ring.*",  # the kernel's packet ring
        "transport/l2/carrier/xdp_interface.*",  # AF_XDP's memory and rings
        "transport/kmod/socket.cc",  # the module's completion ring
        "transport/verbs/queue_pair.cc",  # message slots: no tensor lies beside what a device writes
        "transport/base/process_mark.cc",   # one anonymous page that tells a forked child; no payload
    ] + _TESTS + _YARDSTICKS),
    ("real time", r"\bclock_gettime\b|\bgettimeofday\b|\b(steady|system|high_resolution)_clock\b", [
        "transport/base/clock.cc",
        "tools/demo_job/grpc_*", "plugins/grpc/*",  # gRPC's deadlines are of these clocks
        "benchmarks/grpc_bridge.cc",  # processor time of both ends
    ] + _TESTS + _YARDSTICKS),
    ("threads", r"\bstd::(j?thread|async)\b|\bpthread_create\b", [
        "transport/select/progress_thread.*", "transport/runtime/helper_thread.*", "plugins/grpc/*",
        "examples/*",           # the thread is the user's
        "tools/perf/run/roles.cc",  # loopback runs both ends in one process
        "tools/doctor/path_checks.cc",  # both ends of a path's trial, in contexts of their own
        "benchmarks/hot_path.cc",  # accepts while connect() waits, before anything is measured
        "tools/demo_job/grpc_worker.cc",  # gRPC's calls block: a thread for each server
    ] + _TESTS + _YARDSTICKS),
    ("sleeping", r"\bsleep_(for|until)\b|(?<!\w)::u?sleep\s*\(|\bnanosleep\b", _YARDSTICKS),
]
# assert() on a peer's bytes ends the process at the peer's wish.
FORBIDDEN = [
    ("assert", r"(?<![\w.])assert\s*\(|#\s*include\s*<(cassert|assert\.h)>", ["transport/wire/*", "transport/proto/*"]),
]
# Of one source file.
MOST_LINES = 500


class House:
    def __init__(self, root):
        self.root = root
        self.build = build_files.BuildFiles(root)
        self.rooms = self.build.constants("tools/build:sluice.bzl")["_ROOMS"]
        self.may_see = self.build.constants("tools/build:rooms.bzl")["MAY_SEE"]
        self.tree = source_tree.SourceTree(root, self.rooms)


def direct_dependencies(house):
    """Every include of a header of this tree is a direct dependency of each target that compiles it."""
    known = set(house.tree.files)
    for target in house.build.targets.values():
        if not target.compiles:
            continue
        own = set(target.srcs + target.hdrs)
        dependencies = [house.build.resolve(d) for d in target.deps]
        offered = set().union(*[d.hdrs for d in dependencies if d is not None])
        for path in sorted(own & known):
            for line, spelling, header in house.tree.includes(path):
                if header is None or header in own or header in offered:
                    continue
                owners = [t.label for t in house.build.owners(header)]
                if not owners and header not in known and not header.split("/")[0] in _top_folders(house):
                    continue  # a system header in quotes
                remedy = "add %s to its deps" % " or ".join(owners) if owners else "no target offers it"
                yield "%s: %s:%d includes %s: %s" % (target.label, path, line, spelling, remedy)


def orphans(house):
    """Every source file belongs to a target, else nothing above sees it."""
    owned = {f for t in house.build.targets.values() for f in t.srcs + t.hdrs}
    for path in house.tree.files:
        if path not in owned and path.split("/")[0] not in ("third_party", "kernel_compat"):
            yield "%s: in no target" % path


def rooms(house):
    """Includes and dependencies point down, siblings never see each other."""
    for path in house.tree.files:
        room = source_tree.room_of(path)
        if room == "third_party":
            continue
        for line, spelling, header in house.tree.includes(path):
            if header is not None and header.split("/")[0] in _top_folders(house):
                yield from _seen(house.may_see, room, header, "%s:%d includes %s" % (path, line, spelling))
    for target in house.build.targets.values():
        room = "tests" if target.is_test else source_tree.room_of(target.package + "/BUILD")
        if target.package == "" or target.package.startswith("third_party"):
            continue
        for dependency in target.deps:
            if dependency.startswith("//") and not dependency.startswith(("//third_party", "//:")):
                yield from _seen(house.may_see, room, dependency[2:].replace(":", "/"), "%s depends on %s" % (target.label, dependency))


def _seen(may_see, room, seen_path, what):
    seen = source_tree.room_of(seen_path)
    if room not in may_see:
        yield "%s: room '%s' has no rule; add it to tools/build/rooms.bzl" % (what, room)
    elif seen != room and may_see[room] is not None and seen not in may_see[room]:
        yield "%s: '%s' must not see '%s'" % (what, room, seen)


def doors(house):
    """Each outside thing is reached through its one door."""
    for path in house.tree.files:
        if path.startswith("third_party/"):
            continue
        code = house.tree.code(path)
        hits = [(name, m) for name, pattern, allowed in DOORS if not _matches(path, allowed) for m in re.finditer(pattern, code)]
        hits += [(name, m) for name, pattern, where in FORBIDDEN if _matches(path, where) for m in re.finditer(pattern, code)]
        for name, match in hits:
            yield "%s:%d: %s: '%s' is not allowed here" % (path, code.count("\n", 0, match.start()) + 1, name, match.group(0))


def headers_alone(house):
    """Every public header compiles by itself, with no private header in reach; users' headers reach neither Boost nor verbs.

    That a header compiles which its own source includes first, the build has shown: such a
    one is only preprocessed here, a fifth of the time.
    """
    headers = sorted({h for t in house.build.targets.values() if t.package in house.rooms and not t.is_test for h in t.hdrs})
    with tempfile.TemporaryDirectory(prefix="sluice-headers.") as work:
        for header in headers:
            folder, name = os.path.split(header)
            under = os.path.join(work, "include", house.rooms[folder])
            os.makedirs(under, exist_ok=True)
            os.symlink(os.path.join(house.root, header), os.path.join(under, name))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for result in pool.map(lambda h: _compile_alone(house, work, h), headers):
                yield from result


def _compile_alone(house, work, header):
    folder, name = os.path.split(header)
    spelling = "%s/%s" % (house.rooms[folder], name)
    stem = os.path.join(work, header.replace("/", "_"))
    with open(stem + ".cc", "w", encoding="ascii") as source:
        source.write("#include <%s>\n#include <%s>\n" % (spelling, spelling))  # twice: guarded
    shown = _first_in_its_source(house, header) and _GUARD.match(house.tree.code(header))
    made = subprocess.run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter",
                           *(["-E", "-o", os.devnull] if shown else ["-fsyntax-only"]), "-MD", "-MF", stem + ".d", "-I" + os.path.join(work, "include"), stem + ".cc"],
                          stderr=subprocess.PIPE, text=True, timeout=300)
    if made.returncode != 0:
        return ["<%s> does not compile alone:\n%s" % (spelling, made.stderr[:2000])]
    # The last stands on the first.
    adaptors = ("transport/api/asio.h", "transport/api/asio_drive.h", "transport/exchange/asio.h")
    if folder in ("transport/tcp", "transport/verbs") or header in adaptors:
        return []
    with open(stem + ".d", encoding="utf-8") as file:
        outside = re.search(r"\S*/(boost|infiniband|rdma)/\S*", file.read())
    return ["<%s> reaches %s" % (spelling, outside.group(0))] if outside else []


def cycles(house):
    """No two files of these folders need functions or data of each other, directly or by way of others."""
    for folder, symbols_of in _ACYCLIC.items():
        sources = sorted(path for path in house.tree.files if os.path.dirname(path) == folder and path.endswith(".c"))
        symbols = symbols_of(house, sources)
        home = {name: path for path, (defined, _) in symbols.items() for name in defined}
        needs = {path: {home[name] for name in needed if home.get(name, path) != path} for path, (_, needed) in symbols.items()}
        while ready := [path for path, others in needs.items() if not others]:
            needs = {path: others.difference(ready) for path, others in needs.items() if path not in ready}
        while top := set(needs).difference(*needs.values()):  # they need the cycle, and it does not need them
            needs = {path: others for path, others in needs.items() if path not in top}
        if needs:
            yield "%s: these need each other: %s" % (folder, ", ".join(os.path.basename(path) for path in sorted(needs)))


def long_files(house):
    """No source file is longer than a reader takes in: a long one is two topics."""
    for path in house.tree.sources():
        lines = house.tree.text(path).count("\n")
        if lines > MOST_LINES:
            yield "%s: %d lines, of which %d are allowed: split it by topic" % (path, lines, MOST_LINES)


def _compiled_symbols(house, sources):
    """Names that each C file defines, and that it needs."""
    with tempfile.TemporaryDirectory(prefix="sluice-cycles.") as work, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(sources, pool.map(lambda path: _symbols(house, work, path), sources)))


def _symbols(house, work, path):
    built = os.path.join(work, os.path.basename(path) + ".o")
    subprocess.run(["gcc", "-std=c11", "-ffreestanding", "-c", "-o", built, os.path.join(house.root, path)], check=True, timeout=300)
    lines = subprocess.run(["nm", "-g", built], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.splitlines()
    kinds = [line.split()[-2:] for line in lines]
    return {name for kind, name in kinds if kind != "U"}, {name for kind, name in kinds if kind == "U"}


_NAME = re.compile(r"\bsluice_\w+")
_DEFINED = re.compile(r"^(?!static|extern|typedef)\w[^;={}()\n]*?[\s*](sluice_\w+)(?=\((?!.*;$)|\s*[=;,\[])(?:, \*(sluice_\w+))?", re.M)
_INLINE = re.compile(r"^static inline [^;{]*?\b(sluice_\w+)\(.*?^}", re.M | re.S)


def _written_symbols(house, sources):
    """The same of files that only a kernel's headers compile: by their names, which all begin alike. What a header's functions need
    counts for who calls them."""
    folder = os.path.dirname(sources[0]) if sources else ""
    text = {path: house.tree.code(path)
            for path in house.tree.files if os.path.dirname(path) == folder and path.endswith((".c", ".h"))}
    inline = {found.group(1): set(_NAME.findall(found.group(0))) for path, each in text.items() if path.endswith(".h") for found in _INLINE.finditer(each)}
    symbols = {}
    for path in sources:
        needed = set(_NAME.findall(text[path]))
        while more := set().union(*(inline.get(name, ()) for name in needed)) - needed:
            needed |= more
        symbols[path] = {name for pair in _DEFINED.findall(text[path]) for name in pair if name}, needed
    return symbols


# Sources that are to be read one after the other.
_ACYCLIC = {"kernel_compat/slp": _compiled_symbols, "kernel_compat/module": _written_symbols}


_GUARD = re.compile(r"\s*#(pragma once|ifndef (\w+)\s+#define \2)\b")


def _first_in_its_source(house, header):
    source = os.path.splitext(header)[0] + ".cc"
    return source in house.tree.files and next((path for _, _, path in house.tree.includes(source)), None) == header


def _matches(path, patterns):
    return any(fnmatch.fnmatch(path, p) for p in patterns)


def _top_folders(house):
    if not hasattr(house, "top_folders"):
        house.top_folders = {f for f in os.listdir(house.root) if os.path.isdir(os.path.join(house.root, f))}
    return house.top_folders


CHECKS = {"direct_dependencies": direct_dependencies, "orphans": orphans, "rooms": rooms, "doors": doors,
          "headers_alone": headers_alone, "cycles": cycles, "long_files": long_files}


def tree_root():
    """The real tree, also from a test's runfiles, whose files are links to it."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def main():
    house = House(os.path.realpath(sys.argv[1]) if len(sys.argv) > 1 else tree_root())
    found = [(name, line) for name, check in CHECKS.items() for line in check(house)]
    for name, line in found:
        print("%s: %s" % (name, line))
    print("%d files, %d targets, %d violations" % (len(house.tree.files), len(house.build.targets), len(found)))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
