#!/usr/bin/env python3
"""Throughput of one connection through `sluice proxy`, beside the same without, and through socat
where it is installed.

    benchmarks/proxy_throughput.py SLUICE [--rounds N] [--mebibytes M]

Each way gets one transfer in each round, in another order each time. A child process writes and
this one reads. Prints medians, and the median of each round's ratio to the plain connection.
"""
import argparse
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import time

BLOCK = bytes(1 << 20)


def serve(listener, mebibytes):
    """In a child: writes so much to each that comes."""
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                for _ in range(mebibytes):
                    connection.sendall(BLOCK)
            except OSError:
                pass


def transfer(place, mebibytes):
    """Seconds until all of it is read."""
    family = socket.AF_UNIX if isinstance(place, str) else socket.AF_INET
    room = bytearray(1 << 20)
    with socket.socket(family) as connection:
        start = time.perf_counter()
        connection.connect(place)
        left = mebibytes << 20
        while left > 0:
            got = connection.recv_into(room)
            if got == 0:
                raise SystemExit(f"the connection to {place} ended early")
            left -= got
        return time.perf_counter() - start


class Ways:
    def __init__(self, sluice, service):
        self.sluice, self.service = sluice, service
        self.children, self.places = [], {"plain": service}

    def proxies(self, name, at):
        there = self.start(self.sluice, "proxy", "--at", at, "--service", "%s:%d" % self.service)
        to = re.search(r"listening at (\S+),", there.stdout.readline()).group(1)
        here = self.start(self.sluice, "proxy", "--listen", "127.0.0.1:0", "--to", to)
        line = here.stdout.readline()
        self.places[name] = (
            "127.0.0.1", int(re.search(r":(\d+), forwarding", here.stdout.readline()).group(1)))
        print(f"{name}: {line.strip()}")

    def socat(self, name, hops):
        """One process, or two in a row as the proxies are."""
        target = "TCP:%s:%d" % self.service
        for _ in range(hops):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            self.start(
                "socat", "-b", str(256 << 10), f"TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork",
                target)
            target = f"TCP:127.0.0.1:{port}"
            for _attempt in range(100):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.02)
        self.places[name] = ("127.0.0.1", port)

    def start(self, *command):
        self.children.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return self.children[-1]

    def stop(self):
        for child in self.children:
            child.terminate()
        for child in self.children:
            child.wait()
            child.stdout.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sluice")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--mebibytes", type=int, default=512)
    flags = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        serve(listener, flags.mebibytes)
    ways = Ways(flags.sluice, listener.getsockname())
    try:
        ways.proxies("proxy over shm", "sluice://127.0.0.1:0")
        ways.proxies("proxy over tcp", "tcp://127.0.0.1:0")
        if shutil.which("socat"):
            ways.socat("socat, one", 1)
            ways.socat("socat, two in a row", 2)
        measure(ways.places, flags)
    finally:
        ways.stop()
        os.kill(child, 15)
        os.waitpid(child, 0)


def measure(places, flags):
    times = {name: [] for name in places}
    for number in range(flags.rounds + 1):
        for name in random.sample(list(places), len(places)):
            seconds = transfer(places[name], flags.mebibytes)
            if number > 0:  # the first round warms up
                times[name].append(seconds)
    for name, taken in times.items():
        ratio = statistics.median(plain / mine for plain, mine in zip(times["plain"], taken))
        print(
            f"{name:<20} {flags.mebibytes / 1024 / statistics.median(taken):6.2f} GiB/s "
            f" {ratio:5.2f} of plain")


if __name__ == "__main__":
    main()
