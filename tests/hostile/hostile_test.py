#!/usr/bin/env python3
"""Every attack of one path, each beside an honest pair: hostile_test.py ATTACKER VICTIM PATH [unittest options]

The honest operations all end well, a newcomer gets in, and when the attacker has gone descriptors, mappings, arena bytes
and free keys are as they were. SLUICE_HOSTILE_DOSE=N: so many times as much.
"""
import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import places  # noqa: E402
import siege  # noqa: E402

ATTACKER, VICTIM, PATH = (*map(os.path.abspath, sys.argv[1:3]), *sys.argv[3:4])
DOSE = int(os.environ.get("SLUICE_HOSTILE_DOSE", "1"))
# An attack ends by then, whatever is left of it; a guest's processor is emulated.
SECONDS = (60 if PATH == "kmod" else 15) * min(DOSE, 8)


class HostileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = places.Place(PATH)
        cls.place.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.place.__exit__(None, None, None)

    def attack(self, name, visits):
        run = siege.siege((ATTACKER, VICTIM), PATH, self.place.listen(), name, dose=DOSE, seconds=SECONDS, source=self.place.source,
                          at=self.place.at, visits=visits, reach=self.place.reach)
        self.assertEqual(siege.faults(run), [], f"attacker: {run.attacker}\naudit: {run.audit}\nlog: {run.log[-3000:]}")


def add_attacks():
    for name, about in places.attacks_of(ATTACKER, PATH).items():
        # What is said in sessions of SLP is said over l2://udp as well: by frames it is said in the long tier.
        if PATH in ("l2", "kmod") and DOSE == 1 and "any" in about:
            continue
        visits = "crowd" not in about
        setattr(HostileTest, "test_" + name, lambda self, name=name, visits=visits: self.attack(name, visits))


if __name__ == "__main__":
    add_attacks()
    result = unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2, exit=False).result
    if result.skipped:
        print(f"sluice-skips {len(result.skipped)}", flush=True)  # tools/test adds them up
    sys.exit(not result.wasSuccessful())
