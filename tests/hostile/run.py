#!/usr/bin/env python3
"""Runs attacks by hand: tests/hostile/run.py ATTACKER VICTIM PATH [ATTACK...] [--dose N] [--seconds N] [--json]

Prints what each did, and what did not hold. Exit code: 1 if something did not.
"""
import argparse
import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import places  # noqa: E402
import siege  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attacker")
    parser.add_argument("victim")
    parser.add_argument("path")
    parser.add_argument("attacks", nargs="*")
    parser.add_argument("--dose", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_intermixed_args()
    programs = (os.path.abspath(options.attacker), os.path.abspath(options.victim))
    bad = 0
    known = places.attacks_of(programs[0], options.path)
    with places.Place(options.path) as place:
        for attack in options.attacks or known:
            began = time.monotonic()
            try:
                run = siege.siege(programs, options.path, place.listen(), attack, dose=options.dose, seconds=options.seconds, source=place.source, at=place.at,
                                  visits="crowd" not in known[attack], reach=place.reach)
                found = siege.faults(run)
            except siege.Failed as why:
                run, found = None, [str(why)]
            bad += bool(found)
            print(f"{'FAILED' if found else 'ok    '} {attack} {time.monotonic() - began:.1f} s", *found, sep="\n    ", flush=True)
            if run and options.json:
                print(json.dumps({"attacker": run.attacker, "worker": run.worker, "audit": run.audit}, indent=1))
            elif run:
                s = run.attacker
                print(f"      out {s['messages_out']} messages {s['bytes_out']} bytes, {s['greeted']}/{s['connections']} greeted, away {s['turned_away']}, cut {s['cut_off']}; "
                      f"answers {s['answers']} {s['codes']} {s['notes']}; honest {run.worker['completed']} ops, longest {run.worker['longest_us']} us; "
                      f"turn {run.audit['turns']['longest_us']} us, {run.audit['turns']['most_units']} units")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
