#!/usr/bin/env python3
"""`sluice perf --system-calls`: what is counted, what is said where it cannot be."""
import json
import os
import subprocess

import command

# Another user, without any privilege.
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
LOAD = ("perf", "send_lat", "--self", "--transport", "tcp", "-n", "500", "--pin", "off")


def may_count():
    """Whether this user may; where only the other end does not, that is a failure of the run."""
    done = subprocess.run([command.BINARY, *LOAD, "--system-calls", "--strict", "--format", "json"], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=command.LIMIT_SECONDS, env=command.environment(), check=False)
    return done.returncode != 2, done.stderr.strip()


class SystemCalls(command.CommandTest):
    def counted(self, *arguments):
        document = json.loads(self.run_command(*arguments, "--system-calls", "--format", "json").stdout)
        self.assertEqual(document["warnings"], [])
        return document["results"][0]

    def setUp(self):
        super().setUp()
        able, why = may_count()
        if not able and self._testMethodName.startswith("test_counted"):
            self.skipTest(why)

    def test_counted_calls_of_both_ends_are_those_of_the_path(self):
        for test, floor, ceiling in (("send_lat", 1, 20), ("send_bw", 0.01, 20)):
            with self.subTest(test=test):
                used = self.counted("perf", test, "--self", "--transport", "tcp", "-s", "64", "-n", "2000", *command.depth(test, 16), "--wait", "sleep")["used"]
                for end in ("client", "server"):
                    self.assertGreater(used[end]["system_calls_per_message"], floor)
                    self.assertLess(used[end]["system_calls_per_message"], ceiling)
                    self.assertNotIn("system_calls_why_not", used[end])

    def test_counted_calls_of_who_spins_on_shared_memory_are_none(self):
        used = self.counted("perf", "send_lat", "--self", "--transport", "shm", "-n", "10000", "--wait", "spin")["used"]
        for end in ("client", "server"):
            self.assertLess(used[end]["system_calls_per_message"], 0.5)

    def test_counted_calls_of_two_ends_in_one_process_are_said_once(self):
        used = self.counted("perf", "send_lat", "--self", "--transport", "loopback", "-n", "100")["used"]
        self.assertIsNone(used["server"])
        self.assertIsInstance(used["client"]["system_calls_per_message"], float)

    def test_nothing_is_counted_unasked(self):
        used = json.loads(self.run_command(*LOAD, "--format", "json").stdout)["results"][0]["used"]
        for end in ("client", "server"):
            self.assertIsNone(used[end]["system_calls_per_message"])
            self.assertNotIn("system_calls_why_not", used[end])

    def test_who_may_not_count_says_why_and_is_refused_under_strict(self):
        if os.geteuid() != 0:
            within = ()
        elif not os.access(command.BINARY, os.X_OK) or subprocess.run([*NOBODY, command.BINARY, "version"], capture_output=True, check=False).returncode != 0:
            self.skipTest("another user cannot run the binary where it is")
        else:
            within = NOBODY
        if within == () and may_count()[0]:
            self.skipTest("this user may count")
        done = self.run_command(*LOAD, "-a", "--system-calls", "--format", "json", within=within)
        document = json.loads(done.stdout)
        self.assertEqual(len(document["warnings"]), 1, document["warnings"])
        self.assertIn("--system-calls: system calls cannot be counted: ", done.stderr)
        self.assertEqual(sum(line.startswith("sluice perf: ") for line in done.stderr.splitlines()), 1, done.stderr)
        for result in document["results"]:
            for end in ("client", "server"):
                self.assertIsNone(result["used"][end]["system_calls_per_message"])
                self.assertIn("cannot be counted", result["used"][end]["system_calls_why_not"])
        done = self.run_command(*LOAD, "--system-calls", "--strict", "--format", "json", within=within, expect=2)
        self.assertIn("--system-calls", done.stderr)
        self.assertIn("example", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_where_there_is_no_place_for_it_it_is_refused(self):
        for arguments in (["send_lat", "--self"], ["send_lat", "--self", "--format", "csv"], ["send_lat"]):
            done = self.run_command("perf", *arguments, "--system-calls", expect=2)
            self.assertIn("--system-calls", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)


if __name__ == "__main__":
    command.main()
