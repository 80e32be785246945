#!/usr/bin/env python3
"""`sluice perf` in time: lines at intervals, what both processes used, both directions at once."""
import json
import os
import subprocess

import command


class Intervals(command.CommandTest):
    LOAD = ("perf", "send_bw", "--self", "--transport", "shm", "-s", "4K", "-D", "1", "--interval", "0.2")

    def check(self, intervals, result):
        self.assertGreaterEqual(len(intervals), 2)
        self.assertEqual(sum(part["iterations"] for part in intervals), result["iterations"])
        self.assertEqual(intervals[0]["from_seconds"], 0)
        self.assertEqual(intervals[-1]["to_seconds"], result["seconds"])
        for one, other in zip(intervals, intervals[1:]):
            self.assertEqual(one["to_seconds"], other["from_seconds"])
            self.assertGreaterEqual(one["to_seconds"] - one["from_seconds"], 0.2)
        moved = sum(part["bytes_per_second"] * (part["to_seconds"] - part["from_seconds"]) for part in intervals)
        self.assertAlmostEqual(moved / (result["bytes_per_second"] * result["seconds"]), 1, delta=1e-6)

    def test_the_parts_of_a_run_add_up_to_it_in_json_and_in_lines_of_json(self):
        result, = json.loads(self.run_command(*self.LOAD, "--format", "json").stdout)["results"]
        self.check(result["intervals"], result)
        lines = [json.loads(line) for line in self.run_command(*self.LOAD, "--format", "ndjson").stdout.splitlines()]
        self.assertEqual({line["schema"] for line in lines}, {"sluice.perf/1"})
        self.assertEqual([line["type"] for line in lines], ["interval"] * (len(lines) - 1) + ["result"])
        self.check(lines[:-1], lines[-1])

    def test_a_line_is_there_while_the_run_goes_on(self):
        process = subprocess.Popen([command.BINARY, "perf", "send_lat", "--self", "--transport", "shm", "-D", "1000", "--interval", "0.05"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=command.environment())
        self.addCleanup(self.end, process)
        self.assertIn("#bytes", process.stdout.readline())
        self.assertRegex(process.stdout.readline(), r"^   0\.00-[\d.]+ s: \d+ iterations, [\d.]+ MiB/s, [\d.]+ Mpps$")
        self.assertRegex(process.stdout.readline(), r"^   0\.\d+-[\d.]+ s: ")
        self.assertIsNone(process.poll())
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
            server = int(file.read().split()[0])
        os.kill(server, 9)
        process.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(process.returncode, 1)

    def test_each_size_has_its_own(self):
        arguments = ("perf", "exchange_lat", "--self", "--transport", "shm", "-D", "0.05", "--interval", "0.02", "--format", "json", "-a")
        for result in json.loads(self.run_command(*arguments).stdout)["results"]:
            self.assertEqual(sum(part["iterations"] for part in result["intervals"]), result["iterations"])
            self.assertEqual({part["size_bytes"] for part in result["intervals"]}, {result["size_bytes"]})

    def test_an_interval_without_a_duration_or_a_place_is_refused(self):
        for arguments in (["--interval", "1"], ["-n", "5", "--interval", "1"], ["-D", "1", "--interval", "0"], ["-D", "1", "--interval", "x"],
                          ["-D", "1", "--interval", "1", "--format", "csv"], ["-D", "1", "--interval", "1", "--format", "perftest"]):
            done = self.run_command("perf", "send_bw", "--self", *arguments, expect=2)
            self.assertIn("--interval", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)


class Used(command.CommandTest):
    def test_both_ends_say_what_they_used(self):
        used = self.perf("send_lat", "--self", "--transport", "tcp", "-n", "3000", "--wait", "sleep")["results"][0]["used"]
        for end in ("client", "server"):
            self.assertGreater(used[end]["user_ns"] + used[end]["system_ns"], 0)
            # Each message is waited for asleep.
            self.assertGreater(used[end]["voluntary_switches_per_message"], 0.1)
            self.assertGreater(used[end]["cpu_share"], 0)
            self.assertGreater(used[end]["cpu_ns_per_message"], 0)

    def test_who_spins_does_not_wait(self):
        used = self.perf("send_lat", "--self", "--transport", "shm", "-n", "3000", "--wait", "spin")["results"][0]["used"]
        self.assertLess(used["client"]["voluntary_switches_per_message"], 0.1)

    def test_two_ends_in_one_process_are_counted_once(self):
        used = self.perf("send_lat", "--self", "--transport", "loopback", "-n", "300")["results"][0]["used"]
        self.assertIsNone(used["server"])
        self.assertIn("cpu_share", used["client"])


class BothDirections(command.CommandTest):
    def test_both_directions_are_measured_verified_and_added_up(self):
        for transport in ("shm", "tcp", "loopback"):
            for test in ("send_bw", "write_bw", "read_bw"):
                for size in ("64", "300K"):
                    with self.subTest(transport=transport, test=test, size=size):
                        load = (test, "--self", "--transport", transport, "-s", size, "-n", "200", "-t", "16")
                        one, = self.perf(*load)["results"]
                        both, = self.perf(*load, "-b")["results"]
                        self.assertTrue(both["bidirectional"])
                        self.assertNotIn("bidirectional", one)
                        self.assertEqual(both["errors"], 0)
                        self.assertEqual(both["verified_bytes"], 2 * one["verified_bytes"])
                        moved = both["bytes_per_second"] * both["seconds"]
                        self.assertAlmostEqual(moved / (2 * 200 * both["size_bytes"]), 1, delta=1e-6)

    def test_several_connections_carry_both_directions_each(self):
        for test in ("send_bw", "write_bw", "read_bw"):
            result, = self.perf(test, "--self", "--transport", "tcp", "-s", "4K", "-n", "300", "-b", "--qps", "3")["results"]
            self.assertEqual(result["errors"], 0)
            for carried in result["bytes_by_qp"]:
                self.assertGreaterEqual(carried, 2 * 100 * 4096)

    def test_damage_in_either_direction_is_seen(self):
        for test in ("send_bw", "write_bw", "read_bw"):
            done = self.run_command("perf", test, "--self", "--transport", "tcp", "-s", "4K", "-n", "50", "-b", "--corrupt", expect=4)
            self.assertIn("bytes arrived that were not sent", done.stderr)

    def test_a_duration_and_intervals_work_in_both_directions(self):
        result, = self.perf("write_bw", "--self", "--transport", "shm", "-D", "0.4", "--interval", "0.1", "-b")["results"]
        self.assertGreaterEqual(result["seconds"], 0.4)
        self.assertEqual(sum(part["iterations"] for part in result["intervals"]), result["iterations"])

    def test_perftest_says_so_in_its_title(self):
        done = self.run_command("perf", "write_bw", "--self", "--transport", "shm", "-b", "-n", "20", "--format", "perftest")
        self.assertEqual(done.stdout.splitlines()[1], " " * 20 + "RDMA_Write Bidirectional BW Test")

    def test_other_tests_have_one_direction(self):
        for test in ("send_lat", "exchange_bw", "atomic_bw"):
            done = self.run_command("perf", test, "--self", "-b", expect=2)
            self.assertIn("--bidirectional", done.stderr)
            self.assertIn(test, done.stderr)

    def test_one_direction_is_no_baseline_for_two(self):
        path = self.file("one.json")
        load = ("perf", "send_bw", "--self", "--transport", "shm", "-s", "64", "-n", "50")
        self.run_command(*load, "--json", path)
        done = self.run_command(*load, "-b", "--baseline", path, expect=2)
        self.assertIn("has no send_bw of 64 bytes in both directions, but send_bw of 64 bytes;", done.stderr)


if __name__ == "__main__":
    command.main()
