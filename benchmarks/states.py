"""In which of its two states the machine was while a row ran, from a gauge that runs before and
after it.

A host moves the two processors of a guest nearer together or farther apart (docs/performance.md,
"Machine"), within seconds. The gauge is a bare flag in one cache line: 0.03 to 0.06 us one way
where the processors share a core or a near cache, 0.15 us and more where they do not. What one row
took in the one state says nothing beside what another took in the other.
Pure: the caller runs the gauge.
"""

NEAR, FAR = "near", "far"
BOTH = (NEAR, FAR)
# Nothing that was measured lies between 65 and 140 ns.
FAR_FROM_NS = 95.0
# A row during which the state changed runs again, so often in all.
TRIES = 3


def of_gauge(one_way_ns):
    """None: the gauge has no figure."""
    return None if one_way_ns is None else FAR if one_way_ns >= FAR_FROM_NS else NEAR


def within_one(run, gauge):
    """(what `run()` gave, the state that it ran in; None if that changed each time).

    `gauge()` gives ns or None.
    """
    for _ in range(TRIES):
        before, ran, after = of_gauge(gauge()), run(), of_gauge(gauge())
        if before == after:
            return ran, before
    return ran, None


def told(rounds):
    """The states that figures of these rounds are compared within; (None,) if no gauge ran."""
    gauged = any("machine" in figure for one in rounds for figure in one["figures"].values())
    return BOTH if gauged else (None,)


def first_present(columns):
    """Of columns of which each round has one at most, that one."""
    return [next((each for each in row if each is not None), None) for row in zip(*columns)]
