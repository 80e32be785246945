"""Ratios of interleaved rounds and what they say about a target.

Pure: lists of numbers in, numbers and words out. A round in which a row has no
figure is None and takes no part in a ratio.
"""
import random
import statistics

# Below this many rounds with both figures no verdict is given.
MINIMUM_ROUNDS = 7
# From this many rounds on, the interval is the bootstrap interval of the median
# instead of the whole spread: a single disturbed round then no longer decides.
BOOTSTRAP_ROUNDS = 21
BOOTSTRAP_SAMPLES = 2000
BOOTSTRAP_CONFIDENCE = 0.95

MET, MISSED, INCONCLUSIVE, MISSING = "met", "missed", "inconclusive", "missing"


def summary(values):
    """{"median","min","max","rounds"} of the figures that exist, or None."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    return {"median": statistics.median(present), "min": min(present), "max": max(present),
            "rounds": len(present)}


def per_round(values, baseline):
    """values[i] / baseline[i], None where either is missing or the baseline is zero."""
    return [value / base if value is not None and base else None
            for value, base in zip(values, baseline)]


def best_of(columns, more_is_better):
    """The best row of each round, as if it were one row."""
    pick = max if more_is_better else min
    return [pick(present) if (present := [value for value in row if value is not None]) else None
            for row in zip(*columns)]


def bootstrap_interval(values, seed=1):
    """Confidence interval of the median by resampling; same seed, same interval."""
    generator = random.Random(seed)
    medians = sorted(statistics.median(generator.choices(values, k=len(values)))
                     for _ in range(BOOTSTRAP_SAMPLES))
    tail = (1 - BOOTSTRAP_CONFIDENCE) / 2
    low = medians[int(tail * (BOOTSTRAP_SAMPLES - 1))]
    high = medians[int((1 - tail) * (BOOTSTRAP_SAMPLES - 1))]
    return low, high


def interval(ratios):
    """(low, high, how) of the ratios that exist."""
    present = [ratio for ratio in ratios if ratio is not None]
    if len(present) >= BOOTSTRAP_ROUNDS:
        low, high = bootstrap_interval(present)
        return low, high, "bootstrap"
    return min(present), max(present), "spread"


def verdict(ratios, at_most=None, at_least=None):
    """What the rounds say: met or missed only if the whole interval agrees."""
    present = [ratio for ratio in ratios if ratio is not None]
    if not present:
        return MISSING
    if len(present) < MINIMUM_ROUNDS:
        return INCONCLUSIVE
    low, high, _ = interval(present)
    if at_most is not None:
        return MET if high <= at_most else MISSED if low > at_most else INCONCLUSIVE
    return MET if low >= at_least else MISSED if high < at_least else INCONCLUSIVE
