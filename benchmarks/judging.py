"""What interleaved rounds say: ratios, their median, an interval for it, a verdict.

The one place for the statistics of every comparison. Pure: lists of numbers in, numbers
and words out; it knows no program, no clock and no file. A round in which a row has no
figure is None and takes no part in a ratio.

The interval is for the median of the per-round ratios, at 95 %:
- from 21 rounds on by bootstrap, seeded, so that the same rounds give the same interval;
- below that from the order statistics alone, whose coverage is exact for any distribution
  (Conover, Practical Nonparametric Statistics, 3.2); with 7 and 8 rounds it is the whole spread.
Both are rounded outwards: coverage is at least 95 %, and judging_test.py measures it.
"""
import bisect
import functools
import math
import random

# Below this many rounds with both figures no verdict is given: of six, even the whole spread
# is what 3 % of fair coins give.
MINIMUM_ROUNDS = 7
# Where the median lies within 5 % of the bound, 5 % decide: then a verdict takes this many.
DECISIVE_ROUNDS = 21
DECISIVE_SHARE = 0.05
BOOTSTRAP_SAMPLES = 2000
CONFIDENCE = 0.95
# A round in which the host took more of the processors than this is run again.
MAX_STEAL_PERCENT = 5.0

PASS, FAIL, INCONCLUSIVE, MISSING = "pass", "fail", "inconclusive", "missing"


def median(ordered):
    """Of values in ascending order."""
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def present(values):
    return [value for value in values if value is not None]


def summary(values):
    """{"median","min","max","low","high","how","rounds"} of the figures that exist, or None."""
    ordered = sorted(present(values))
    if not ordered:
        return None
    low, high, how = interval(ordered)
    return {"median": median(ordered), "min": ordered[0], "max": ordered[-1],
            "low": low, "high": high, "how": how, "rounds": len(ordered)}


def per_round(values, baseline):
    """values[i] / baseline[i], None where either is missing or the baseline is zero."""
    return [value / base if value is not None and base else None
            for value, base in zip(values, baseline)]


def best_of(columns, more_is_better):
    """The best row of each round, as if it were one row."""
    pick = max if more_is_better else min
    return [pick(present(row)) if present(row) else None for row in zip(*columns)]


def best_overall(columns, more_is_better):
    """The row with the best median, as it is: of rows that do the same, the best of each round is
    only the luckiest."""
    known = [row for row in columns if present(row)]
    if not known:
        return [None] * max(map(len, columns), default=0)
    return (max if more_is_better else min)(known, key=lambda row: median(sorted(present(row))))


@functools.lru_cache(maxsize=64)
def resampled_medians(count, seed):
    """The median of each resample of `count` values, as the ranks of the one or two values that
    make it.

    Ranks depend on no value: they are drawn once for each count.
    """
    generator = random.Random(seed)
    samples = (sorted(generator.choices(range(count), k=count)) for _ in range(BOOTSTRAP_SAMPLES))
    return [(sample[(count - 1) // 2], sample[count // 2]) for sample in samples]


def bootstrap_interval(ordered, seed=1):
    """Interval of the median by resampling: the nearest values that at most 2.5 % of the resampled
    medians are at or beyond.

    The plain percentile would be one value nearer and cover 92 % with 21 values.
    """
    medians = sorted(
        (ordered[i] + ordered[j]) / 2 for i, j in resampled_medians(len(ordered), seed))
    allowed = (1 - CONFIDENCE) / 2 * BOOTSTRAP_SAMPLES
    lows = [value for value in ordered if bisect.bisect_right(medians, value) <= allowed]
    highs = [
        value for value in ordered if len(medians) - bisect.bisect_left(medians, value) <= allowed]
    return (lows[-1] if lows else ordered[0]), (highs[0] if highs else ordered[-1])


def order_interval(ordered):
    """The narrowest pair of order statistics, equally far from both ends, that covers the median at
    CONFIDENCE."""
    count, outside, rank = len(ordered), 0.0, 0
    while rank < (count - 1) // 2:
        # Median outside [rank + 1, count - rank]: at most `rank` of the values on one side of it.
        outside += 2 * math.comb(count, rank) / 2 ** count
        beyond = outside + 2 * math.comb(count, rank + 1) / 2 ** count
        if beyond > 1 - CONFIDENCE:
            break
        rank += 1
    return ordered[rank], ordered[count - 1 - rank]


def interval(values):
    """(low, high, how) for the median of the values that exist; how: "bootstrap", "order" or, of
    too few, "spread"."""
    ordered = sorted(present(values))
    if len(ordered) >= DECISIVE_ROUNDS:
        return bootstrap_interval(ordered) + ("bootstrap",)
    if len(ordered) >= MINIMUM_ROUNDS:
        return order_interval(ordered) + ("order",)
    return ordered[0], ordered[-1], "spread"


def rounds_needed(ratios, bound):
    """How many rounds a verdict about this bound takes, judging from the rounds so far."""
    middle = median(sorted(present(ratios)))
    close = abs(middle - bound) <= DECISIVE_SHARE * abs(bound)
    return DECISIVE_ROUNDS if close else MINIMUM_ROUNDS


def wants_rounds(judged):
    """Whether a target (compare.judge) has no verdict because there were too few rounds for any.
    False of results recorded before there was "rounds_needed"."""
    needed = judged.get("rounds_needed")
    return bool(
        needed
        and judged["ratio"]
        and judged["verdict"] == INCONCLUSIVE
        and judged["ratio"]["rounds"] < needed)


def verdict(ratios, at_most=None, at_least=None):
    """Pass or fail only if the whole interval agrees and there are rounds enough."""
    known = present(ratios)
    if not known:
        return MISSING
    bound = at_most if at_most is not None else at_least
    if len(known) < rounds_needed(known, bound):
        return INCONCLUSIVE
    low, high, _ = interval(known)
    if at_most is not None:
        return PASS if high <= at_most else FAIL if low > at_most else INCONCLUSIVE
    return PASS if low >= at_least else FAIL if high < at_least else INCONCLUSIVE
