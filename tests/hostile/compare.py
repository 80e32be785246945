#!/usr/bin/env python3
"""What attacks cost an honest pair, and what a hostile byte costs the server.

    tests/hostile/compare.py ATTACKER VICTIM [--paths tcp,shm,udp,l2] [--attacks NAME...] [--rounds 7] [--seconds 2] [--json OUT]
    tests/hostile/compare.py ATTACKER VICTIM --cost [--rounds 7] [--json OUT]

First form: goodput of the honest client and its latest end of an operation while each attack goes on (again and again, where
it ends by itself), against a control: the same processes, and as many bytes per second, of both directions,
through a socket that has nothing to do with the server. Rounds are interleaved, every second one backwards; figures are medians. Targets: at least half of the
goodput, at most 100 ms more, no turn of progress() of more than 5 ms of processor time.
Second form: processor time of the server by byte, for each type of message, with empty tables and with full ones. Target: at
most 3 times.
Exit code: 1 if a target is missed.
"""
import argparse
import json
import os
import re
import statistics
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import places  # noqa: E402
import siege  # noqa: E402

LEAST_GOODPUT = 0.5
MOST_LATER_US = 100_000
MOST_TURN_US = 5_000
MOST_COST = 3.0
TYPES = "HELLO OFFER WANT READ DATA DONE RELEASE CANCEL_WANT CANCEL_OFFER CREDIT PING BYE".split()
MESSAGES = 30_000  # of a type, for one figure
KEPT_SECONDS = 60  # an attacker ends by itself after that


def window(programs, path, place, seconds, attack, rate):
    """Figures of the honest client for so long beside `attack`, or beside the control at that rate."""
    attacker, victim = programs
    here, there = place.at
    running, crossed, enemies = [], 0, 0
    secret = os.urandom(8).hex()
    try:
        server = siege.Process(victim, "serve", place.listen(), secret, within=here, limited=True, log="error")
        running.append(server)
        address = place.reach(server.line())
        worker = siege.Process(victim, "work", address, secret, str(siege.FIRST_STEP), within=there)
        running.append(worker)
        if worker.line() != "working":
            raise siege.Failed(f"{attack}: the honest client does not get in")
        siege.beside(worker, 3)
        siege.ask(server, "turns")  # from now on
        worker.say("begin")
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            environment = {"SLUICE_HOSTILE_RATE": str(rate)}
            command = ("control", "unrelated") if attack is None else (path, attack)
            enemy = siege.Process(attacker, *command, address, "--seconds", str(KEPT_SECONDS), "--source", place.source, within=there, more=environment)
            running.append(enemy)
            enemies += 1
            last = ""
            while time.monotonic() - began < seconds and last is not None and not last.startswith("{"):
                last = enemy.line_within(seconds - (time.monotonic() - began))
            enemy.say("leave")
            while last is not None and not last.startswith("{"):
                last = enemy.line_within(siege.LIMIT_SECONDS)
            seen = json.loads(last) if last else {"bytes_out": 0, "bytes_in": 0}
            crossed += seen["bytes_out"] + (seen["bytes_in"] if attack is not None else 0)  # the control hears only itself
            running.pop().end()
        took = time.monotonic() - began
        figures = json.loads(worker_figures(worker))
        turns = json.loads(siege.ask(server, "turns"))
        return {"goodput": figures["bytes"] / took, "longest_us": figures["longest_us"], "failed": figures["failed"], "rate": crossed / took,
                "turn_us": turns["longest_us"], "enemies": enemies}
    finally:
        for process in reversed(running):
            process.end()


def worker_figures(worker):
    worker.say("figures")
    line = worker.line()
    if line is None:
        raise siege.Failed("the honest client fell: " + worker.said())
    return line


def compare(options, programs):
    rows, bad = [], 0
    for path in options.paths.split(","):
        with places.Place(path) as place:
            names = [n for n in places.attacks_of(programs[0], path) if not options.attacks or n in options.attacks]
            found = {name: ([], []) for name in names}
            for number in range(options.rounds):
                for name in names if number % 2 == 0 else reversed(names):
                    try:
                        attacked = window(programs, path, place, options.seconds, name, 0)
                        control = window(programs, path, place, options.seconds, None, attacked["rate"])
                    except siege.Failed as why:
                        print(f"{path} {name}: {why}", file=sys.stderr)
                        continue
                    found[name][0].append(attacked)
                    found[name][1].append(control)
            for name, (attacked, control) in found.items():
                row = verdict(path, name, attacked, control)
                bad += row["verdict"] != "pass"
                rows.append(row)
                print(table_line(row), flush=True)
    return rows, bad


def verdict(path, name, attacked, control):
    if not attacked:
        return {"path": path, "attack": name, "verdict": "failed", "rounds": 0}
    def median(rounds, what):
        return statistics.median(r[what] for r in rounds)
    share = statistics.median(a["goodput"] / c["goodput"] if c["goodput"] else 0 for a, c in zip(attacked, control))
    later = statistics.median(a["longest_us"] - c["longest_us"] for a, c in zip(attacked, control))
    failures = [text for r in attacked for text in r["failed"]]
    missed = [what for what, is_missed in (("goodput", share < LEAST_GOODPUT), ("latest end", later > MOST_LATER_US),
                                           ("turn", median(attacked, "turn_us") > MOST_TURN_US), ("operations", bool(failures))) if is_missed]
    return {"path": path, "attack": name, "rounds": len(attacked), "goodput": median(attacked, "goodput"), "control_goodput": median(control, "goodput"),
            "share": share, "later_us": later, "longest_us": median(attacked, "longest_us"), "control_longest_us": median(control, "longest_us"),
            "rate": median(attacked, "rate"), "control_rate": median(control, "rate"), "turn_us": median(attacked, "turn_us"),
            "failures": failures[:3], "missed": missed, "verdict": "fail" if missed else "pass"}


def table_line(row):
    if row["rounds"] == 0:
        return f"| {row['path']} | {row['attack']} | | | | | | failed |"
    return (f"| {row['path']} | {row['attack']} | {row['goodput'] / 1e6:.0f} | {row['control_goodput'] / 1e6:.0f} | {row['share']:.2f} | {row['later_us'] / 1000:+.0f} "
            f"| {row['turn_us'] / 1000:.1f} | {row['verdict']} {' '.join(row['missed'])} |")


def cost(options, programs):
    attacker, victim = programs
    found = {kind: ([], []) for kind in TYPES}
    for number in range(options.rounds):
        for full in (False, True) if number % 2 == 0 else (True, False):
            running = []
            try:
                server = siege.Process(victim, "serve", "tcp://127.0.0.1:0", "-", limited=False, log="error")
                running.append(server)
                bench = siege.Process(attacker, "cost", "tcp", server.line(), "--seconds", "300", "--source", siege.STRANGER)
                running.append(bench)
                if full:
                    filled = siege.ask(bench, "fill")
                    if number == 0:
                        print(filled)
                siege.ask(bench, "send PING 2000")
                for kind in TYPES:
                    before = json.loads(siege.ask(server, "turns"))["process_us"]
                    sent = int(re.match(r"sent (\d+)", siege.ask(bench, f"send {kind} {MESSAGES}")).group(1))
                    after = json.loads(siege.ask(server, "turns"))["process_us"]
                    if sent:  # else the server ended the conversation: no figure, and no pass
                        found[kind][full].append((after - before) * 1000 / sent)
            finally:
                for process in reversed(running):
                    process.end()
    rows, bad = [], 0
    print("| message | ns by byte, empty | full | times | |\n|---|---|---|---|---|")
    for kind, (empty, full) in found.items():
        low, high = (statistics.median(x) if x else 0 for x in (empty, full))
        times = high / low if low else float("inf")
        ok = bool(empty) and bool(full) and times <= MOST_COST
        bad += not ok
        rows.append({"type": kind, "empty_ns": low, "full_ns": high, "times": times, "rounds": len(full), "verdict": "pass" if ok else "fail"})
        print(f"| {kind} | {low:.1f} | {high:.1f} | {times:.2f} | {'pass' if ok else 'fail'} |")
    return rows, bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacker", type=os.path.abspath)
    parser.add_argument("victim", type=os.path.abspath)
    parser.add_argument("--paths", default="tcp,shm,udp,l2")
    parser.add_argument("--attacks", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    if not options.cost:
        print("| path | attack | MB/s | control | share | latest end, ms more | longest turn, ms | |\n|---|---|---|---|---|---|---|---|")
    rows, bad = (cost if options.cost else compare)(options, (options.attacker, options.victim))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({"schema": "sluice.hostile/1", "what": "cost" if options.cost else "attacks", "rows": rows}, out, indent=1)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
