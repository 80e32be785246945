#!/usr/bin/env python3
"""Asks UCX the same questions: ucx_perftest on loopback, of Debian's ucx-utils or of a newer
release (--release 1.22).

ucx_perftest cannot check its payload, so its line says "verified":"unchecked".
"""
import argparse
import re
import subprocess

import downloaded
import pair

# UCX_TLS for each transport; `self` and shared memory are needed for UCX's own wire-up.
TRANSPORTS = {
    "posix": "posix,self",
    "sysv": "sysv,self",
    "cma": "posix,cma,self",  # single-copy reads of the peer's memory for large messages
    "tcp": "tcp,self",
}
MIB = 1 << 20
# Tests of the transport itself, below UCX's protocols.
BELOW_PROTOCOLS = ("am_lat", "put_lat")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", choices=sorted(TRANSPORTS), default="posix")
    parser.add_argument(
        "--release", choices=["debian", "1.22"], default="debian",
        help="1.22: what install.py ucx has installed")
    parser.add_argument(
        "--test", choices=["tag_lat", "tag_bw", "ucp_am_lat", "ucp_put_lat", *BELOW_PROTOCOLS],
        default="tag_lat")
    parser.add_argument(
        "--wait", choices=["spin", "sleep"], default="spin",
        help="sleep: not in the tests below UCX's protocols")
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
        return {
            "bytes_per_second": rate,
            "one_way_ns": {
                "p50": row["50.0_percentile_lat"] * 1e3, "mean": row["overall_lat"] * 1e3}}
    return {"bytes_per_second": rate, "seconds": {"p50": size / rate}}


def check_version(perftest, environment):
    """Whether the library that is loaded is the one that was asked for, and not another that the
    system has."""
    info = re.sub("perftest$", "info", perftest)
    said = subprocess.run(
        [info, "-v"], env=environment, capture_output=True, text=True, timeout=60, check=False
    ).stdout
    if f"Library version: {downloaded.UCX_VERSION}" not in said:
        raise SystemExit(f"{info} loads another library:\n{said}")


def main():
    options = parse_arguments()
    environment = {"UCX_TLS": TRANSPORTS[options.transport], "UCX_WARN_UNUSED_ENV_VARS": "n"}
    if options.release == "debian":
        pair.require("ucx_perftest", "ucx-utils")
        perftest = "ucx_perftest"
    else:
        perftest = downloaded.require("ucx")
        environment.update(downloaded.ucx_environment())
        check_version(perftest, environment)
    port = pair.free_port()
    if options.transport == "tcp":
        environment["UCX_NET_DEVICES"] = "lo"
    warm_up = max(options.iterations // 10, 1)
    client = [
        perftest, "127.0.0.1", "-p", str(port), "-c", "1", "-t", options.test, "-s",
        str(options.size), "-n", str(options.iterations), "-w", str(warm_up), "-f", "-v"]
    both = ["-E", "sleep"] if options.wait == "sleep" else []
    if options.test in BELOW_PROTOCOLS:  # the server, too, must be told what 1.13 asked its client
        device = "lo" if options.transport == "tcp" else "memory"
        both += ["-x", options.transport, "-d", device]
    output = pair.run_pair(
        [perftest, "-p", str(port), "-c", "0", *both], client + both, port, environment,
        options.limit_seconds)
    pair.print_line(
        name=f"ucx_{options.test}", release=options.release, mode=options.transport,
        wait=options.wait, size_bytes=options.size, iterations=options.iterations,
        verified="unchecked", **figures(last_csv_row(output), options.test, options.size))


if __name__ == "__main__":
    main()
