#!/usr/bin/env python3
"""Asks libfabric (Debian's libfabric-bin) the same questions: fi_pingpong on loopback.

The payload is checked (-c) in a short run of its own, outside the timed one.
fi_pingpong prints microseconds per transfer, one way, with two decimals.
"""
import argparse

import pair

PROVIDERS = {"shm": ["-p", "shm", "-e", "rdm"], "tcp": ["-p", "tcp", "-e", "msg", "-d", "lo"]}
CHECKED_ITERATIONS = 100


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", choices=sorted(PROVIDERS), default="shm")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=50000)
    parser.add_argument("--limit-seconds", type=int, default=60)
    return parser.parse_args()


def ping_pong(options, iterations, check):
    port = pair.free_port()
    flags = PROVIDERS[options.provider] + ["-I", str(iterations), "-S", str(options.size)]
    flags += ["-c"] if check else []
    server = ["taskset", "-c", "0", "fi_pingpong", "-B", str(port)] + flags
    client = ["taskset", "-c", "1", "fi_pingpong", "-P", str(port)] + flags + ["127.0.0.1"]
    return pair.run_pair(server, client, port, {}, options.limit_seconds)


def microseconds_per_transfer(output):
    lines = [line.split() for line in output.splitlines() if line.strip()]
    header = next((i for i, cells in enumerate(lines) if "usec/xfer" in cells), None)
    if header is None or header + 1 >= len(lines):
        raise SystemExit(f"no figures in:\n{output}")
    return float(lines[header + 1][lines[header].index("usec/xfer")])


def main():
    options = parse_arguments()
    pair.require("fi_pingpong", "libfabric-bin")
    ping_pong(options, CHECKED_ITERATIONS, check=True)
    usec = microseconds_per_transfer(ping_pong(options, options.iterations, check=False))
    pair.print_line(
        name="fi_pingpong", mode=options.provider, size_bytes=options.size,
        iterations=options.iterations, one_way_ns={"p50": usec * 1e3, "mean": usec * 1e3},
        bytes_per_second=options.size / (usec * 1e-6), verified=True)


if __name__ == "__main__":
    main()
