#!/usr/bin/env python3
"""Which values are tried and which is chosen, on response surfaces that are computed or were recorded. Nothing is random."""
import itertools
import json
import math
import os
import random
import statistics
import sys
import unittest

import modules
from parameter_computation import (DEFAULT, ParameterComputation, generate_set, get_max_count, get_next_iter, score,
                                   sums_over_nodes)

SIZES = (1024, 16384, 262144)
BUFFERS = generate_set(4096, 524288)
SPACE = {"rmem": [*BUFFERS, DEFAULT], "wmem": [*BUFFERS, DEFAULT], "scaling": [0, 1]}
RECORDED = os.path.join(modules.HERE, "recorded.json")


def results(rate):
    """Of two nodes, the same for every size."""
    return {"n1": dict.fromkeys(SIZES, rate / 2), "n2": dict.fromkeys(SIZES, rate / 2)}


class Table:
    """A surface as a function of a setting, with noise that depends on seed, setting and how often it was asked."""

    def __init__(self, rate, noise=0.0, seed=0):
        self._rate, self._noise, self._seed, self.asked = rate, noise, seed, []

    def __call__(self, setting, effort):
        draw = random.Random(f"{self._seed} {sorted(setting.items())} {len(self.asked)}")
        self.asked.append((dict(setting), effort))
        return results(self._rate(setting) * (1 + self._noise / math.sqrt(effort) * draw.gauss(0, 1)))


def at(value, default=1 << 22):
    return default if value == DEFAULT else value


def narrower(setting):
    """The smaller of two buffers limits: only both together help."""
    return min(at(setting["rmem"]), at(setting["wmem"])) ** 0.3 * (1 if setting["scaling"] else 0.8)


def narrow_by_default(setting):
    """The same, where the kernel's own values are small."""
    return min(at(setting["rmem"], 1 << 13), at(setting["wmem"], 1 << 13)) ** 0.3


def peak(setting):
    """Best at 16 KiB and 32 KiB, as in the original's figure 6."""
    def near(value, best):
        return math.exp(-abs(math.log2(at(value, 1 << 18) / best)) / 6)
    return near(setting["rmem"], 1 << 14) * near(setting["wmem"], 1 << 15) * (1 if setting["scaling"] else 0.95)


def flat(setting):
    return 1.0 - (0.3 if setting["rmem"] == 4096 else 0)


def two_hills(setting):
    """A low one around the default, a higher one far from it."""
    low = math.exp(-abs(math.log2(at(setting["wmem"]) / (1 << 22))))
    high = 1.3 * math.exp(-abs(math.log2(at(setting["rmem"]) / (1 << 13))) / 3)
    return 1 + max(low, high)


SURFACES = {"narrower": narrower, "narrow by default": narrow_by_default, "peak": peak, "flat": flat, "two hills": two_hills}


class Rusan(unittest.TestCase):
    def test_a_set_doubles_from_its_start_to_its_end(self):
        self.assertEqual(generate_set(4096, 65536), [4096, 8192, 16384, 32768, 65536])
        self.assertEqual(generate_set(4096, 65535), [4096, 8192, 16384, 32768])
        self.assertEqual(get_next_iter(4096), 8192)

    def test_the_value_that_wins_most_sizes_is_chosen_and_of_two_the_one_for_larger_sizes(self):
        self.assertEqual(get_max_count({1: "a", 2: "a", 3: "b"}), "a")
        self.assertEqual(get_max_count({1: "a", 2: "b", 3: "b", 4: "a"}), "a")
        self.assertEqual(get_max_count({1: "a", 2: "a", 3: "b", 4: "b"}), "b")

    def test_results_of_all_nodes_add_up(self):
        self.assertEqual(sums_over_nodes({"n1": {64: 1.0, 128: 2.0}, "n2": {64: 3.0, 128: 5.0}}), {64: 4.0, 128: 7.0})

    def test_the_original_finds_what_was_computed_by_hand(self):
        # Gb/s of two nodes at sizes 1, 2, 3. rmem: 8 wins sizes 2 and 3. Then wmem, with rmem = 8: 4 wins sizes 1 and 2,
        # 8 wins size 3. Scaling last: 1 wins all.
        by_hand = {
            (4, None, None): {"n1": {1: 5, 2: 1, 3: 1}, "n2": {1: 5, 2: 1, 3: 1}},
            (8, None, None): {"n1": {1: 4, 2: 9, 3: 1}, "n2": {1: 4, 2: 0, 3: 2}},
            (8, 4, None): {"n1": {1: 7, 2: 7, 3: 1}, "n2": {1: 1, 2: 1, 3: 1}},
            (8, 8, None): {"n1": {1: 6, 2: 6, 3: 6}, "n2": {1: 1, 2: 1, 3: 1}},
            (8, 4, 0): {"n1": {1: 1, 2: 1, 3: 1}, "n2": {1: 1, 2: 1, 3: 1}},
            (8, 4, 1): {"n1": {1: 2, 2: 2, 3: 2}, "n2": {1: 1, 2: 1, 3: 1}},
        }
        asked = []

        def measure(setting, effort):
            key = tuple(None if setting[name] == DEFAULT else setting[name] for name in ("rmem", "wmem", "scaling"))
            asked.append(key)
            self.assertEqual(effort, 1.0)
            return by_hand[key]

        computation = ParameterComputation({"rmem": [4, 8, DEFAULT], "wmem": [4, 8, DEFAULT], "scaling": [0, 1]})
        self.assertEqual(computation.choose("rusan", measure), {"rmem": 8, "wmem": 4, "scaling": 1})
        self.assertEqual(asked, list(by_hand))
        self.assertEqual([table["best"] for table in computation.tables], [{1: 4, 2: 8, 3: 8}, {1: 4, 2: 4, 3: 8}, {1: 1, 2: 1, 3: 1}])
        self.assertEqual(computation.tables[0]["sums"], {4: {1: 10, 2: 2, 3: 2}, 8: {1: 8, 2: 9, 3: 3}})


class Modern(unittest.TestCase):
    def share_found(self, algorithm, table, space=None, seed=1):
        """What was found by what an exhaustive search finds; and the share of its runs."""
        computation = ParameterComputation(space or SPACE, seed)
        found = computation.choose(algorithm, table)
        rate = {tuple(setting): table._rate(dict(zip(computation.space, setting))) for setting in computation.grid()}
        return rate[tuple(found[name] for name in computation.space)] / max(rate.values()), computation.runs / len(computation.grid())

    def test_an_exhaustive_search_measures_every_setting_once(self):
        for name, surface in SURFACES.items():
            with self.subTest(name):
                self.assertEqual(self.share_found("exhaustive", Table(surface)), (1.0, 1.0))

    def test_a_quarter_of_the_runs_finds_95_percent_of_the_best(self):
        for algorithm, (name, surface), seed in itertools.product(("descent", "halving"), SURFACES.items(), range(1, 101)):
            with self.subTest(algorithm, surface=name, seed=seed):
                found, runs = self.share_found(algorithm, Table(surface), seed=seed)
                self.assertGreaterEqual(found, 0.95)
                self.assertLessEqual(runs, 0.25)

    def test_noise_of_three_percent_costs_no_more_than_that(self):
        for algorithm, (name, surface) in itertools.product(("descent", "halving"), SURFACES.items()):
            shares = sorted(self.share_found(algorithm, Table(surface, noise=0.03, seed=seed), seed=seed)[0] for seed in range(1, 22))
            with self.subTest(algorithm, surface=name):
                self.assertGreaterEqual(shares[len(shares) // 2], 0.95)

    def test_what_was_recorded_on_a_shaped_line_is_found_too(self):
        with open(RECORDED, encoding="utf-8") as file:
            recorded = json.load(file)
        rates = {tuple(point): rate for point, rate in recorded["measured"]}
        table = Table(lambda setting: rates[tuple(setting.values())])
        for algorithm, usual, least in (("halving", 0.95, 0.95), ("descent", 0.95, 0.85)):
            shares = [self.share_found(algorithm, table, recorded["space"], seed) for seed in range(1, 101)]
            with self.subTest(algorithm):
                self.assertLessEqual(max(runs for _, runs in shares), 0.25)
                self.assertGreaterEqual(statistics.median(found for found, _ in shares), usual)
                self.assertGreaterEqual(min(found for found, _ in shares), least)

    def test_the_descent_ends_before_its_runs_are_spent_where_nothing_helps(self):
        space = {"rmem": list(range(12)), "wmem": list(range(12)), "scaling": [0, 1]}
        computation = ParameterComputation(space)
        computation.choose("descent", Table(lambda setting: 1.0))
        self.assertLess(computation.runs, 0.75 * computation.budget())

    def test_a_setting_is_not_measured_twice(self):
        table = Table(peak)
        ParameterComputation(SPACE).choose("descent", table)
        points = [tuple(setting.values()) for setting, _ in table.asked]
        self.assertEqual(len(points), len(set(points)))

    def test_a_score_is_the_geometric_mean_over_sizes_of_the_sum_over_nodes(self):
        self.assertAlmostEqual(score({"n1": {64: 1.0, 128: 3.0}, "n2": {64: 1.0, 128: 5.0}}), 4.0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
