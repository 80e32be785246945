"""NetPIPE's schedule and columns: which sizes, how often, and what a line of np.out holds. Knows no socket.

After src/netpipe.c of NetPIPE 5 (github.com/xosevp/netpipe-5.x); the sizes are those of Debian's 3.7.2, too.
"""
import itertools

PERTURBATION = 3  # bytes to either side of a size
TRIALS = 7
RUN_SECONDS = 0.25  # that a trial aims at
FEWEST_REPEATS = 3
MOST_REPEATS = 1_000_000_000
FIRST_GUESS_SECONDS = 10e-6  # of one message, before any was measured
STOP_SECONDS = 10.0  # no larger size after one that took so long
LAST_SIZE = 10_000_000
NO_CACHE_BYTES = 200 * 1000 * 1000  # through which --nocache walks, at either end


def sizes(start=1, end=LAST_SIZE, perturbation=PERTURBATION):
    """1, 2, 3, 4, 6, 8, 12, 13, 16, 19, ...: the increment doubles at every second step; neighbours once it is above 4."""
    increment = start // 2 if start > 1 else 1
    count = 1 if start > 1 else 0
    length = start
    while True:
        if count > 2 and count % 2:
            increment *= 2
        near = perturbation > 0 and increment > perturbation + 1
        for beside in ((-perturbation, 0, perturbation) if near else (0,)):
            yield length + beside
            count += 1
        length += increment
        if length > end:
            return


def powers_of_two(start, end):
    """`start`, doubled until `end`: --fac2, without neighbours."""
    return itertools.takewhile(lambda size: size <= end, (start << step for step in itertools.count()))


def repeats(last_seconds, run_seconds=RUN_SECONDS, constant=0):
    """Messages in one trial, after the time of one message of the size before."""
    if constant:
        return constant
    return min(max(int(run_seconds / last_seconds), FEWEST_REPEATS), MOST_REPEATS)


def rate_gbps(size, seconds):
    return size * 8e-9 / seconds


def np_out_line(row):
    """"%9d %9.3lf %9.3lf %9.3lf %7.2lf": bytes; average, least and greatest Gb/s; microseconds.

    `row`: bytes and the seconds of one message in each trial. A row with failures has no figure.
    """
    size, times = row["bytes"], row["trials"]
    if row.get("integrity"):
        return f"{size:9d} bytes {row['repeats']:6d} times {row['failures']:8d} failures"
    if row["failures"]:
        return f"{size:9d} failed: {row['failures']} messages arrived changed"
    average = sum(times) / len(times)
    return (f"{size:9d} {rate_gbps(size, average):9.3f} {rate_gbps(size, max(times)):9.3f} "
            f"{rate_gbps(size, min(times)):9.3f} {average * 1e6:7.2f}")


def parsed_np_out(text):
    """[(bytes, average Gb/s)] of a file in these columns, or in those of 3.7.2 (bytes, Mb/s, seconds)."""
    points = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 5 and fields[1] != "bytes":
            points.append((int(fields[0]), float(fields[1])))
        elif len(fields) == 3:
            points.append((int(fields[0]), float(fields[1]) / 1e3))
    return points
