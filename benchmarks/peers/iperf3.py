#!/usr/bin/env python3
"""Asks iperf3 (Debian's iperf3) the same question: a TCP stream on loopback, its rate and the CPU
of both ends.

iperf3 checks no payload. Its CPU is a percentage of one processor over the run, of each end.
"""
import argparse
import json

import pair


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--size", type=int, default=1 << 20, help="bytes of one write, at most 1 MiB")
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--limit-seconds", type=int, default=60)
    return parser.parse_args()


def figures(output):
    """{"bytes_per_second", "cpu_seconds_per_gb"} of iperf3 -J."""
    end = json.loads(output)["end"]
    rate = end["sum_received"]["bits_per_second"] / 8
    busy = end["cpu_utilization_percent"]
    return {
        "bytes_per_second": rate,
        "cpu_seconds_per_gb": (busy["host_total"] + busy["remote_total"]) / 100 / (rate / 1e9)}


def main():
    options = parse_arguments()
    pair.require("iperf3", "iperf3")
    port = pair.free_port()
    output = pair.run_pair(
        ["iperf3", "-s", "-1", "-p", str(port)],
        [
            "iperf3", "-c", "127.0.0.1", "-p", str(port), "-J", "-l", str(options.size), "-t",
            str(options.seconds)],
        port, {}, options.limit_seconds)
    pair.print_line(
        name="iperf3", mode="tcp", size_bytes=options.size, verified="unchecked", **figures(output))


if __name__ == "__main__":
    main()
