#!/usr/bin/env python3
"""Asks NetPIPE (Debian's netpipe-tcp) the same question: NPtcp's ping-pong of one size on loopback.

NPtcp prints half a round trip in microseconds. It checks its payload only in a mode that measures
nothing.
"""
import argparse
import re

import pair


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--limit-seconds", type=int, default=60)
    return parser.parse_args()


def figures(output, size):
    """(nanoseconds one way, bytes per second) of `  0:  64 bytes  3571 times -->  52.45 Mbps in
    9.31 usec`."""
    found = re.search(
        rf"^\s*\d+:\s+{size} bytes\s+\d+ times -->\s+([\d.]+) Mbps in\s+([\d.]+) usec", output,
        re.MULTILINE)
    if found is None:
        raise SystemExit(f"no line of {size} bytes in:\n{output}")
    microseconds = float(found.group(2))
    return microseconds * 1e3, size / (microseconds * 1e-6)


def main():
    options = parse_arguments()
    pair.require("NPtcp", "netpipe-tcp")
    port = pair.free_port()
    # Perturbation 0: this size alone. The result also goes to a file, which nobody wants.
    sizes = [
        "-l", str(options.size), "-u", str(options.size), "-p", "0", "-o", "/dev/null", "-P",
        str(port)]
    output = pair.run_pair(
        ["NPtcp"] + sizes, ["NPtcp", "-h", "127.0.0.1"] + sizes, port, {}, options.limit_seconds,
        merged=True)
    nanoseconds, rate = figures(output, options.size)
    pair.print_line(
        name="NPtcp", mode="tcp", size_bytes=options.size, one_way_ns={"p50": nanoseconds},
        bytes_per_second=rate, verified="unchecked")


if __name__ == "__main__":
    main()
