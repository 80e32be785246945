#!/usr/bin/env python3
"""The model of waiting.py's policies: that its library is the library, and what follows from it.
All in virtual time."""
import os
import re
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import waiting_model as model  # noqa: E402

WAKE_US, SLEEP_CPU_US = 20.0, 15.0  # docs/performance.md
# Wake, CPU of a sleep, and the budget that `sluice tune` chooses: 2.5 times the wake.
MACHINES = [(5.0, 3.0, 12.5), (20.0, 15.0, 50.0), (60.0, 20.0, 150.0)]


def read(name):
    with open(os.path.join("transport", name), encoding="utf-8") as file:
        return file.read()


class TheLibrary(unittest.TestCase):
    def test_waits_in_the_model_as_in_its_source(self):
        budget_ns = int(
            re.search(r"uint64_t spin_ns = ([\d']+);", read("api/tuning.h"))[1].replace("'", ""))
        self.assertEqual(model.Library().budget, budget_ns / 1000)
        source = read("runtime/context_core.cc")
        self.assertIn("typical_gap_ <= longest_spin_;", read("runtime/context_core.h"))
        for rule in (
            "if (!polling_pays(start)) return false", "longest_spin_ * 4)",
            "if (slept) gap = std::max(gap - longest_spin_ / 2, Duration(0))",
            "(typical_gap_ * 7 + gap) / 8"
        ):
            self.assertIn(rule, source)

    def test_polls_again_when_short_waits_come_back(self):
        library = model.Library()
        for _ in range(100):
            library.waited(500.0, WAKE_US, 0)
        self.assertEqual(library.polls(0), 0)
        for _ in range(100):
            library.waited(10.0 + WAKE_US, WAKE_US, 0)
        self.assertEqual(library.polls(0), 60)

    def test_polls_again_although_both_ends_sleep(self):
        for wake in (20.0, 30.0, 35.0):
            library = model.Library()
            for _ in range(100):
                library.waited(2 * wake + 10.0, wake, 0)  # there and back, each end woken once
            self.assertEqual(library.polls(0), 60, wake)


class Costs(unittest.TestCase):
    def costs(self, name):
        gaps_of = model.patterns(4000)
        return {
            pattern: sum(
                model.run(model.policies(WAKE_US, SLEEP_CPU_US)[name], gaps, WAKE_US, SLEEP_CPU_US))
            for pattern, gaps in gaps_of.items()}

    def test_of_a_wait_are_what_was_polled_or_the_budget_and_the_wake(self):
        self.assertEqual(model.run(model.Fixed(60), [50.0], WAKE_US, SLEEP_CPU_US), (0.0, 50.0))
        self.assertEqual(
            model.run(model.Fixed(60), [61.0], WAKE_US, SLEEP_CPU_US), (WAKE_US, 60 + SLEEP_CPU_US))
        self.assertEqual(
            model.run(model.Fixed(0), [1.0], WAKE_US, SLEEP_CPU_US), (WAKE_US, SLEEP_CPU_US))

    def test_of_one_who_knows_each_gap_are_the_least(self):
        best = self.costs("oracle")
        for name in model.policies(0, 0):
            for pattern, cost in self.costs(name).items():
                self.assertGreaterEqual(cost, best[pattern] - 1e-9, (name, pattern))

    def test_of_bursts_are_less_where_the_budget_follows_each_poll_and_of_nothing_a_tenth_more(
        self,
    ):
        for wake, sleep_cpu, budget in MACHINES + [(WAKE_US, SLEEP_CPU_US, 60.0)]:
            for pattern, gaps in model.patterns(20000).items():
                library, following = (
                    model.run(policy, gaps, wake, sleep_cpu)
                    for policy in (model.Library(budget), model.Following(budget)))
                self.assertLessEqual(sum(following), 1.1 * sum(library), (wake, budget, pattern))
                self.assertGreaterEqual(
                    sum(following), (0.5 if pattern.startswith("eight") else 0.9) * sum(library),
                    (wake, budget, pattern))
                if wake >= 20 and pattern.startswith("eight"):
                    self.assertLessEqual(following[1], 0.75 * library[1], (wake, budget, pattern))

    def test_are_nowhere_a_sixth_less_with_a_ladder_of_budgets(self):
        for wake, sleep_cpu, budget in MACHINES + [(WAKE_US, SLEEP_CPU_US, 60.0)]:
            for pattern, gaps in model.patterns(4000).items():
                library, ladder = (
                    sum(model.run(policy, gaps, wake, sleep_cpu))
                    for policy in (model.Library(budget), model.Ladder()))
                self.assertGreaterEqual(ladder * 7 / 6, library, (wake, budget, pattern))


if __name__ == "__main__":
    unittest.main()
