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


if __name__ == "__main__":
    command.main()
