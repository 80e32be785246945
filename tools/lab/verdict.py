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


def complaints(log):
    """The lines of a kernel log that make a run fail."""
    return [line for line in log.splitlines() if _COMPLAINT.search(line) and not _HARMLESS.search(line)]


def left_over(before, after):
    """What `rdma resource` counts more of after the command than before: {"rxe0 qp": 1}."""
    start, end = _census(before), _census(after)
    return {name: count - start.get(name, 0) for name, count in end.items() if count > start.get(name, 0)}


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
