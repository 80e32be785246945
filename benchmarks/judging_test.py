#!/usr/bin/env python3
"""Tests of judging.py against distributions whose median is known. Seeded: the same figures on
every machine."""
import math
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import judging  # noqa: E402

TRIALS = 1000
# What TRIALS experiments of true coverage 0.95 fall below once in a thousand.
LEAST_COVERAGE = 0.925


def normal(generator):
    return generator.gauss(1.0, 0.03)


def skewed(generator):
    return math.exp(generator.gauss(0.0, 0.3))


def cauchy(generator):  # no mean, no variance: disturbed rounds as bad as they come
    return 1.0 + 0.02 * math.tan(math.pi * (generator.random() - 0.5))


def two_states(generator):  # a host that moves its processors apart for two rounds in five
    return generator.gauss(1.0, 0.01) if generator.random() < 0.6 else generator.gauss(1.4, 0.01)


# Median of the 60 % below: the standard normal's quantile of 5/6 is 0.9674.
DISTRIBUTIONS = [(normal, 1.0), (skewed, 1.0), (cauchy, 1.0), (two_states, 1.0 + 0.01 * 0.9674)]


def draws(draw, rounds, scale=1.0, seed=7):
    generator = random.Random(seed)
    return [[scale * draw(generator) for _ in range(rounds)] for _ in range(TRIALS)]


def share(verdicts, wanted):
    return sum(verdict == wanted for verdict in verdicts) / len(verdicts)


class Interval(unittest.TestCase):
    def test_covers_the_true_median_of_every_distribution(self):
        for draw, truth in DISTRIBUTIONS:
            for rounds in (7, 12, 20, 21, 31):
                with self.subTest(distribution=draw.__name__, rounds=rounds):
                    intervals = [judging.interval(values) for values in draws(draw, rounds)]
                    covered = sum(low <= truth <= high for low, high, _ in intervals) / TRIALS
                    self.assertGreaterEqual(covered, LEAST_COVERAGE)

    def test_is_much_narrower_than_the_spread_of_21_rounds(self):
        for draw, _ in (DISTRIBUTIONS[0], DISTRIBUTIONS[2]):
            widths = [(high - low) / (max(values) - min(values))
                      for values in draws(draw, 21) for low, high, _ in [judging.interval(values)]]
            self.assertLess(sorted(widths)[TRIALS // 2], 0.5)

    def test_of_the_same_rounds_is_the_same_whatever_their_order(self):
        values = draws(skewed, 33)[0]
        self.assertEqual(judging.interval(values), judging.interval(values))
        self.assertEqual(judging.interval(values), judging.interval(list(reversed(values))))
        self.assertEqual(judging.interval(values)[2], "bootstrap")

    def test_below_21_rounds_has_the_ranks_of_the_binomial_table(self):
        # Two-sided 95 % ranks for the median, as printed in tables of the sign test.
        for rounds, ranks in (
            (7, (1, 7)), (8, (1, 8)), (9, (2, 8)), (11, (2, 10)), (15, (4, 12)), (20, (6, 15))
        ):
            self.assertEqual(judging.interval(list(range(1, rounds + 1))), ranks + ("order",))
        self.assertEqual(judging.interval([3, 1, 2]), (1, 3, "spread"))

    def test_covers_exactly_95_percent_or_more_with_any_number_of_rounds(self):
        # How many of n values lie below their true median is binomial: the ranks alone say how
        # often they enclose it.
        for rounds in range(7, 62):
            low, high, _ = judging.interval(list(range(1, rounds + 1)))
            covered = (
                sum(math.comb(rounds, below) for below in range(math.floor(low), math.ceil(high)))
                / 2**rounds)
            self.assertGreaterEqual(covered, 0.95, rounds)

    def test_of_rounds_without_any_scatter_is_a_point(self):
        for rounds in (1, 7, 21):
            self.assertEqual(judging.interval([2.0] * rounds)[:2], (2.0, 2.0))


class Verdict(unittest.TestCase):
    def verdicts(self, draw, scale, rounds, bound):
        return [judging.verdict(values, at_most=bound) for values in draws(draw, rounds, scale)]

    def test_passes_falsely_in_at_most_one_of_forty_at_the_bound_itself(self):
        for draw, truth in DISTRIBUTIONS:
            with self.subTest(distribution=draw.__name__):
                false = share(
                    self.verdicts(draw, 1.05 / truth, 21, 1.05 * (1 - 1e-9)), judging.PASS)
                # 2.5 %, and three standard errors of TRIALS experiments
                self.assertLessEqual(false, 0.04)

    def test_never_passes_what_is_5_percent_too_slow_nor_fails_what_is_5_percent_to_the_good(self):
        for draw, _ in (DISTRIBUTIONS[0], DISTRIBUTIONS[2]):
            self.assertEqual(share(self.verdicts(draw, 1.1025, 21, 1.05), judging.PASS), 0.0)
            self.assertEqual(share(self.verdicts(draw, 1.0, 21, 1.05), judging.FAIL), 0.0)

    def test_of_21_rounds_with_3_percent_noise_decides_5_percent(self):
        self.assertGreaterEqual(share(self.verdicts(normal, 1.0, 21, 1.05), judging.PASS), 0.95)
        self.assertGreaterEqual(share(self.verdicts(normal, 1.1025, 21, 1.05), judging.FAIL), 0.95)

    def test_needs_21_rounds_where_5_percent_decide(self):
        self.assertEqual(judging.verdict([1.0] * 20, at_most=1.05), judging.INCONCLUSIVE)
        self.assertEqual(judging.verdict([1.0] * 21, at_most=1.05), judging.PASS)
        self.assertEqual(judging.verdict([1.0] * 7, at_most=1.3), judging.PASS)
        self.assertEqual(judging.verdict([1.0] * 7, at_least=2.0), judging.FAIL)

    def test_is_inconclusive_when_the_interval_straddles_the_bound(self):
        mixed = [1.0, 1.0, 1.1, 1.3, 2.1, 1.0, 1.0]
        self.assertEqual(judging.verdict(mixed, at_most=1.5), judging.INCONCLUSIVE)
        self.assertEqual(judging.verdict(mixed, at_least=1.5), judging.INCONCLUSIVE)

    def test_is_inconclusive_below_seven_rounds_and_missing_without_any(self):
        self.assertEqual(judging.verdict([1.0] * 6, at_most=2), judging.INCONCLUSIVE)
        self.assertEqual(judging.verdict([1.0] * 6 + [None], at_most=2), judging.INCONCLUSIVE)
        self.assertEqual(judging.verdict([None] * 7, at_most=2), judging.MISSING)

    def test_is_not_moved_by_one_disturbed_round_of_21(self):
        rounds = [1.0 + i / 1000 for i in range(20)] + [9.0]
        self.assertEqual(judging.verdict(rounds, at_most=1.05), judging.PASS)


class Ratios(unittest.TestCase):
    def test_are_taken_round_by_round_and_not_of_the_medians(self):
        # The machine halves its speed from round to round: the ratio stays 2.
        self.assertEqual(judging.per_round([200, 400, 800], [100, 200, 400]), [2, 2, 2])
        summary = judging.summary(judging.per_round([3, 10, 50], [1, 10, 100]))
        self.assertEqual(
            [summary[key] for key in ("median", "min", "max", "rounds")], [1, 0.5, 3, 3])

    def test_leave_out_rounds_without_a_figure(self):
        self.assertEqual(judging.per_round([None, 4, 6, 5], [1, None, 3, 0]), [None, None, 2, None])
        self.assertIsNone(judging.summary([None, None]))

    def test_of_the_best_take_the_best_row_of_each_round(self):
        columns = [[5, 1, None], [3, 4, None]]
        self.assertEqual(judging.best_of(columns, more_is_better=False), [3, 1, None])
        self.assertEqual(judging.best_of(columns, more_is_better=True), [5, 4, None])

    def test_of_the_best_overall_take_one_row_in_all_rounds(self):
        columns = [[5, 1, 9], [3, 4, None], [None, None, None]]
        self.assertEqual(judging.best_overall(columns, more_is_better=False), [3, 4, None])
        self.assertEqual(judging.best_overall(columns, more_is_better=True), [5, 1, 9])
        self.assertEqual(judging.best_overall([[None, None]], more_is_better=True), [None, None])

    def test_of_equals_each_is_one_with_the_best_overall_and_worse_than_the_best_of_rounds(self):
        generator = random.Random(7)
        ours, *others = [[generator.gauss(100, 8) for _ in range(2001)] for _ in range(4)]

        def middle(base):
            return judging.summary(judging.per_round(ours, base))["median"]
        self.assertAlmostEqual(
            middle(judging.best_overall(others, more_is_better=True)), 1, delta=0.01)
        self.assertLess(middle(judging.best_of(others, more_is_better=True)), 0.95)


if __name__ == "__main__":
    unittest.main()
