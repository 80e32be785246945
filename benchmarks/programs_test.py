#!/usr/bin/env python3
"""Runs our own benchmark programs briefly: what they print, that they notice a flipped bit, and
that what is wasted on purpose shows. As bare/bare_test.py for the bare ones. Must not judge
speed."""
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

FOLDER = "benchmarks"

# (program, flags, nanoseconds to waste: far more than the program takes by itself). The last flag
# is how many times.
CASES = [
    ("cache_victim", ["--mode", "alone", "--working-set", "4096", "-n", "3"], 100_000),
    (
        "cache_victim",
        ["--mode", "after_memcpy", "--size", "65536", "--working-set", "4096", "-n", "3"], 100_000),
    (
        "cache_victim",
        ["--mode", "after_streaming", "--size", "65536", "--working-set", "4096", "-n", "3"],
        100_000),
    (
        "cache_victim",
        ["--mode", "beside_memcpy", "--size", "65536", "--working-set", "4096", "-n", "3"], 100_000
    ),
    (
        "cache_victim",
        ["--mode", "beside_streaming", "--size", "65536", "--working-set", "4096", "-n", "3"],
        100_000),
    ("file_transfer", ["--mode", "shm_adaptive", "--size", "3000001", "-n", "2"], 100_000_000),
    ("file_transfer", ["--mode", "lo_adaptive", "--size", "3000001", "-n", "2"], 100_000_000),
    ("first_operation", ["--mode", "shm", "-n", "3"], 20_000_000),
    ("first_operation", ["--mode", "tcp", "-n", "3"], 20_000_000),
    ("first_operation", ["--mode", "sluice", "-n", "3"], 20_000_000),
    ("growth", ["--mode", "idle_tcp", "--size", "20", "-n", "50"], 1_000_000),
    ("growth", ["--mode", "idle_shm", "--size", "20", "-n", "50"], 1_000_000),
    ("growth", ["--mode", "idle_udp", "--size", "20", "-n", "50"], 1_000_000),
    ("growth", ["--mode", "waiting_loopback", "--size", "20", "-n", "50"], 1_000_000),
    ("growth", ["--mode", "keys", "--size", "6000", "-n", "50"], 1_000_000),
    ("growth", ["--mode", "allocate", "--size", "256", "-n", "50"], 1_000_000),
    ("growth", ["--mode", "fresh", "--size", "128", "-n", "50"], 1_000_000),
    ("growth", ["--mode", "fetches", "--size", "20000", "-n", "50"], 1_000_000),
    ("l2_pair", ["--mode", "shm_adaptive", "-n", "50"], 2_000_000),
    ("l2_pair", ["--mode", "lo_bulk_adaptive", "--size", "1000000", "-n", "3"], 100_000_000),
    ("library_loop", ["--mode", "shm_lat", "-n", "50"], 1_000_000),
    ("library_loop", ["--mode", "tcp_lat", "--size", "20000", "-n", "50"], 1_000_000),
    ("library_loop", ["--mode", "shm_bw", "--size", "65536", "-n", "300"], 1_000_000),
    ("library_loop", ["--mode", "udp_bw", "--size", "4096", "-n", "50"], 1_000_000),
    ("slp_frame", ["--mode", "header", "-n", "1000"], 100_000),
    ("slp_frame", ["--mode", "protocol", "--size", "100000", "-n", "5"], 1_000_000),
    ("slp_frame", ["--mode", "placed", "--size", "100000", "-n", "5"], 1_000_000),
    ("waiting", ["--mode", "shm_steady_adaptive", "--gap-us", "20", "-n", "50"], 1_000_000),
    ("waiting", ["--mode", "shm_bursts_sleep", "--gap-us", "20", "-n", "50"], 1_000_000),
    ("waiting", ["--mode", "tcp_steady_adaptive", "--gap-us", "20", "-n", "50"], 1_000_000),
    ("waiting", ["--mode", "tcp_bursts_spin", "--gap-us", "20", "-n", "50"], 1_000_000),
]


# The paths that take a wire between two namespaces.
WIRED = [
    ("carrier_frames", ["--mode", "packet_trip", "-n", "50"]),
    ("carrier_frames", ["--mode", "packet_frames", "-n", "50"]),
    ("file_transfer", ["--mode", "tcp_adaptive", "--size", "3000001", "-n", "2"]),
    ("file_transfer", ["--mode", "udp_adaptive", "--size", "3000001", "-n", "2"]),
    ("file_transfer", ["--mode", "packet_adaptive", "--size", "3000001", "-n", "2"]),
    ("l2_pair", ["--mode", "packet_adaptive", "-n", "50"]),
    ("l2_pair", ["--mode", "udp_bulk_adaptive", "--size", "1000000", "-n", "3"]),
]
WIRE = [sys.executable, "-B", os.path.join(FOLDER, "wire.py"), "--mtu", "1500", "--"]
LONG_LINE = WIRE[:3] + [
    "--rate", "1gbit", "--delay", "2ms", "--late-us", "0", "--relay",
    os.path.join(FOLDER, "bare", "relay"), "--"]


def times_of(line):
    for name in ("one_way_ns", "round_trip_ns", "fetch_ns", "allocate_turn_ns", "fetch_turn_ns"):
        if name in line:
            return line[name]
    return {name: value * 1e9 for name, value in line["seconds"].items()}


def run(program, flags, before=()):
    return subprocess.run(
        [*before, os.path.join(FOLDER, program)] + flags, capture_output=True, text=True,
        timeout=120)


class EveryProgram(unittest.TestCase):
    def test_prints_one_json_object_with_ordered_times(self):
        for program, flags, _ in CASES:
            with self.subTest(program=program, flags=flags):
                done = run(program, flags)
                self.assertEqual(done.returncode, 0, done.stderr)
                line = json.loads(done.stdout)
                self.assertEqual((line["name"], line["verified"]), (program, True))
                self.assertGreater(line["cpu_seconds"], 0)
                times = times_of(line)
                self.assertTrue(0 < times["min"] <= times["p50"] <= times["max"], times)

    def test_prints_no_figure_when_one_bit_is_wrong(self):
        for program, flags, _ in CASES:
            with self.subTest(program=program, flags=flags):
                done = run(program, flags + ["--corrupt"])
                self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)
                self.assertIn("did not verify", done.stderr)

    def test_gets_slower_by_what_it_was_told_to_waste(self):
        for program, flags, wasted_ns in CASES:
            with self.subTest(program=program, flags=flags):
                done = run(program, flags[:-1] + ["1", "--slow-ns", str(wasted_ns)])
                self.assertEqual(done.returncode, 0, done.stderr)
                line = json.loads(done.stdout)
                # one side wastes it, per round trip
                half = 2 if program == "l2_pair" and "one_way_ns" in line else 1
                self.assertGreaterEqual(times_of(line)["min"], wasted_ns / half * 0.999)

    def test_over_a_wire_it_prints_one_object_or_notices_a_flipped_bit(self):
        if subprocess.run(WIRE + ["true"], capture_output=True, timeout=60).returncode != 0:
            print(
                "SKIPPED netns: no network namespaces with a veth pair\nsluice-skips 1",
                file=sys.stderr)
            return
        for program, flags in WIRED:
            with self.subTest(program=program, flags=flags):
                done = run(program, flags, WIRE)
                self.assertEqual(done.returncode, 0, done.stderr)
                line = json.loads(done.stdout)
                self.assertEqual((line["name"], line["verified"]), (program, True))
                done = run(program, flags + ["--corrupt"], WIRE)
                self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)

    def test_of_a_long_line_says_how_long_the_first_bytes_took_and_the_rate_after_that(self):
        if subprocess.run(WIRE + ["true"], capture_output=True, timeout=60).returncode != 0:
            print(
                "SKIPPED netns: no network namespaces with a veth pair\nsluice-skips 1",
                file=sys.stderr)
            return
        for flags in (
            ["--size", "1048576"], ["--size", "16384", "--under-way", "256"],
            ["--mode", "fetches", "--size", "1000001", "--under-way", "8"]
        ):
            with self.subTest(flags=flags):
                done = run("line_pair", flags + ["-n", "3"], LONG_LINE)
                self.assertEqual(done.returncode, 0, done.stderr)
                line = json.loads(done.stdout)
                self.assertEqual((line["name"], line["verified"]), ("line_pair", True))
                self.assertTrue(0 < line["bytes_per_second"] <= 125e6 * 1.01, line)
                self.assertGreater(line["cpu_seconds_per_gb"], 0)
                done = run("line_pair", flags + ["-n", "3", "--corrupt"], LONG_LINE)
                self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)

    def test_the_program_whose_instructions_are_counted_runs_each_operation(self):
        for mode in ["message-shm", "message-tcp", "view-shm", "ahead-shm", "subscribed-shm", "into-shm", "into-tcp"]:
            with self.subTest(mode=mode):
                done = run("hot_path", [mode, "5"])
                self.assertEqual((done.returncode, done.stdout), (0, "5\n"), done.stderr)
        self.assertEqual(run("hot_path", ["view-udp", "5"]).returncode, 2)
        for mode in ["write-verbs", "read-verbs", "message-verbs", "turn-verbs"]:
            with self.subTest(mode=mode):
                done = run("../tests/verbs/hot_path", [mode, "5"])
                self.assertEqual((done.returncode, done.stdout), (0, "5\n"), done.stderr)

    def test_of_a_file_hashes_what_came(self):
        pattern = b"".join(
            (index * 2654435761 + piece * 40503 + 1 & 0xFFFFFFFF).to_bytes(4, "little")
            for piece in range(2)
            for index in range(1 << 18))
        line = json.loads(
            run("file_transfer", ["--mode", "shm_adaptive", "--size", "1500000", "-n", "1"]).stdout)
        self.assertEqual(line["sha256"], hashlib.sha256(pattern[:1500000]).hexdigest())

    def test_of_waiting_says_what_the_waiter_used_for_a_message(self):
        line = json.loads(
            run("waiting", ["--mode", "shm_steady_spin", "--gap-us", "2000", "-n", "20"]).stdout)
        self.assertEqual(line["gap_us"], 2000)
        self.assertAlmostEqual(line["cpu_ns_per_message"] * 20e-9, line["cpu_seconds"])


def script(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n" + text + "\n")
    os.chmod(path, 0o755)
    return path


# Moves 2 GB in 4 seconds, as it says.
RESULT = {
    "test": "t", "transport": "x", "size_bytes": 1, "errors": 0, "verified_bytes": 1,
    "bytes_per_second": 5e8, "seconds": 4}
PERF = f"""while [ $# -gt 1 ]; do shift; done; echo '{json.dumps({"results": [RESULT]})}' > $1"""


class CpuOfTheMachine(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.perf = script(self.folder.name, "perf", PERF)

    def run_it(self, soaker):
        command = [
            sys.executable, "-B", os.path.join(FOLDER, "machine_cpu.py"),
            *(["--soaker", script(self.folder.name, "soaker", soaker)] if soaker else []),
            self.perf]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    def test_is_what_the_soaker_was_not_left_with_and_the_task_clock_stands_beside(self):
        done = self.run_it(
            """echo calibrated; read go; cat >/dev/null; echo '{"used_seconds": 1.5}'"""
        )
        line = json.loads(done.stdout)
        self.assertEqual((line["cpu_seconds_per_gb"], line["verified"]), (0.75, True), done.stderr)
        self.assertGreater(line["task_seconds_per_gb"], 0)
        self.assertGreaterEqual(json.loads(self.run_it(None).stdout)["cpu_seconds_per_gb"], 0)

    def test_is_nothing_where_the_soaker_does_not_do_its_part(self):
        for soaker in ("exit 1", "echo calibrated; read go; cat >/dev/null; exit 4"):
            done = self.run_it(soaker)
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(done.stdout, "")


class TheSoaker(unittest.TestCase):
    def start(self, *flags):
        process = subprocess.Popen(
            [os.path.join(FOLDER, "bare", "soaker"), *flags], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(process.stdout.readline(), "calibrated\n")
        return process

    def test_soaks_at_idle_priority_and_counts_what_others_used(self):
        process = self.start()
        threads = [
            int(each)
            for each in os.listdir(f"/proc/{process.pid}/task")
            if int(each) != process.pid]
        process.stdin.write("go\n")
        process.stdin.flush()
        burnt = time.process_time()
        while time.process_time() - burnt < 0.3:
            pass
        policies = {os.sched_getscheduler(each) for each in threads}
        out, errors = process.communicate()
        line = json.loads(out)
        self.assertEqual(policies, {os.SCHED_IDLE}, errors)
        self.assertEqual((len(threads), line["verified"]), (line["cpus"], True))
        # We alone had 0.3 s of a CPU. How near it comes is the calibration's luck on a shared
        # machine; a soaker that counts nobody says 0.
        self.assertGreater(line["used_seconds"], 0.1)
        self.assertGreater(line["blocks_per_second"], 0)

    def test_prints_nothing_when_more_is_left_than_there_was(self):
        process = self.start("--corrupt")
        out, errors = process.communicate("go\n")
        self.assertEqual((process.returncode, out), (4, ""), errors)


if __name__ == "__main__":
    unittest.main()
