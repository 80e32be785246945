"""A test tool in place of the network test tool: sluice itself, between two of its processes on this machine.

It measures what thresholds of the library (docs/tuning.md) change: half a round trip of `sluice perf send_lat`.
"""
import json
import os
import subprocess

import netpipe_schedule as schedule
from network_test_tool import sizes_of
from trouble import Trouble

LIMIT_SECONDS = 120  # of one size
MESSAGES = 2000  # of a whole run
PREFIX = "sluice."


def tuning_text(values):
    """SLUICE_TUNING: what is not named is as it is built in, and no file is read."""
    return ",".join(["defaults"] + [f"{name[len(PREFIX):]}={value}" for name, value in values.items() if name.startswith(PREFIX)])


class LibraryTestTool:
    def __init__(self, test):
        self.test, self.sizes, self.granted = test, sizes_of(test), {}

    def measure(self, values=None, effort=1.0):
        """{"library": {size: Gb/s}}, by the median."""
        environment = dict(os.environ, SLUICE_TUNING=tuning_text(values or {}))
        return {"library": {size: self._rate(size, environment, max(50, round(MESSAGES * effort))) for size in self.sizes}}

    def _rate(self, size, environment, messages):
        command = [self.test["program"], "perf", "send_lat", "--self", "--transport", self.test["path"], "-s", str(size), "-n", str(messages),
                   "--format", "ndjson"]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
        except OSError as error:
            raise Trouble(f"{command[0]}: {error.strerror}; name the built command as `program` in [test]") from error
        except subprocess.TimeoutExpired as error:
            raise Trouble(f"`{' '.join(command)}` took longer than {LIMIT_SECONDS} s; look whether the machine is busy") from error
        if done.returncode != 0:
            raise Trouble(f"`{' '.join(command)}` failed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
        return schedule.rate_gbps(size, json.loads(done.stdout.splitlines()[-1])["latency_ns"]["p50"] * 1e-9)
