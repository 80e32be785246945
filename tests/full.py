#!/usr/bin/env python3
"""The long tier: slices of simulation, fuzzing, planted bugs and guests, each some minutes, resumable.

    tests/full.py [--minutes N] [--only PREFIX] [--list]

Every slice that ran appends a line to tests/ledger.jsonl: target, commit, digest of the
sources it ran on, seeds or executions, CPU seconds, result. A slice with a passing line
for the same sources is not run again; --minutes stops before a slice that would begin
later; --only takes the slices whose names begin so, such as guest//tests/lab or mutants. Needs what
`tools/setup --lab --next-kernel --fuzz --go` installs. Prints "N passed, N failed, N left"; exit code 1 if a
slice failed.
"""
import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEDGER = ROOT / "tests" / "ledger.jsonl"
SOURCES = ["allocator", "transport", "kernel_compat/slp", "tests/sim", "tests/slp", "tests/fuzz", "tests/wire"]
SLP_SOURCES = ["kernel_compat/slp", "tests/slp", "tests/sim/random.h"]
# A guest's verdict also depends on the lab, and on whatever test runs there.
GUEST_SOURCES = ["allocator", "transport", "kernel_compat", "tests", "tools"]
FRAME_SOURCES = ["allocator", "transport", "kernel_compat/slp", "tests/l2", "tests/support"]
# A bug's verdict depends on the product, its tests and the rules.
MUTANT_SOURCES = ["allocator", "transport", "kernel_compat/slp", "tests"]
HOSTILE_SOURCES = ["allocator", "transport", "kernel_compat/slp", "tests/hostile", "tests/support"]
MORE_KERNELS = ("uml-debug", "tcg-debug", "tcg-6.12")
PROXY_SOURCES = ["allocator", "transport", "tools/proxy", "tests/tools"]
GRPC_SOURCES = ["allocator", "transport", "plugins/grpc", "tests/plugins/grpc"]
GRPC_ROUNDS = 2000  # thousands of calls on each of two paths: twenty minutes on a quiet machine
CMAKE_SOURCES = ["allocator", "transport", "kernel_compat/slp", "plugins/grpc", "tests/cmake", "CMakeLists.txt"]
COMMAND_SOURCES = CMAKE_SOURCES + ["examples", "tools"]
LEDGERS = ("tests/ledger.jsonl",)  # written by this program itself

SCHEDULES_PER_SLICE = 1_000_000
SIM_SLICES = 10
SLP_SCHEDULES_PER_SLICE = 250_000  # three minutes each, or some ten on a busy machine
SLP_SLICES = 40
FUZZ_SECONDS = 60
# Of on_frame, with a session behind it: 10^8 in all. By number and seed, so that a slice which is
# stopped for a while does the same work.
FRAME_EXECUTIONS_PER_SLICE = 500_000
FRAME_SLICES = 200
FRAME_SECONDS_AT_MOST = 6 * 3600
RELAY_SLICES = 4
HOSTILE_PATHS = ("tcp", "shm", "udp", "l2")
HOSTILE_DOSES = (4, 16)  # times what the first tier does
# Of reads, of writes, and beside a thread that does either; the first tier revokes some dozens of times.
REVOCATIONS = 10_000
REVOKED_PATHS = ("loopback", "shm", "tcp", "rdma", "l2", "udp", "sluice")
REVOKE_SOURCES = ["allocator", "transport", "kernel_compat/slp", "tests/contract", "tests/support", "tests/verbs"]
# 150 planted bugs in all, of one seed.
MUTANT_SLICES = 10
MUTANTS_PER_SLICE = 15
MUTANT_SEED = 1
FUZZ_TARGETS = ("hello offer want data done release cancel credit ping bye "
                "header stream layout address remote_key session slp capture graph grpc_frames broker").split()


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def digest_of(folders):
    """Of the files as they are, committed or not; corpora grow and do not count."""
    names = [n for n in output("git", "ls-files", "-co", "--exclude-standard", *folders).splitlines()
             if "/corpus/" not in n and n not in LEDGERS and (ROOT / n).is_file()]
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
    return digest.hexdigest()[:16]


def simulate(folder, slice_number, schedules):
    first = 1_000_001 + slice_number * schedules  # the first tier has those below
    binary = ROOT / "bazel-bin" / "tests" / folder / "simulate"
    run = subprocess.run([binary, "--first-seed", str(first), "--schedules", str(schedules)],
                         cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(run.stdout.strip(), file=sys.stderr)
    digest = re.search(r"digest ([0-9a-f]{16})", run.stdout)
    return run.returncode == 0, {"first_seed": first, "schedules": schedules,
                                 "digest": digest.group(1) if digest else None}


def fuzz(target):
    run = subprocess.run([ROOT / "tests" / "fuzz" / "run.sh", "--seconds", str(FUZZ_SECONDS), target],
                         cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(run.stdout.strip(), file=sys.stderr)
    executions = re.search(r": (\d+) executions", run.stdout)
    return run.returncode == 0, {"executions": int(executions.group(1)) if executions else 0}


def fuzz_frames(number):
    seed = number + 1
    run = subprocess.run([ROOT / "tests" / "fuzz" / "run.sh", "--seconds", str(FRAME_SECONDS_AT_MOST), "--runs", str(FRAME_EXECUTIONS_PER_SLICE),
                          "--seed", str(seed), "slp"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(run.stdout.strip(), file=sys.stderr)
    found = re.search(r": (\d+) executions", run.stdout)
    executions = int(found.group(1)) if found else 0
    return run.returncode == 0 and executions >= FRAME_EXECUTIONS_PER_SLICE, {"seed": seed, "executions": executions}


def plant_bugs(number):
    """At least nine in ten of those that are not explained must be noticed; what was tried before is in its own ledger."""
    run = subprocess.run([ROOT / "tests" / "mutants" / "run.py", "--seed", str(MUTANT_SEED), "--part", str(number), "--of", str(MUTANT_SLICES),
                          "--count", str(MUTANTS_PER_SLICE)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print("\n".join(line for line in run.stdout.splitlines() if not line.startswith(("caught", "same object", "does not compile"))), file=sys.stderr)
    found = re.search(r"(\d+) planted, (\d+) caught, (\d+) explained, (\d+) survived", run.stdout)
    planted, caught, explained, survived = (int(n) for n in found.groups()) if found else (0, 0, 0, 0)
    return run.returncode == 0 and planted >= MUTANTS_PER_SLICE, {"seed": MUTANT_SEED, "planted": planted, "caught": caught, "explained": explained, "survived": survived}


def one_test(target, *options, **environment):
    settings = [f"--test_env={name}={value}" for name, value in environment.items()]
    run = subprocess.run(["bazel", "test", "--config=opt", "--nocache_test_results", "--test_output=all", *options, *settings, target],
                         cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print("\n".join(run.stdout.splitlines()[-100 if run.returncode else -3:]), file=sys.stderr)
    skipped = "sluice-skips" in run.stdout  # such as for want of network namespaces: not a pass
    return run.returncode == 0 and not skipped, dict(environment)


def script(*command):
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print("\n".join(run.stdout.splitlines()[-100 if run.returncode else -3:]), file=sys.stderr)
    return run.returncode == 0 and "sluice-skips" not in run.stdout, {}


def go_interop():
    """gRPC's own programs through two proxies; the first time Go builds them, for some minutes."""
    subprocess.run(["bazel", "build", "--config=opt", "//tools:sluice"], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
    return script("python3", "-B", "tests/tools/go_interop.py", "bazel-bin/tools/sluice")


def guest_targets():
    """(target, how it is built): optimised, or with the fault points of the kill matrix."""
    everywhere = f"set({output('tools/build/packages.py').strip()})"
    for tag, options in (("guest-long", ("--config=opt",)), ("guest-plain", ())):
        for target in output("bazel", "query", "--noshow_progress", rf"attr(tags, '[\[ ]{tag}[],]', {everywhere})").split():
            yield target, options


def guest(target, options):
    """Debug kernels are built the first time, for half an hour each; another is fetched."""
    for kernel in MORE_KERNELS:
        if kernel in target.replace("_", "-"):
            subprocess.run(["python3", "-B", "tools/lab/lab.py", "prepare", "--kernel", kernel], cwd=ROOT, check=False, stdout=sys.stderr)  # if it fails, the test says so
    run = subprocess.run(["bazel", "test", *options, target], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print("\n".join(run.stdout.splitlines()[-200 if run.returncode else -3:]), file=sys.stderr)
    return run.returncode == 0, {}


def slices():
    """(name, folders whose files decide its result, what runs it)"""
    for target in FUZZ_TARGETS:
        yield "fuzz/" + target, SOURCES + ["tools/dump"] * (target == "capture") + ["transport/graph"] * (target == "graph") + ["plugins/grpc/frames.cc", "plugins/grpc/frames.h"] * (target == "grpc_frames"), lambda target=target: fuzz(target)
    for number in range(SIM_SLICES):
        yield f"sim/{number}", SOURCES, lambda number=number: simulate("sim", number, SCHEDULES_PER_SLICE)
    for number in range(SLP_SLICES):
        yield f"slp/{number}", SLP_SOURCES, lambda number=number: simulate("slp", number, SLP_SCHEDULES_PER_SLICE)
    for number in range(FRAME_SLICES):
        yield f"frames/{number}", SLP_SOURCES + ["tests/fuzz"], lambda number=number: fuzz_frames(number)
    yield "l2/file", FRAME_SOURCES, lambda: one_test("//tests/l2:file_test", SLUICE_FILE_MIB=512)
    for number in range(RELAY_SLICES):
        yield f"l2/relay/{number}", FRAME_SOURCES, lambda number=number: one_test("//tests/l2:relay_test", SLUICE_RELAY_SEED=1000 * (number + 1))
    for number in range(MUTANT_SLICES):
        yield f"mutants/{number}", MUTANT_SOURCES, lambda number=number: plant_bugs(number)
    for path in HOSTILE_PATHS:
        for dose in HOSTILE_DOSES:
            yield f"hostile/{path}/{dose}", HOSTILE_SOURCES, lambda path=path, dose=dose: one_test(f"//tests/hostile:{path}_test", SLUICE_HOSTILE_DOSE=dose)
    for path in REVOKED_PATHS:
        yield f"revoke/{path}", REVOKE_SOURCES, lambda path=path: one_test(f"//tests/contract:endpoint_{path}_test", "--test_arg=[revoke]", "--test_timeout=3000",
                                                                           SLUICE_REVOCATIONS=REVOCATIONS)
    yield "grpc/go", PROXY_SOURCES, go_interop
    yield "grpc/soak", GRPC_SOURCES, lambda: one_test("//tests/plugins/grpc:peers_test", "--test_arg=[soak]", "--test_timeout=7200", SLUICE_GRPC_ROUNDS=GRPC_ROUNDS)
    yield "cmake/command", COMMAND_SOURCES, lambda: script("tests/cmake/cmake_test.sh", "command")
    yield "cmake/grpc", CMAKE_SOURCES, lambda: script("tests/cmake/grpc_test.sh")
    for target, options in guest_targets():
        yield "guest" + target, GUEST_SOURCES, lambda target=target, options=options: guest(target, options)


def chosen(prefix):
    return (one for one in slices() if one[0].startswith(prefix))


def passed_before():
    """(target, digest of its sources) of every slice that passed."""
    if not LEDGER.exists():
        return set()
    lines = [json.loads(line) for line in LEDGER.read_text().splitlines() if line.strip()]
    return {(line["target"], line.get("sources")) for line in lines if line["result"] == "pass"}


def children_cpu_seconds():
    import resource
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--only", default="", metavar="PREFIX")
    parser.add_argument("--list", action="store_true", help="print the slices and whether they passed on these sources")
    options = parser.parse_args()
    digests = {folders: digest_of(folders) for folders in {tuple(folders) for _, folders, _ in slices()}}
    done = passed_before()
    if options.list:
        for name, folders, _ in chosen(options.only):
            print(name, "passed" if (name, digests[tuple(folders)]) in done else "to run")
        return 0
    commit = output("git", "rev-parse", "--short=12", "HEAD").strip()
    if not options.only.startswith(("guest", "mutants")):
        subprocess.run(["bazel", "build", "--config=opt", "//tests/sim:simulate", "//tests/slp:simulate"], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
    end = time.monotonic() + options.minutes * 60
    passed, failed, left = 0, 0, 0
    for name, folders, run in chosen(options.only):
        sources = digests[tuple(folders)]
        if (name, sources) in done:
            passed += 1
            continue
        if time.monotonic() >= end:
            left += 1
            continue
        before = children_cpu_seconds()
        ok, facts = run()
        line = {"target": name, "commit": commit, "sources": sources, **facts,
                "cpu_seconds": round(children_cpu_seconds() - before, 1), "result": "pass" if ok else "fail"}
        with LEDGER.open("a") as ledger:
            ledger.write(json.dumps(line) + "\n")
        passed, failed = passed + ok, failed + (not ok)
    print(f"{passed} passed, {failed} failed, {left} left")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
