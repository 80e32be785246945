#!/usr/bin/env python3
"""Asks qperf (Debian's qperf) the same questions: tcp_lat, one way, and tcp_bw on loopback.

qperf checks no payload.
"""
import argparse
import re

import pair

UNITS = {
    "ns": 1.0, "us": 1e3, "ms": 1e6, "sec": 1e9, "bytes/sec": 1.0, "KB/sec": 1e3, "MB/sec": 1e6,
    "GB/sec": 1e9, "TB/sec": 1e12}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("test", choices=["tcp_lat", "tcp_bw"])
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--limit-seconds", type=int, default=60)
    return parser.parse_args()


def figure(output, what):
    """Nanoseconds, or bytes per second, of `    latency  =  7.21 us`."""
    found = re.search(rf"^\s*{what}\s*=\s*([\d.,]+)\s+(\S+)", output, re.MULTILINE)
    if found is None or found.group(2) not in UNITS:
        raise SystemExit(f"no {what} in:\n{output}")
    return float(found.group(1).replace(",", "")) * UNITS[found.group(2)]


def main():
    options = parse_arguments()
    pair.require("qperf", "qperf")
    port = pair.free_port()
    output = pair.run_pair(
        ["qperf", "-lp", str(port)],
        [
            "qperf", "127.0.0.1", "-lp", str(port), "-t", str(options.seconds), "-m",
            str(options.size), options.test, "quit"],
        port, {}, options.limit_seconds)
    shown = (
        {"one_way_ns": {"p50": figure(output, "latency")}}
        if options.test == "tcp_lat"
        else {"bytes_per_second": figure(output, "bw")})
    pair.print_line(
        name="qperf", mode=options.test, size_bytes=options.size, verified="unchecked", **shown)


if __name__ == "__main__":
    main()
