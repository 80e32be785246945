"""What is derived from a measured curve, and its smoothed form. Pure.

A curve is [(bytes, Gb/s)], ascending by bytes.
"""
import math

LATENCY_SIZES = 10  # NetPIPE: the latency is the mean of the first ten sizes
BEST_RATES = 10  # and the bandwidth the mean of the ten highest rates; 5 without neighbours
SATURATED = 0.9  # of the bandwidth
SMOOTH_POINTS = 100  # gnuplot's default of `samples`


def latency_us(rows):
    """Of rows with `bytes` and `trials`; the sizes are NetPIPE's, from 1 byte on."""
    first = rows[:LATENCY_SIZES]
    return 1e6 * sum(sum(row["trials"]) / len(row["trials"]) for row in first) / len(first)


def bandwidth_gbps(points, best=BEST_RATES):
    rates = sorted((rate for _, rate in points), reverse=True)[:best]
    return sum(rates) / len(rates)


def half_power_bytes(points):
    """The smallest size that has half of the highest rate, between two measured ones on a logarithmic axis."""
    half = max(rate for _, rate in points) / 2
    before = None
    for size, rate in points:
        if rate >= half:
            if before is None or rate == before[1]:
                return size
            share = (half - before[1]) / (rate - before[1])
            return round(math.exp(math.log(before[0]) + share * (math.log(size) - math.log(before[0]))))
        before = (size, rate)
    return points[-1][0]


def saturation_bytes(points):
    """The smallest size from which on no rate is below 90 % of the bandwidth; None if the last one still is."""
    level, found = SATURATED * bandwidth_gbps(points, min(BEST_RATES, max(1, len(points) // 4))), None
    for size, rate in reversed(points):
        if rate < level:
            break
        found = size
    return found


def derived(rows, points):
    """The figures of a curve, for a report."""
    return {"latency_us": round(latency_us(rows), 3), "bandwidth_gbps": round(bandwidth_gbps(points), 4),
            "half_power_bytes": half_power_bytes(points), "saturation_bytes": saturation_bytes(points)}


def _bernstein(degree, share):
    """The weights of all control points at 0 < share < 1, by logarithms: degree choose k overflows from 1,030 on."""
    low, high = math.log(share), math.log1p(-share)
    return [math.exp(math.lgamma(degree + 1) - math.lgamma(k + 1) - math.lgamma(degree - k + 1) + k * low + (degree - k) * high)
            for k in range(degree + 1)]


def bezier(points, samples=SMOOTH_POINTS):
    """gnuplot's `smooth bezier`: the curve of degree n - 1 whose control points are all n points.

    It begins and ends at the first and the last of them and passes by the rest. Sizes are taken as logarithms,
    as gnuplot 4 did under `set logscale x`; gnuplot 5 takes them as they are, which gives the same rates.
    """
    if len(points) < 3:
        return [(float(size), rate) for size, rate in points]
    logs = [math.log(size) for size, _ in points]
    curve = [(float(points[0][0]), points[0][1])]
    for step in range(1, samples - 1):
        weights = _bernstein(len(points) - 1, step / (samples - 1))
        curve.append((math.exp(sum(w * x for w, x in zip(weights, logs))), sum(w * y for w, (_, y) in zip(weights, points))))
    return curve + [(float(points[-1][0]), points[-1][1])]
