"""Parameter computation: which values are tried, and which one is chosen. Pure: measuring is an argument.

`measure(setting, effort)` sets a setting everywhere, tests all nodes in parallel and returns {node: {size: Gb/s}}.
A setting is {parameter: value}; DEFAULT is what each node had before. `effort` 1 is a whole run, 0.25 a quarter of one.
"""
import collections
import itertools
import math
import random

DEFAULT = "default"
ALGORITHMS = ("halving", "descent", "exhaustive", "rusan")
# The modern ones may spend so much of what an exhaustive search would.
SHARE_OF_RUNS = 0.25
# A gain below this is no gain: runs of one setting differ by more.
INDIFFERENT = 0.005
# Settings of which one stays in the next round of halving.
KEPT_ONE_IN = 4
# Restarts that brought nothing, after which the search ends before its runs are spent.
PATIENCE = 3


def generate_set(start, end):
    """The set E of the original: from `start`, doubled until `end`."""
    values, value = [], start
    while value <= end:
        values.append(value)
        value = get_next_iter(value)
    return values


def get_next_iter(value):
    return value * 2


def get_max_count(best):
    """The value that wins for most sizes; of several the one that wins for the larger sizes.

    `best`: {size: value}.
    """
    counts = collections.Counter(best.values())
    most = max(counts.values())
    return next(best[size] for size in sorted(best, reverse=True) if counts[best[size]] == most)


def sums_over_nodes(results):
    """S of the original: {size: Gb/s of all nodes together}."""
    sums = collections.defaultdict(float)
    for rates in results.values():
        for size, rate in rates.items():
            sums[size] += rate
    return dict(sums)


def score(results):
    """One number for a setting: the geometric mean over sizes of what all nodes reach together."""
    sums = [rate for rate in sums_over_nodes(results).values() if rate > 0]
    return math.exp(sum(math.log(rate) for rate in sums) / len(sums)) if sums else 0.0


class _Spent(Exception):
    """No run is left."""


class ParameterComputation:
    """`space`: {parameter: [value, ...]} in the order in which they are tuned; values of a list ascend."""

    def __init__(self, space, seed=1):
        self.space = space
        self._random = random.Random(seed)
        self.runs = 0.0  # that were spent, in whole ones
        self.tables = []  # of rusan: one for each parameter
        self.measured = {}  # {values in the order of the space: score}

    def choose(self, algorithm, measure):
        """The setting that the algorithm finds."""
        def counted(setting, effort=1.0):
            self.runs += effort
            return measure(setting, effort)
        return getattr(self, algorithm)(counted)

    def grid(self):
        return list(itertools.product(*self.space.values()))

    def _setting(self, point):
        return dict(zip(self.space, point))

    def rusan(self, measure):
        """The original: one parameter after the other, the winner of most sizes stays.

        Its names: N nodes, T parameters to test, E the set of values, MS sizes, R results, S sums over nodes,
        B the best value of each size, X what was chosen. The default is not among the values, as in the original.
        """
        chosen = dict.fromkeys(self.space, DEFAULT)  # X
        for parameter, values in self.space.items():  # T
            sums = {}  # S
            for value in (each for each in values if each != DEFAULT):  # E, by get_next_iter
                results = measure(dict(chosen, **{parameter: value}), 1.0)  # R, of all nodes N in parallel
                sums[value] = sums_over_nodes(results)
            sizes = sorted(next(iter(sums.values())))  # MS
            best = {size: max(sums, key=lambda value, size=size: sums[value].get(size, 0.0)) for size in sizes}  # B
            chosen[parameter] = get_max_count(best)
            self.tables.append({"parameter": parameter, "sums": sums, "best": best, "chosen": chosen[parameter]})
        return chosen

    def exhaustive(self, measure):
        for point in self.grid():
            self.measured[point] = score(measure(self._setting(point), 1.0))
        return self._setting(max(self.measured, key=self.measured.get))

    def budget(self):
        """Whole runs that descent and halving may spend: a quarter of the grid, and at least a handful."""
        return max(min(4, len(self.grid())), int(len(self.grid()) * SHARE_OF_RUNS))

    def descent(self, measure):
        """Coordinate descent from the best of a few spread points, with restarts; ends early if they bring nothing."""
        budget = self.budget()

        def value(point):
            if point not in self.measured:
                if len(self.measured) >= budget:
                    raise _Spent
                self.measured[point] = score(measure(self._setting(point), 1.0))
            return self.measured[point]

        first = tuple(DEFAULT if DEFAULT in values else values[-1] for values in self.space.values())
        try:
            value(first)
            for point in self._spread(budget // 3):
                value(point)
            fruitless, current = 0, self._best()
            while fruitless < PATIENCE:
                before = self.measured[self._best()]
                self._climb(current, value)
                fruitless = 0 if self.measured[self._best()] > before * (1 + INDIFFERENT) else fruitless + 1
                current = self._spread(1)[0]
        except (_Spent, IndexError):  # no run is left, or no point
            pass
        return self._setting(self._best())

    def _best(self):
        return max(self.measured, key=self.measured.get)

    def _spread(self, count):
        """Points that were not measured, one from each of `count` parts of their list."""
        points = [point for point in self.grid() if point not in self.measured]
        cuts = [len(points) * part // count for part in range(count + 1)] if count else []
        return [points[self._random.randrange(low, high)] for low, high in zip(cuts, cuts[1:]) if low < high]

    def _climb(self, current, value):
        """To a point none of whose neighbours is better."""
        best = value(current)
        improved = True
        while improved:
            improved = False
            for move in self._moves():
                step = 1
                while (beside := self._moved(current, move, step)) is not None and value(beside) > best * (1 + INDIFFERENT):
                    current, best, improved = beside, value(beside), True
                    step *= 2

    def _moves(self):
        """Along each parameter, and along all that have an order at once: two buffers often help only together."""
        names = list(self.space)
        single = [tuple(way if name == each else 0 for name in names) for each in names for way in (1, -1)]
        ordered = [len(values) > 3 for values in self.space.values()]
        both = [tuple(way * many for many in ordered) for way in (1, -1)] if sum(ordered) > 1 else []
        return single + both

    def _moved(self, point, move, step):
        moved = []
        for values, at, way in zip(self.space.values(), point, move):
            index = values.index(at) + way * step
            if not 0 <= index < len(values):
                return None
            moved.append(values[index])
        return tuple(moved)

    def halving(self, measure):
        """Successive halving: all settings for a moment, the best quarter for four times as long, and so on.

        A quarter and not a half, because a measurement takes a while to begin, however short it is.
        """
        arms = self.grid()
        rungs = max(1, math.ceil(math.log(len(arms), KEPT_ONE_IN)))
        share = self.budget() / rungs  # whole runs of each rung
        while True:
            effort = min(1.0, share / len(arms))
            self.measured = {arm: score(measure(self._setting(arm), effort)) for arm in arms}
            if len(arms) <= KEPT_ONE_IN:
                return self._setting(self._best())
            arms = sorted(arms, key=self.measured.get, reverse=True)[:math.ceil(len(arms) / KEPT_ONE_IN)]
