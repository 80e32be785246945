#!/usr/bin/env python3
"""The command line of `sluice perf`: usage errors, sizes, durations, and the JSON file."""
import json
import os
import re
import subprocess

import command


class Usage(command.CommandTest):
    def assert_usage(self, arguments, flag, value):
        done = self.run_command(*arguments, expect=2)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(flag, done.stderr)
        self.assertIn(value, done.stderr)
        self.assertIn("example", done.stderr)

    def test_a_value_that_does_not_parse_names_flag_value_and_example(self):
        cases = [
            ("TEST", "send_lta", ["perf", "send_lta", "--self"]),
            ("--size", "12x", ["perf", "send_lat", "--self", "-s", "12x"]),
            ("--size", "0", ["perf", "write_lat", "--self", "--size", "0"]),
            ("--size", "0", ["perf", "send_bw", "--self", "-s", "0"]),
            ("--size", "-0", ["perf", "send_lat", "--self", "--size=-0"]),
            ("TEST", "missing", ["perf", "--self"]),
            ("--iters", "abc", ["perf", "send_lat", "--self", "-n", "abc"]),
            ("--iters", "0", ["perf", "send_lat", "--self", "-n", "0"]),
            ("--duration", "never", ["perf", "send_lat", "--self", "-D", "never"]),
            ("--duration", "-1", ["perf", "send_lat", "--self", "-D=-1"]),
            ("--tx-depth", "5000", ["perf", "send_bw", "--self", "-t", "5000"]),
            ("--qps", "65", ["perf", "send_bw", "--self", "--qps", "65"]),
            ("--qps", "0", ["perf", "send_bw", "--self", "-q", "0"]),
            ("--qps", "2", ["perf", "write_lat", "--self", "-q", "2"]),
            ("--qps", "2", ["perf", "exchange_bw", "--self", "-q", "2"]),
            ("--warmup", "1.5", ["perf", "send_lat", "--self", "--warmup", "1.5"]),
            ("--transport", "pigeon", ["perf", "send_lat", "--self", "--transport", "pigeon"]),
            ("--port", "65536", ["perf", "send_lat", "-p", "65536"]),
            ("--wait", "nap", ["perf", "send_lat", "--self", "--wait", "nap"]),
            ("--pin", "maybe", ["perf", "send_lat", "--self", "--pin", "maybe"]),
            ("HOST", "tcp://nowhere", ["perf", "send_lat", "tcp://nowhere"]),
            ("HOST", "a b", ["perf", "send_lat", "a b"]),
            ("HOST", "has a port", ["perf", "send_lat", "127.0.0.1:18515", "--transport", "tcp"]),
            ("HOST", "has a port", ["perf", "send_lat", "[::1]:18515"]),
            ("--transport", "another path", ["perf", "send_lat", "tcp://127.0.0.1:1", "--transport", "rdma"]),
            ("--transport", "another path", ["perf", "send_lat", "l2://udp/127.0.0.1:1", "--transport", "l2"]),
            ("--transport", "another path", ["perf", "send_lat", "sluice://127.0.0.1:1", "--transport", "tcp"]),
            ("--bind", "a b", ["perf", "send_lat", "--bind", "a b"]),
            ("--self", "somehost", ["perf", "send_lat", "somehost", "--self"]),
            ("--into", "send_bw", ["perf", "send_bw", "--self", "--into"]),
            ("--subscribe", "exchange_lat", ["perf", "exchange_lat", "--self", "--subscribe"]),
            ("--subscribe", "--into", ["perf", "exchange_bw", "--self", "--subscribe", "--into"]),
            ("--tx-depth", "33", ["perf", "exchange_bw", "--self", "--subscribe", "-t", "33"]),
            ("--transport", "loopback", ["perf", "send_lat", "--transport", "loopback"]),
            ("--atomic_type", "SWAP", ["perf", "atomic_lat", "--self", "-A", "SWAP"]),
            ("--atomic_type", "FETCH_AND_ADD", ["perf", "write_bw", "--self", "-A", "FETCH_AND_ADD"]),
            ("--transport", "tcp", ["perf", "atomic_lat", "--self", "--transport", "tcp"]),
            ("--transport", "l2", ["perf", "atomic_lat", "--self", "--transport", "l2"]),
            ("HOST", "127.0.0.1", ["perf", "send_lat", "127.0.0.1", "--transport", "l2"]),
            ("--size", "16", ["perf", "atomic_bw", "--self", "-s", "16"]),
            ("--all", "atomic_bw", ["perf", "atomic_bw", "--self", "-a"]),
            ("--verify", "md5", ["perf", "send_lat", "--self", "--verify=md5"]),
            ("--verify", "crc32c", ["perf", "atomic_lat", "--self", "--verify=crc32c"]),
            ("--json", "/nowhere/x", ["perf", "send_lat", "--self", "--json", "/nowhere/x"]),
            ("--bogus", "", ["perf", "send_lat", "--self", "--bogus"]),
            ("COMMAND", "did you mean perf?", ["prf"]),
            ("TEST", "did you mean send_lat?", ["perf", "send-lat", "--self"]),
            ("--transport", "did you mean shm?", ["perf", "send_lat", "--self", "--transport", "shmm"]),
            ("--iterations", "did you mean --iters?", ["perf", "send_lat", "--self", "--iterations", "5"]),
            ("--size", "4BK", ["perf", "send_lat", "--self", "-s", "4BK"]),
        ]
        for flag, value, arguments in cases:
            with self.subTest(arguments=arguments):
                self.assert_usage(arguments, flag, value)

    def test_what_excludes_each_other_is_refused(self):
        self.assert_usage(["perf", "send_lat", "--self", "-a", "-s", "4"], "--size", "--all")
        self.assert_usage(["perf", "send_lat", "--self", "-n", "4", "-D", "1"], "--duration", "--iters")

    def test_a_path_that_this_build_has_not_is_nothing_to_run_on(self):
        done = self.run_command("perf", "send_lat", "--self", "--transport", "module", expect=77)
        self.assertIn("module", done.stderr)

    def test_without_an_rdma_device_rdma_is_nothing_to_run_on_and_the_remedy_is_told(self):
        obstacle = json.loads(self.run_command("info", "--json").stdout)["rdma"]["obstacle"]
        if obstacle is None:
            self.skipTest("this machine has an RDMA device; the guest's test is for it")
        for arguments in (["send_lat", "--self"], ["atomic_bw", "--self"], ["write_bw"], ["read_lat", "127.0.0.1"]):
            done = self.run_command("perf", *arguments, "--transport", "rdma", expect=77)
            self.assertEqual(done.stdout, "")
            self.assertEqual(done.stderr, f"sluice perf: --transport rdma: {obstacle}\n")
        # The path's own name means the same.
        self.assertIn("--transport rdma", self.run_command("perf", "send_lat", "--self", "--transport", "verbs", expect=77).stderr)

    def test_a_path_without_atomics_refuses_them(self):
        done = self.run_command("perf", "atomic_lat", "--self", expect=1)
        for part in ("path shm has no atomics", "--transport rdma"):
            self.assertIn(part, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_more_than_there_is_memory_for_is_refused_before_it_starts(self):
        done = self.run_command("perf", "send_lat", "--self", "-s", "1000G", expect=1)
        self.assertIn("--size", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_help_and_version_are_no_errors(self):
        self.assertIn("--transport", self.run_command("perf", "--help").stdout)
        self.assertNotIn("--corrupt", self.run_command("perf", "--help").stdout)
        self.assertRegex(self.run_command("version").stdout, r"^sluice \d+\.\d+\.\d+\n$")
        self.assertEqual(self.run_command("perf", "-V").stdout, self.run_command("version").stdout)  # as in perftest
        self.assertRegex(self.run_command("--version").stdout, r"^sluice \d+\.\d+\.\d+\n$")


class Results(command.CommandTest):
    def test_all_sizes_are_in_the_table_and_in_the_json(self):
        path = self.file("all.json")
        done = self.run_command("perf", "send_lat", "--self", "--transport", "shm", "-a", "-n", "5", "--json", path)
        sizes = [2 ** exponent for exponent in range(1, 24)]
        rows = [line.split() for line in done.stdout.splitlines() if "#" not in line]
        self.assertEqual([int(row[0]) for row in rows], sizes)
        with open(path, encoding="utf-8") as file:
            results = json.load(file)["results"]
        self.assertEqual([result["size_bytes"] for result in results], sizes)

    def test_results_go_to_stdout_and_nothing_else_does(self):
        done = self.run_command("perf", "send_bw", "--self", "--transport", "tcp", "-s", "4K", "-n", "20")
        header, row = done.stdout.splitlines()
        self.assertTrue(header.startswith(" #bytes "))
        self.assertRegex(row, r"^ 4096 +20 +\d")
        self.assertNotIn("\x1b", done.stdout + done.stderr)

    def test_a_size_may_have_its_unit_spelled_out(self):
        [result] = self.perf("send_lat", "--self", "--transport", "shm", "-n", "10", "-s", "4KiB")["results"]
        self.assertEqual(result["size_bytes"], 4096)

    def test_messages_of_no_bytes_have_a_latency(self):
        for transport in ("shm", "tcp", "udp", "loopback"):
            with self.subTest(transport=transport):
                document = self.perf("send_lat", "--self", "--transport", transport, "-s", "0", "-n", "50", "--percentiles", "90")
                result, = document["results"]
                self.assertEqual((result["size_bytes"], result["iterations"], result["errors"], result["bytes_per_second"]), (0, 50, 0, 0))
                self.assertGreater(result["latency_ns"]["min"], 0)
                # Both ways in the time that it took.
                self.assertAlmostEqual(result["messages_per_second"] * result["seconds"], 100, delta=1e-6)
                self.assertGreater(result["used"]["client"]["cpu_ns_per_message"], 0)
        line = self.run_command("perf", "send_lat", "--self", "--transport", "shm", "-s", "0", "-n", "20").stdout.splitlines()[1]
        self.assertEqual(line.split()[:2], ["0", "20"])

    def test_json_to_stdout_is_only_json(self):
        done = self.run_command("perf", "send_lat", "--self", "-n", "20", "--json", "-")
        self.assertEqual(json.loads(done.stdout)["results"][0]["iterations"], 20)

    def test_a_duration_runs_at_least_that_long(self):
        for test in ("send_lat", "exchange_bw"):
            result = self.perf(test, "--self", "--transport", "shm", "-s", "64", "-D", "0.3")["results"][0]
            self.assertGreaterEqual(result["seconds"], 0.3)
            self.assertGreater(result["iterations"], 0)

    def test_without_verification_nothing_claims_to_be_verified(self):
        for test in ("send_lat", "exchange_lat", "write_bw"):
            result = self.perf(test, "--self", "--transport", "shm", "-s", "64", "-n", "20", "--no-verify")["results"][0]
            self.assertEqual((result["verified_bytes"], result["verified_by"]), (0, None))

    def test_the_window_is_what_was_asked_for(self):
        result = self.perf("write_bw", "--self", "--transport", "tcp", "-s", "1K", "-n", "40", "-t", "3")["results"][0]
        self.assertEqual(result["tx_depth"], 3)

    def test_a_window_that_would_take_too_much_memory_is_cut_and_said(self):
        document = self.perf("write_bw", "--self", "--transport", "shm", "-s", "128M", "-n", "2", "-t", "8", "--no-verify")
        self.assertEqual(document["results"][0]["tx_depth"], 4)
        self.assertEqual(len(document["warnings"]), 1)

    def test_the_environment_says_what_the_figures_depend_on(self):
        environment = self.perf("send_lat", "--self", "--transport", "auto", "-n", "20", "--wait", "sleep")["environment"]
        self.assertEqual(environment["waiting"], "sleep")
        self.assertEqual(environment["transport"]["requested"], "auto")
        self.assertEqual(environment["transport"]["path"], "shm")
        self.assertTrue(environment["transport"]["reason"])
        self.assertEqual(environment["cpus"], len(os.sched_getaffinity(0)))
        self.assertEqual(environment["pinned"], environment["cpus"] >= 2)
        self.assertIn("send_lat", environment["argv"])
        for name in ("kernel", "cpu", "governor", "thp", "steal_seconds"):
            self.assertIn(name, environment)
        self.assertFalse(self.perf("send_lat", "--self", "-n", "20", "--pin", "off")["environment"]["pinned"])

    def test_every_way_of_waiting_works_on_every_path(self):
        for transport in ("shm", "tcp", "loopback"):
            for waiting in ("adaptive", "sleep", "spin"):
                with self.subTest(transport=transport, waiting=waiting):
                    document = self.perf("exchange_lat", "--self", "--transport", transport, "-s", "64", "-n", "30", "--wait", waiting)
                    self.assertEqual(document["results"][0]["errors"], 0)


class JsonFile(command.CommandTest):
    def test_a_file_that_exists_is_replaced_whole(self):
        path = self.file("result.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write("x" * 100_000)
        document = self.perf("send_lat", "--self", "-n", "20")
        self.assertEqual(document["schema"], "sluice.perf/1")

    def test_arguments_that_are_no_utf8_are_in_documents_as_far_as_they_can_be(self):
        path = self.file("\udcff.json")
        for more in ([], ["--format", "ndjson"]):
            self.run_command("perf", "memcpy", "-s", "64", "-n", "100", "--json", path, *more)
            with open(path, encoding="utf-8") as file:
                self.assertTrue(any("\ufffd" in word for word in json.load(file)["environment"]["argv"]))

    def test_what_cannot_be_written_is_refused_before_the_run(self):
        for path in ("/nowhere/result.json", self.folder, ""):
            done = self.run_command("perf", "send_lat", "--self", "--json", path, expect=2)
            self.assertIn("--json", done.stderr)
            self.assertEqual(done.stdout, "")

    def test_a_device_without_room_is_a_failure(self):
        done = self.run_command("perf", "send_lat", "--self", "-n", "20", "--json", "/dev/full", expect=1)
        self.assertIn("/dev/full", done.stderr)
        self.assertTrue(os.path.exists("/dev/full"))

    def test_a_pipes_reader_gets_the_whole_document(self):
        path = self.file("pipe")
        os.mkfifo(path)
        process = self.start("perf", "send_lat", "--self", "--transport", "shm", "-n", "20", "--json", path)
        with open(path, encoding="utf-8") as pipe:
            document = json.load(pipe)
        self.assertEqual(document["results"][0]["iterations"], 20)
        self.assertEqual(process.wait(command.LIMIT_SECONDS), 0)

    def test_a_failed_run_leaves_a_file_that_says_so(self):
        path = self.file("result.json")
        process = subprocess.Popen([command.BINARY, "perf", "send_lat", "--self", "--transport", "tcp", "-D", "1000", "--json", path],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=command.environment())
        self.addCleanup(self.end, process)
        self.assertIn("#bytes", process.stdout.readline())
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
            server = int(file.read().split()[0])
        os.kill(server, 9)
        _, errors = process.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(process.returncode, 1, errors)
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual(document["results"], [])
        self.assertTrue(any(re.search("kUnreachable|kOutcomeUnknown|kCancelled", warning) for warning in document["warnings"]),
                        document["warnings"])


if __name__ == "__main__":
    command.main()
