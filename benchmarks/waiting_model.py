#!/usr/bin/env python3
"""What a controller of the polling budget could gain, in virtual time.

    benchmarks/waiting_model.py [--wake-us 20] [--sleep-cpu-us 5] [--waits 20000]

A waiter polls for its budget and then sleeps. If what it waits for comes while it polls, the wait
costs as much CPU as it was long and nothing in time; else its budget and the CPU of going to sleep
and waking, and the message is seen later by the wake. Both figures are this machine's:
benchmarks/bare/operation_cost has the wake. Policies:

  sleep, poll B   a fixed budget: none, or B us at every wait
  library         what Context::wait() does: 60 us, and none while the smoothed wait, less half of
                  that where it slept, is
                  longer; not what it does where two need one processor
  following       the library, but a poll in vain takes an eighth off the budget, down to a
                  sixteenth, and where a wait ended soon
                  after the poll the budget doubles, up to 60 us again; not built
  ladder          as DIM does with interrupts: steps of 0, 1, 8, 64, 128, 256 us; every 64 waits it
                  goes on in the
                  same direction while cost falls, else turns; cost is time and CPU, alike
  oracle          knows each gap and takes the cheaper

Nothing is measured here, and no policy costs CPU itself: a policy that does not pay here does not
pay.
"""
import argparse
import random

LADDER = [0, 1, 8, 64, 128, 256]


class Fixed:
    def __init__(self, budget):
        self.budget = budget

    def polls(self, _gap):
        return self.budget

    def waited(self, _seen, _late, _cost):
        pass


class Library(Fixed):
    """transport/runtime/context_core.cc, spin() and wait()."""

    def __init__(self, budget=60.0):
        super().__init__(budget)
        self.typical = 0.0

    def polls(self, _gap):
        return 0.0 if self.typical > self.budget else self.budget

    def waited(self, seen, late, _cost):
        gap = max(seen - self.budget / 2, 0.0) if late else seen
        self.typical = (self.typical * 7 + min(gap, 4 * self.budget)) / 8


class Following(Library):
    def __init__(self, budget=60.0):
        super().__init__(budget)
        self.current = budget

    def polls(self, _gap):
        return 0.0 if self.typical > self.budget else self.current

    def waited(self, seen, late, _cost):
        polled = self.polls(0)
        super().waited(seen, late, _cost)
        if not late or not polled:
            return
        if seen <= polled + self.budget / 2:  # a wake, and a little
            self.current = min(2 * self.current, self.budget)
        else:
            self.current = max(self.current * 7 / 8, self.budget / 16)


class Ladder(Fixed):
    WINDOW = 64

    def __init__(self):
        super().__init__(0)
        self.step, self.direction, self.costs, self.before = 3, 1, [], None

    def polls(self, _gap):
        return LADDER[self.step]

    def waited(self, _seen, _late, cost):
        self.costs.append(cost)
        if len(self.costs) < self.WINDOW:
            return
        mean = sum(self.costs) / len(self.costs)
        if self.before is not None and mean > self.before:
            self.direction = -self.direction
        self.before, self.costs = mean, []
        self.step = min(max(self.step + self.direction, 0), len(LADDER) - 1)


class Oracle(Fixed):
    def __init__(self, wake, sleep_cpu):
        super().__init__(0)
        self.wake, self.sleep_cpu = wake, sleep_cpu

    def polls(self, gap):
        return gap if gap <= self.wake + self.sleep_cpu else 0.0


def patterns(waits, seed=1):
    """name -> gaps in us."""
    draw = random.Random(seed)
    made = {f"every {gap} us": [float(gap)] * waits for gap in (5, 20, 50, 100, 200, 500)}
    made["eight 8 us apart, then 200 us"] = [200.0 if at % 8 == 7 else 8.0 for at in range(waits)]
    made["eight 8 us apart, then 1000 us"] = [1000.0 if at % 8 == 7 else 8.0 for at in range(waits)]
    made["exponential, mean 30 us"] = [draw.expovariate(1 / 30) for _ in range(waits)]
    made["exponential, mean 100 us"] = [draw.expovariate(1 / 100) for _ in range(waits)]
    made["phases of 500: 10 us, then 300 us"] = [
        10.0 if at // 500 % 2 == 0 else 300.0 for at in range(waits)]
    return made


def run(policy, gaps, wake, sleep_cpu):
    """(us later than it came, us of CPU), means of all waits."""
    late = cpu = 0.0
    for gap in gaps:
        budget = policy.polls(gap)
        one_late, one_cpu = (0.0, gap) if gap <= budget else (wake, budget + sleep_cpu)
        policy.waited(gap + one_late, one_late, one_late + one_cpu)
        late, cpu = late + one_late, cpu + one_cpu
    return late / len(gaps), cpu / len(gaps)


def policies(wake, sleep_cpu):
    return {
        "sleep": Fixed(0.0), "poll 8": Fixed(8.0), "poll 25": Fixed(wake + sleep_cpu),
        "poll 60": Fixed(60.0), "poll 256": Fixed(256.0), "library": Library(),
        "following": Following(), "ladder": Ladder(), "oracle": Oracle(wake, sleep_cpu)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wake-us", type=float, default=20.0)
    parser.add_argument("--sleep-cpu-us", type=float, default=5.0)
    parser.add_argument("--waits", type=int, default=20000)
    options = parser.parse_args()
    names = list(policies(0, 0))
    print(
        "| us late + us of CPU, a wait | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1)
    )
    for pattern, gaps in patterns(options.waits).items():
        cells = []
        for policy in policies(options.wake_us, options.sleep_cpu_us).values():
            late, cpu = run(policy, gaps, options.wake_us, options.sleep_cpu_us)
            cells.append(f"{late:.0f} + {cpu:.0f}")
        print(f"| {pattern} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
