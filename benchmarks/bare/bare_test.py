#!/usr/bin/env python3
"""Runs every bare program briefly: what it prints, and that it notices a flipped bit.

Must not judge speed. Run by Bazel from the workspace root of the runfiles.
"""
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import unittest

FOLDER = os.path.join("benchmarks", "bare")
RING = ["--size", "1048576", "--iterations", "3"]

# (program, flags, the field that holds its times)
CASES = [
    ("flag_pingpong", ["--mode", "flag", "-n", "2000"], "one_way_ns"),
    ("flag_pingpong", ["--mode", "payload", "-n", "2000"], "one_way_ns"),
    ("flag_pingpong", ["--mode", "payload", "--size", "4096", "-n", "200"], "one_way_ns"),
    ("tcp_pingpong", ["--mode", "blocking", "-n", "200"], "one_way_ns"),
    ("tcp_pingpong", ["--mode", "spinning", "-n", "200"], "one_way_ns"),
    ("tcp_pingpong", ["--mode", "epoll", "-n", "200"], "one_way_ns"),
    ("udp_pingpong", ["--mode", "blocking", "-n", "200"], "one_way_ns"),
    ("udp_pingpong", ["--mode", "spinning", "-n", "200"], "one_way_ns"),
    ("udp_pingpong", ["--mode", "epoll", "--size", "65507", "-n", "200"], "one_way_ns"),
    ("unix_byte_wake", ["--mode", "epoll", "-n", "200"], "one_way_ns"),
    ("unix_byte_wake", ["--mode", "poll", "-n", "200"], "one_way_ns"),
    ("unix_byte_wake", ["--mode", "blocking", "-n", "200"], "one_way_ns"),
    ("tcp_bulk", ["--size", "1048576", "-n", "64"], "seconds"),
    ("unix_bulk", ["--size", "1048576", "-n", "64"], "seconds"),
    ("tcp_bulk", ["--mode", "chunked", "--size", "67108864", "-n", "1"], "seconds"),
    ("tcp_bulk", ["--send-buffer", "524288", "--size", "1048576", "-n", "64"], "seconds"),
    ("tcp_pingpong", ["--send-buffer", "524288", "--mode", "blocking", "-n", "200"], "one_way_ns"),
    ("vgg16_tcp", ["--send-buffer", "524288", "-n", "1"], "seconds"),
    ("tcp_bulk", ["--cpu-percent", "30", "--size", "1048576", "-n", "64"], "seconds"),
    ("unix_bulk", ["--mode", "chunked", "--size", "3145728", "-n", "21"], "seconds"),
    ("memcpy_bulk", ["--mode", "anonymous", "--size", "1048576", "-n", "3"], "seconds"),
    ("memcpy_bulk", ["--mode", "memfd", "--size", "1048576", "-n", "3"], "seconds"),
    ("memcpy_bulk", ["--mode", "streaming", "--size", "1048576", "-n", "3"], "seconds"),
    ("shm_ring_copy", ["--mode", "in"] + RING, "seconds"),
    ("shm_ring_copy", ["--mode", "out"] + RING, "seconds"),
    ("shm_ring_copy", ["--mode", "both"] + RING, "seconds"),
    ("first_message", ["--size", "4194304", "-n", "3"], "seconds"),
    ("malloc_pair", ["-n", "1000"], "seconds"),
    ("operation_cost", ["--mode", "system_call", "-n", "1000"], "seconds"),
    ("operation_cost", ["--mode", "lock", "-n", "1000"], "seconds"),
    ("operation_cost", ["--mode", "lock_shared", "-n", "1000"], "seconds"),
    ("operation_cost", ["--mode", "atomic", "-n", "1000"], "seconds"),
    ("operation_cost", ["--mode", "atomic_shared", "-n", "1000"], "seconds"),
    ("operation_cost", ["--mode", "cache_miss", "--size", "1000000", "-n", "1000"], "seconds"),
    ("operation_cost", ["--mode", "futex_wake", "-n", "200"], "seconds"),
    ("operation_cost", ["--mode", "eventfd_wake", "-n", "200"], "seconds"),
    ("operation_cost", ["--mode", "interrupt", "-n", "200"], "seconds"),
    ("vgg16_tcp", ["-n", "1"], "seconds"),
    ("vgg16_unix", ["-n", "1"], "seconds"),
    ("vgg16_tcp", ["--mode", "chunked", "-n", "1"], "seconds"),
    ("udp_bulk", ["--mode", "joined", "--size", "1048576", "-n", "64"], "seconds"),
    ("udp_bulk", ["--mode", "single", "--size", "1000001", "-n", "16"], "seconds"),
    ("file_copy", ["--mode", "tcp", "--size", "3000001", "-n", "2"], "seconds"),
    ("file_copy", ["--mode", "tcp_sendfile", "--size", "3000001", "-n", "2"], "seconds"),
    ("file_copy", ["--mode", "udp", "--size", "3000001", "-n", "2"], "seconds"),
    ("file_copy", ["--mode", "udp_joined", "--size", "3000001", "-n", "2"], "seconds"),
    ("tcp_zerocopy", ["--mode", "copied", "--size", "1048576", "-n", "1"], "seconds"),
    ("overlapped_copy", ["--mode", "copy_one", "--size", "1000001", "-n", "3"], "seconds"),
    (
        "overlapped_copy", ["--mode", "copy_two_streaming", "--size", "1000001", "-n", "3"],
        "seconds"),
    ("overlapped_copy", ["--mode", "receive_direct", "--size", "3000001", "-n", "3"], "seconds"),
    (
        "overlapped_copy", ["--mode", "receive_after_streaming", "--size", "3000001", "-n", "3"],
        "seconds"),
    ("overlapped_copy", ["--mode", "receive_between", "--size", "3000001", "-n", "3"], "seconds"),
    ("overlapped_copy", ["--mode", "receive_helper", "--size", "3000001", "-n", "3"], "seconds"),
    (
        "overlapped_copy", ["--mode", "receive_helper_streaming", "--size", "3000001", "-n", "3"],
        "seconds")]

# What a kernel or its limits may refuse: then the program says so and exits with 77.
PINNING = [
    ("tcp_pingpong", ["--mode", "uring", "-n", "200"], "one_way_ns"),
    ("tcp_pingpong", ["--mode", "uring_spinning", "--size", "3000001", "-n", "20"], "one_way_ns"),
    ("tcp_bulk", ["--mode", "uring", "--size", "20000001", "-n", "4"], "seconds"),
    ("registration", ["--mode", "mlock", "--size", "65536", "-n", "5"], "seconds"),
    ("registration", ["--mode", "io_uring", "--size", "65536", "-n", "5"], "seconds"),
    (
        "registration",
        ["--mode", "io_uring", "--size", "65536", "-n", "50", "--hit-percent", "50"], "seconds"),
    (
        "registration", ["--mode", "verbs", "--size", "65536", "-n", "50", "--hit-percent", "50"],
        "seconds"),
    (
        "registration_reuse",
        ["--mode", "io_uring_lru", "--size", "65536", "-n", "50", "--buffers", "17"], "seconds"),
    (
        "registration_reuse",
        ["--mode", "verbs_random", "--size", "65536", "-n", "50", "--buffers", "20"], "seconds"),
    ("tcp_zerocopy", ["--mode", "zerocopy", "--size", "1048576", "-n", "1"], "seconds"),
]

# The same over a wire between two namespaces.
WIRE_CASES = [
    ("frame_pingpong", ["--mode", "blocking", "-n", "200"], "one_way_ns"),
    ("frame_pingpong", ["--mode", "spinning", "-n", "200"], "one_way_ns"),
    ("frame_pingpong", ["--mode", "unfiltered", "-n", "200"], "one_way_ns"),
    ("frame_pingpong", ["--mode", "ring", "-n", "3000"], "one_way_ns"),
    ("frame_bulk", ["--mode", "mmsg", "--size", "4000000", "-n", "8"], "seconds"),
    ("frame_bulk", ["--mode", "ring", "--size", "4000000", "-n", "8"], "seconds"),
    ("frame_cost", ["--mode", "single", "-n", "20"], "seconds"),
    ("frame_cost", ["--mode", "batched", "--size", "1500", "-n", "20"], "seconds"),
    ("frame_cost", ["--mode", "ring_prefetch", "--size", "1500", "-n", "20"], "seconds"),
    ("frame_cost", ["--mode", "two_cpus", "--size", "47", "-n", "20"], "seconds"),
    ("udp_bulk", ["--mode", "joined", "--size", "4000000", "-n", "8"], "seconds"),
    ("udp_bulk", ["--mode", "single", "--size", "4000000", "-n", "8"], "seconds"),
    ("tcp_pingpong", ["--mode", "epoll", "-n", "200"], "one_way_ns"),
    ("udp_pingpong", ["--mode", "blocking", "--size", "16384", "-n", "200"], "one_way_ns"),
    ("tcp_bulk", ["--size", "1048576", "-n", "64"], "seconds"),
    ("tcp_zerocopy", ["--mode", "zerocopy", "--size", "65536", "-n", "1"], "seconds"),
    ("file_copy", ["--mode", "tcp", "--size", "4000000", "-n", "2"], "seconds"),
    ("file_copy", ["--mode", "udp_joined", "--size", "4000000", "-n", "2"], "seconds"),
    ("file_copy", ["--mode", "frames", "--size", "4000000", "-n", "2"], "seconds"),
]
WIRE = [sys.executable, os.path.join("benchmarks", "wire.py"), "--mtu", "9000", "--"]
LONG_LINE = WIRE[:2] + [
    "--rate", "1gbit", "--delay", "2ms", "--late-us", "0", "--relay", os.path.join(FOLDER, "relay"),
    "--"]


def have_wire():
    return subprocess.run(WIRE + ["true"], capture_output=True, timeout=60).returncode == 0


def skip(what, why):
    print(f"SKIPPED {what}: {why.strip()}", file=sys.stderr)
    print("sluice-skips 1", file=sys.stderr)


def run(program, flags, before=(), **environment):
    command = list(before) + [os.path.join(FOLDER, program)] + flags
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False,
        env=dict(os.environ, **environment))


LOST = 5  # kExitLost


def run_over_wire(program, flags):
    """Runs it again, three times at most, if a raw frame was lost: tests beside this one may fill
    the queue that all interfaces share."""
    for _ in range(3):
        done = run(program, flags, WIRE)
        if done.returncode != LOST:
            break
        print(done.stderr.strip(), file=sys.stderr)
    return done


class EveryBareProgram(unittest.TestCase):
    def test_prints_one_json_object_with_ordered_times(self):
        for program, flags, times in CASES:
            with self.subTest(program=program, flags=flags):
                done = run(program, flags)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(len(done.stdout.splitlines()), 1)
                line = json.loads(done.stdout)
                self.assertEqual(line["name"], program)
                self.assertIs(line["verified"], True)
                self.assertGreater(line["size_bytes"], 0)
                self.assertGreater(line["iterations"], 0)
                self.assertGreater(line["cpu_seconds"], 0)
                self.assertGreater(line[times]["min"], 0)
                self.assertLessEqual(line[times]["min"], line[times]["p50"])
                self.assertLessEqual(line[times]["p50"], line[times]["max"])

    def test_over_a_wire_it_prints_one_object_or_notices_a_flipped_bit(self):
        if not have_wire():
            skip("netns", "no network namespaces with a veth pair")
            return
        for program, flags, times in WIRE_CASES:
            with self.subTest(program=program, flags=flags):
                done = run_over_wire(program, flags)
                self.assertEqual(done.returncode, 0, done.stderr)
                line = json.loads(done.stdout)
                self.assertIs(line["verified"], True)
                self.assertGreater(line[times]["min"], 0)
                done = run_over_wire(program, flags + ["--corrupt"])
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertEqual(done.stdout, "")

    def test_of_a_long_line_says_how_long_the_first_bytes_took_and_the_rate_after_that(self):
        if not have_wire():
            skip("netns", "no network namespaces with a veth pair")
            return
        for mode in ("tuned", "fixed", "streams4"):
            with self.subTest(mode=mode):
                done = run("line_bulk", ["--mode", mode, "-n", "3"], LONG_LINE)
                self.assertEqual(done.returncode, 0, done.stderr)
                line = json.loads(done.stdout)
                self.assertIs(line["verified"], True)
                self.assertGreater(line["seconds"], 64 * 2**20 / 125e6)  # no faster than the line
                self.assertTrue(0 < line["bytes_per_second"] <= 125e6 * 1.01, line)
                self.assertGreater(line["cpu_seconds_per_gb"], 0)
        done = run("line_bulk", ["-n", "3", "--corrupt"], LONG_LINE)
        self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)

    def test_pins_memory_or_says_why_not_and_registers_only_what_was_not(self):
        for program, flags, times in PINNING:
            with self.subTest(flags=flags):
                done = run(program, flags)
                if done.returncode == 77:
                    skip(flags[1], done.stderr)
                    continue
                self.assertEqual(done.returncode, 0, done.stderr)
                line = json.loads(done.stdout)
                self.assertGreater(line[times]["min"], 0)
                if "--hit-percent" in flags:
                    self.assertTrue(0 < line["registrations"] < 50, line)
                    for percent, registrations in (("0", 50), ("100", 0)):
                        line = json.loads(run(program, flags[:-1] + [percent]).stdout)
                        self.assertEqual(
                            (line["hit_percent"], line["registrations"]),
                            (int(percent), registrations))
                self.assertEqual(run(program, flags + ["--corrupt"]).returncode, 4)
                line = json.loads(run(program, flags + ["--slow-ns", "2000000"]).stdout)
                self.assertGreaterEqual(line[times]["min"], 0.001999)

    def test_hashes_the_file_that_came_by_whatever_way(self):
        pattern = b"".join(
            (index * 2654435761 + piece * 40503 + 1 & 0xFFFFFFFF).to_bytes(4, "little")
            for piece in range(2)
            for index in range(1 << 18))
        for mode in ("tcp", "tcp_sendfile", "udp", "udp_joined"):
            line = json.loads(
                run("file_copy", ["--mode", mode, "--size", "1500000", "-n", "1"]).stdout)
            self.assertEqual(line["sha256"], hashlib.sha256(pattern[:1500000]).hexdigest())

    def test_of_pages_lent_to_the_kernel_counts_what_it_copied_all_the_same(self):
        done = run("tcp_zerocopy", ["--mode", "zerocopy", "--size", "1048576", "-n", "1"])
        if done.returncode == 77:
            skip("MSG_ZEROCOPY", done.stderr)
            return
        line = json.loads(done.stdout)
        # each call that sent something, and a message takes one at least
        self.assertGreaterEqual(line["notifications"], line["iterations"])
        self.assertEqual(line["kernel_copied_percent"], 100)  # the loopback device
        self.assertNotIn(
            "notifications", json.loads(run("tcp_zerocopy", ["--mode", "copied", "-n", "1"]).stdout)
        )

    def test_of_pages_lent_to_the_kernel_asks_another_machine_too(self):
        program = ["tcp_zerocopy", "--mode", "copied", "--size", "65536", "-n", "1"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        serving = subprocess.Popen(
            [os.path.join(FOLDER, program[0])], env=dict(os.environ, BARE_SERVE=port))
        try:
            for flags, status in ((program[1:], 0), (program[1:] + ["--corrupt"], 4)):
                done = run(program[0], flags, BARE_TO="127.0.0.1:" + port)
                while done.returncode == 1 and "refused" in done.stderr:  # not there yet
                    done = run(program[0], flags, BARE_TO="127.0.0.1:" + port)
                self.assertEqual(done.returncode, status, done.stderr)
                if status == 0:
                    self.assertIn("machine_cpu_seconds_per_gb", json.loads(done.stdout))
        finally:
            serving.kill()
            serving.wait()

    def test_of_a_cache_of_registrations_has_what_its_places_and_its_rule_allow(self):
        def hits(policy, buffers):
            done = run(
                "registration_reuse",
                [
                    "--mode", f"io_uring_{policy}", "--buffers", str(buffers), "--size", "4096",
                    "-n", "2000"])
            return None if done.returncode == 77 else json.loads(done.stdout)["hit_percent"]
        if hits("lru", 16) is None:
            skip("io_uring", "nothing can be pinned")
            return
        self.assertEqual(
            [hits("lru", 16), hits("lru", 17), hits("random", 16), hits("arena", 64)],
            [100, 0, 100, 100])
        self.assertTrue(100 > hits("random", 17) > hits("random", 24) > hits("random", 64) > 0)

    def test_frames_need_a_wire_and_say_how_to_get_one(self):
        done = run("frame_pingpong", [])
        self.assertEqual(done.returncode, 77)
        self.assertIn("wire.py", done.stderr)

    def test_prints_no_figure_when_one_bit_of_the_payload_is_wrong(self):
        for program, flags, _ in CASES:
            with self.subTest(program=program, flags=flags):
                done = run(program, flags + ["--corrupt"])
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertIn("did not verify", done.stderr)

    def test_gets_slower_by_what_it_was_told_to_waste(self):
        for program, flags, times in CASES:
            # More than the program takes by itself, so that only the waste explains it.
            wasted_ns = 2_000_000_000 if program.startswith("vgg16") or "67108864" in flags \
                else 200_000 if program == "operation_cost" else 2_000_000
            if program in ("flag_pingpong", "malloc_pair", "operation_cost"):
                flags = flags[:-1] + ["1"]  # one batch of 128 rounds
            with self.subTest(program=program, flags=flags):
                line = json.loads(run(program, flags + ["--slow-ns", str(wasted_ns)]).stdout)
                in_ns = 1 if times == "one_way_ns" else 1e9
                half = 2 if times == "one_way_ns" else 1  # one side wastes it, per round trip
                self.assertGreaterEqual(line[times]["min"] * in_ns, wasted_ns / half * 0.999)

    def test_counts_no_wake_of_a_thread_that_had_not_slept_not_even_as_the_last(self):
        asleep = ["env", "LD_PRELOAD=" + os.path.join(FOLDER, "libhalf_asleep.so")]
        for mode in ("futex_wake", "eventfd_wake"):
            with self.subTest(mode=mode):
                started = time.monotonic()
                done = run("operation_cost", ["--mode", mode, "-n", "1"], asleep)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                # No sample is longer than the program ran.
                self.assertLess(
                    json.loads(done.stdout)["seconds"]["max"], time.monotonic() - started)

    def test_refuses_a_flag_it_does_not_know_and_names_it(self):
        for program in sorted({case[0] for case in CASES}):
            with self.subTest(program=program):
                done = run(program, ["--sise", "64"])
                self.assertEqual(done.returncode, 2)
                self.assertIn("--sise", done.stderr)
                self.assertIn("for example", done.stderr)

    def test_a_datagram_that_is_too_large_is_refused(self):
        done = run("udp_pingpong", ["--size", "65508", "-n", "1"])
        self.assertEqual(done.returncode, 2)
        self.assertIn("65507", done.stderr)

    def test_is_ended_by_its_own_time_limit(self):
        done = run("tcp_pingpong", ["-n", "4000000000", "--limit-seconds", "1"])
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
