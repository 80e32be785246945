#!/usr/bin/env python3
"""Asks UCX (Debian's ucx-utils) the same questions: ucx_perftest on loopback.

ucx_perftest 1.13 cannot check its payload, so its line says "verified":"unchecked".
"""
import argparse

import pair

# UCX_TLS for each transport; `self` and shared memory are needed for UCX's own wire-up.
TRANSPORTS = {
    "posix": "posix,self",
    "sysv": "sysv,self",
    "cma": "posix,cma,self",  # single-copy reads of the peer's memory for large messages
    "tcp": "tcp,self",
}
MIB = 1 << 20


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", choices=sorted(TRANSPORTS), default="posix")
    parser.add_argument("--test", choices=["tag_lat", "tag_bw", "ucp_am_lat", "ucp_put_lat", "am_lat"],
                        default="tag_lat")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=100000)
    parser.add_argument("--limit-seconds", type=int, default=60)
    return parser.parse_args()


def last_csv_row(output):
    """ucx_perftest -f -v prints a header and one row, among possible warnings."""
    lines = [line.strip().lstrip("#").split(",") for line in output.splitlines() if "," in line]
    header = next((i for i, cells in enumerate(lines) if cells[0].strip() == "iterations"), None)
    if header is None or header + 1 >= len(lines):
        raise SystemExit(f"no figures in:\n{output}")
    return {name.strip(): float(cell) for name, cell in zip(lines[header], lines[header + 1])}


def figures(row, test, size):
    """Of a latency test half round trips, of another the time of one message."""
    rate = row["overall_bw"] * MIB
    if test.endswith("lat"):
        return {"bytes_per_second": rate, "one_way_ns": {"p50": row["50.0_percentile_lat"] * 1e3, "mean": row["overall_lat"] * 1e3}}
    return {"bytes_per_second": rate, "seconds": {"p50": size / rate}}


def main():
    options = parse_arguments()
    pair.require("ucx_perftest", "ucx-utils")
    port = pair.free_port()
    environment = {"UCX_TLS": TRANSPORTS[options.transport], "UCX_WARN_UNUSED_ENV_VARS": "n"}
    if options.transport == "tcp":
        environment["UCX_NET_DEVICES"] = "lo"
    warm_up = max(options.iterations // 10, 1)
    client = ["ucx_perftest", "127.0.0.1", "-p", str(port), "-c", "1", "-t", options.test,
              "-s", str(options.size), "-n", str(options.iterations), "-w", str(warm_up), "-f", "-v"]
    if options.test == "am_lat":  # the transport below UCX's protocols
        device = "lo" if options.transport == "tcp" else "memory"
        client += ["-x", options.transport, "-d", device]
    output = pair.run_pair(["ucx_perftest", "-p", str(port), "-c", "0"], client, port, environment,
                           options.limit_seconds)
    pair.print_line(name=f"ucx_{options.test}", mode=options.transport, size_bytes=options.size, iterations=options.iterations,
                    verified="unchecked", **figures(last_csv_row(output), options.test, options.size))


if __name__ == "__main__":
    main()
