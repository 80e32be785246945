#!/usr/bin/env python3
"""Tests of wire.py: the two ends reach each other, and nothing that it started outlives it. Needs
namespaces: else it says so and skips."""
import argparse
import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import wire as wire_program  # noqa: E402

WIRE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "wire.py")
EXIT_NOTHING_TO_RUN_ON = 77

# Connects to the far end until it listens, within its own limit, and says what it hears.
HEARS = """
import socket, time
end = time.monotonic() + 30
while True:
    try:
        with socket.create_connection(("10.9.0.2", 7000), timeout=10) as line:
            print(line.recv(5).decode()); break
    except ConnectionRefusedError:
        if time.monotonic() > end: raise
"""
SAYS = (
    "import socket; one = socket.create_server(('10.9.0.2', 7000)); line, _ = one.accept();"
    " line.sendall(b'hello'); one.accept()")
STAYS = "import os, signal, sys; open(sys.argv[1], 'w').write(str(os.getpid())); signal.pause()"


RELAY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bare", "relay")

# Sends datagrams with their numbers from one end to the other; prints which came, how long the
# first took, and how long after it the last came.
NUMBERED = """
import ctypes, json, os, socket, sys, time
count, size = int(sys.argv[1]), int(sys.argv[2])
def at(end, address):
    network = os.open(os.environ["SLUICE_WIRE_" + end], os.O_RDONLY)
    assert ctypes.CDLL(None).setns(network, 0x40000000) == 0
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    one.bind((address, 7001))
    return one
far, near = at("FAR", "10.9.0.2"), at("NEAR", "10.9.0.1")
near.sendto(b"", ("10.9.0.2", 7001))
assert far.recv(10) == b""  # the two know each other's hardware addresses now
start = time.monotonic()
for number in range(count):
    near.sendto(number.to_bytes(4, "little").ljust(size, b"x"), ("10.9.0.2", 7001))
came, times = [], []
far.settimeout(1.5)
try:
    while len(came) < count:
        came.append(int.from_bytes(far.recv(size)[:4], "little"))
        times.append(time.monotonic())
except TimeoutError:
    pass
print(json.dumps({"came": came, "first": times[0] - start, "last": times[-1] - start}))
"""


def wire(*arguments):
    return subprocess.Popen(
        [sys.executable, WIRE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True)


class Programs(unittest.TestCase):
    def refusal(self, present, **options):
        said = io.StringIO()
        with unittest.mock.patch.object(
            wire_program.shutil, "which", lambda name, path: name if name in present else None
        ), contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as ended:
            wire_program.check_programs(argparse.Namespace(**options))
        return ended.exception.code, said.getvalue()

    def test_that_are_missing_are_named_with_their_package_before_anything_is_made(self):
        code, said = self.refusal({"ip", "tc"}, offloads="off", rate=None, delay=None)
        self.assertEqual(code, EXIT_NOTHING_TO_RUN_ON)
        self.assertIn(
            "ethtool is not there: tools/setup installs it (Debian package ethtool)", said)
        self.assertIn(
            "tc is not there",
            self.refusal({"ip", "ethtool"}, offloads="on", rate="1gbit", delay=None)[1])
        self.assertIn(
            "ethtool is not there", self.refusal({"ip"}, offloads="on", rate="1gbit", delay=0.01)[1]
        )

    def test_are_not_asked_for_where_no_option_needs_them(self):
        with unittest.mock.patch.object(
            wire_program.shutil, "which", lambda name, path: name if name == "ip" else None
        ):
            wire_program.check_programs(argparse.Namespace(offloads="on", rate=None, delay=None))


class Wire(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.pid_file = os.path.join(folder.name, "pid")
        self.says, self.stays = (
            os.path.join(folder.name, name) for name in ("says.py", "stays.py"))
        pathlib.Path(self.says).write_text(SAYS, encoding="utf-8")
        pathlib.Path(self.stays).write_text(STAYS, encoding="utf-8")

    def ended(self, *arguments):
        process = wire(*arguments)
        out, errors = process.communicate(timeout=100)
        return process.returncode, out, errors

    def companion_is_gone(self):
        with self.assertRaises(ProcessLookupError):
            os.kill(int(pathlib.Path(self.pid_file).read_text(encoding="utf-8")), 0)

    def test_joins_two_namespaces_with_and_without_a_limit_between(self):
        for limit in ([], ["--rate", "1gbit"], ["--rate", "1gbit", "--mtu", "9000"]):
            with self.subTest(limit=limit):
                code, out, errors = self.ended(
                    *limit, "--serve", f"{sys.executable} {self.says}", "--", sys.executable, "-c",
                    HEARS)
                self.assertEqual((code, out), (0, "hello\n"), errors)

    def test_ends_what_runs_beside_when_the_command_ends(self):
        wait = (
            f"import os\nwhile not os.path.exists('{self.pid_file}') or not"
            f" open('{self.pid_file}').read(): pass")
        code, _, errors = self.ended(
            "--beside", f"{sys.executable} {self.stays} {self.pid_file}", "--", sys.executable,
            "-c", wait)
        self.assertEqual(code, 0, errors)
        self.companion_is_gone()

    def test_ends_what_runs_beside_when_it_is_ended_itself(self):
        process = wire(
            "--beside", f"{sys.executable} {self.stays} {self.pid_file}", "--", sys.executable,
            "-c", "print('runs', flush=True); import signal; signal.pause()")
        self.assertEqual(process.stdout.readline(), "runs\n")
        while not os.path.exists(self.pid_file) or not pathlib.Path(self.pid_file).read_text(
            encoding="utf-8"
        ):
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=100)
        self.companion_is_gone()

    def test_fails_if_the_competing_traffic_ended_before(self):
        code, _, errors = self.ended("--beside", "true", "--", sys.executable, "-c", "pass")
        self.assertEqual(code, 1)
        self.assertIn("ended before: true", errors)


class LongLine(unittest.TestCase):
    """Lower bounds of time alone: the machine may be busy."""

    def numbered(self, count, size, *options):
        """(what came, what the relay says of the way there)."""
        process = wire(
            "--delay", "20ms", "--late-us", "0", "--relay", RELAY, *options, "--", sys.executable,
            "-c", NUMBERED, str(count), str(size))
        out, errors = process.communicate(timeout=100)
        self.assertEqual(process.returncode, 0, errors)
        said = next(line for line in errors.splitlines() if '"relay"' in line)
        return json.loads(out), json.loads(said[said.index("{"):])["to_far"]

    def test_delays_each_frame_and_keeps_all_in_order(self):
        got, relay = self.numbered(500, 100)
        self.assertEqual(got["came"], list(range(500)))
        self.assertGreaterEqual(got["first"], 0.02)
        self.assertEqual((relay["lost"], relay["queue_drops"], relay["overrun"]), (0, 0, 0))
        self.assertGreaterEqual(relay["frames"], 500)

    def test_carries_no_more_than_its_rate(self):
        got, _ = self.numbered(200, 1400, "--rate", "10mbit", "--queue-bytes", "1000000")
        self.assertEqual(got["came"], list(range(200)))
        # Of all frames, since the first one may be seen late; and the delay.
        self.assertGreaterEqual(got["last"], 200 * (1400 + 42) * 8 / 10e6 + 0.02)

    def test_drops_what_its_queue_does_not_hold(self):
        got, relay = self.numbered(300, 1400, "--rate", "10mbit", "--queue-bytes", "30000")
        self.assertLess(len(got["came"]), 300)
        self.assertEqual(got["came"], sorted(got["came"]))
        self.assertGreater(relay["queue_drops"], 0)

    def test_loses_as_many_as_it_was_told(self):
        got, relay = self.numbered(1000, 100, "--lost-one-in", "10")
        self.assertEqual(got["came"], sorted(set(got["came"])))
        self.assertTrue(800 < len(got["came"]) < 990, len(got["came"]))
        self.assertGreater(relay["lost"], 0)

    def test_sets_what_the_ends_were_asked_for(self):
        process = wire(
            "--sysctl", "net.ipv4.tcp_congestion_control=reno", "--", "cat",
            "/proc/sys/net/ipv4/tcp_congestion_control")
        self.assertEqual(process.communicate(timeout=100)[0], "reno\n")

    def test_refuses_words_that_it_does_not_know(self):
        for options in (["--delay", "10"], ["--delay", "fast"]):
            process = wire(*options, "--", "true")
            _, errors = process.communicate(timeout=100)
            self.assertEqual(process.returncode, 2)
            self.assertIn("--delay", errors)
        with self.assertRaises(argparse.ArgumentTypeError):
            wire_program.bits_per_second("1g")
        self.assertEqual(wire_program.bits_per_second("100mbit"), 100_000_000)


if __name__ == "__main__":
    probe = wire("--", "true")
    _, said = probe.communicate(timeout=100)
    if probe.returncode == EXIT_NOTHING_TO_RUN_ON:
        print(f"wire_test: no namespaces here, nothing was tested: {said.strip()}", file=sys.stderr)
        print("sluice-skips 10")
        sys.exit(0)
    unittest.main()
