#!/usr/bin/env python3
"""Asks perftest (Debian's perftest) the same questions: ib_TEST between two processes and one RDMA
device.

perftest checks no payload. It prints microseconds with two decimals (of one way; of the whole
operation for read and atomic tests) and MiB per second. It is not pinned: ib_write_lat polls memory
alone, and on a processor of its own starves the kernel thread that soft-RoCE is (2 ms instead of 14
us). In a guest of the lab the device is rxe0 at 10.77.0.1: docs/lab.md.
"""
import argparse
import math
import os
import sys

import pair

sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), ".."))

import machine_cpu  # noqa: E402

TESTS = ("send_lat", "write_lat", "read_lat", "send_bw", "write_bw", "read_bw")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("test", choices=TESTS)
    parser.add_argument("--device", default=os.environ.get("SLUICE_LAB_DEVICE", "rxe0"))
    parser.add_argument("--address", default=os.environ.get("SLUICE_LAB_ADDRESS", "10.77.0.1"))
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--seconds", type=int, help="run so long instead of --iterations")
    parser.add_argument("--depth", type=int, default=128)
    parser.add_argument("--qps", type=int, help="queue pairs of a bandwidth test")
    parser.add_argument(
        "--post-list", type=int, help="so many requests to a doorbell, in a bandwidth test")
    parser.add_argument(
        "--signal-every", type=int, help="so many requests to a completion, in a bandwidth test")
    parser.add_argument(
        "--inline", type=int, help="bytes up to which a payload stands in its request")
    parser.add_argument("--events", action="store_true", help="sleep until a completion comes")
    parser.add_argument("--limit-seconds", type=int, default=60)
    return parser.parse_args()


def row_of(output, size):
    """The cells of the result of `size`, below perftest's header."""
    for line in output.splitlines():
        cells = line.split()
        if len(cells) >= 4 and cells[0] == str(size):
            return [float(cell) for cell in cells]
    raise SystemExit(f"no line of {size} bytes in:\n{output}")


def figures(cells, latency):
    """{"one_way_ns"} or {"bytes_per_second"} of the cells of a row."""
    if not all(math.isfinite(cell) for cell in cells) or cells[3] == 0:
        raise SystemExit(
            "perftest counts cycles of a clock whose rate it takes from /proc/cpuinfo, which does"
            f" not say it here: {cells}")
    if latency:
        # bytes, iterations, min, max, typical (the median), average, ...; by duration: bytes,
        # iterations, average, tps
        return {"one_way_ns": {"p50": (cells[4] if len(cells) > 4 else cells[2]) * 1e3}}
    return {"bytes_per_second": cells[3] * (1 << 20)}


def main():
    options = parse_arguments()
    program = "ib_" + options.test
    pair.require(program, "perftest")
    latency = options.test.endswith("_lat")
    port = pair.free_port()
    flags = ["-d", options.device, "-s", str(options.size), "-p", str(port), "-F"]
    flags += ["-D", str(options.seconds)] if options.seconds else ["-n", str(options.iterations)]
    flags += [] if latency else ["-t", str(options.depth)]
    flags += ["-q", str(options.qps)] if options.qps else []
    flags += ["-l", str(options.post_list)] if options.post_list else []
    flags += ["-Q", str(options.signal_every)] if options.signal_every else []
    flags += ["-I", str(options.inline)] if options.inline is not None else []
    flags += ["-e"] if options.events else []
    ticks = machine_cpu.Ticks()
    output = pair.run_pair(
        [program] + flags, [program] + flags + [options.address], port, {}, options.limit_seconds)
    # Of all processors, and of both ends: a software device works in threads of the kernel.
    messages = None if options.seconds else options.iterations * (2 if latency else 1)
    cpu = {"cpu_ns_per_message": ticks.used_seconds() * 1e9 / messages} if messages else {}
    pair.print_line(
        name=program, mode=options.device, size_bytes=options.size, verified="unchecked", **cpu,
        **figures(row_of(output, options.size), latency))


if __name__ == "__main__":
    main()
