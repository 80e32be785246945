"""What a guest's kernel said, judged: pure functions of text, so that recorded logs are tests."""
import re

# What a kernel prints when it has found itself at fault. A program's own crash ("segfault at", "traps:") is not here:
# that is for its exit status to say.
COMPLAINTS = (
    r"WARNING: ",
    r"\bBUG: ",
    r"kernel BUG at ",
    r"\bOops\b",
    r"general protection fault(?!.* ip:)",
    r"Kernel panic - not syncing",
    r"INFO: task .* blocked for more than",
    r"rcu: INFO: .* stall|rcu_\w+ (self-)?detected stall",
    r"\b(KASAN|KCSAN|KFENCE|KMSAN|UBSAN): ",
    r"kmemleak: \d+ new suspected memory leaks",
    r"possible (circular locking|recursive locking|irq lock inversion)|inconsistent lock state|suspicious RCU usage",
    r"refcount_t: ",
    r"unregister_netdevice: waiting for ",
    r"Out of memory: Killed process",
)
_COMPLAINT = re.compile("|".join(COMPLAINTS))
# Said of the emulated machine, not by a defect.
_HARMLESS = re.compile(r"WARNING: (You are running an unsupported|Spectre|MDS|MMIO)|clocksource: .*WARNING")


# How far below its first line a report's call trace reaches.
_REPORT_LINES = 80


def complaints(log):
    """The lines of a kernel log that make a run fail."""
    lines = log.splitlines()
    return [line for index, line in enumerate(lines)
            if _COMPLAINT.search(line) and not _HARMLESS.search(line) and not _known(lines[index:index + _REPORT_LINES])]


def _known(report):
    """User-Mode Linux in 6.1 walks a fresh process's map without its lock (arch/um/kernel/tlb.c, force_flush_all): lockdep
    says so once for each place, at boot; with one CPU and no preemption nobody can be in between."""
    return ("suspicious RCU usage" in report[0] and any("lib/maple_tree.c" in line for line in report[1:5])
            and any("force_flush_all" in line for line in report))


def left_over(before, after):
    """What `rdma resource` counts more of after the command than before: {"rxe0 qp": 1}.

    A device that the command added may have what ours had at first: the kernel's own management queue pair.
    """
    start, end = _census(before), _census(after)
    fresh = {}
    for name, count in start.items():
        kind = name.split()[-1]
        fresh[kind] = max(fresh.get(kind, 0), count)
    known = {name.split()[0] for name in start}
    left = {}
    for name, count in end.items():
        device, kind = name.split()
        allowed = start.get(name, 0) if device in known else fresh.get(kind, 0)
        if count > allowed:
            left[name] = count - allowed
    return left


def _census(text):
    """'0: rxe0: pd 1 cq 1 qp 1 ... 1: rxe1: ...' -> {"rxe0 pd": 1, ...}."""
    counts = {}
    device = ""
    words = text.split()
    for index, word in enumerate(words):
        if word.endswith(":") and not word[:-1].isdigit():
            device = word[:-1]
        elif word.isdigit() and index > 0 and not words[index - 1].endswith(":"):
            counts[f"{device} {words[index - 1]}"] = int(word)
    return counts
