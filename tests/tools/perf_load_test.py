#!/usr/bin/env python3
"""`sluice perf --under-load`: latency alone, and beside a flow of messages on another connection."""
import csv
import io
import json
import os
import signal

import command

FIELDS = {"min", "p50", "p99", "p99_9", "max", "mean", "stdev"}


class UnderLoad(command.CommandTest):
    def test_each_size_is_measured_idle_and_beside_the_flow(self):
        for transport in ("shm", "tcp", "loopback"):
            for test in ("send_lat", "write_lat", "read_lat", "exchange_lat"):
                with self.subTest(transport=transport, test=test):
                    document = self.perf(test, "--self", "--transport", transport, "-s", "64", "-n", "200", "--under-load", "32K", "--percentiles", "90")
                    self.assertEqual(document["warnings"], [])
                    result, = document["results"]
                    self.assertEqual((result["iterations"], result["errors"]), (200, 0))
                    loaded = result["under_load"]
                    self.assertEqual(loaded["iterations"], 200)
                    self.assertEqual(set(loaded["latency_ns"]), FIELDS | {"p90"})
                    self.assertEqual(set(result["latency_ns"]), FIELDS | {"p90"})
                    self.assertGreater(loaded["latency_ns"]["min"], 0)
                    self.assertEqual((loaded["flow"]["size_bytes"], loaded["flow"]["tx_depth"]), (32768, 16))
                    # It went on while the latency was timed.
                    self.assertGreater(loaded["flow"]["messages_per_second"], 0)
                    self.assertAlmostEqual(loaded["flow"]["bytes_per_second"] / loaded["flow"]["messages_per_second"], 32768, delta=1e-3)

    def test_sizes_follow_one_another_and_a_duration_is_of_each_part(self):
        document = self.perf("send_lat", "--self", "--transport", "tcp", "-a", "-D", "0.02", "--under-load", "4K", "-t", "3")
        self.assertEqual(len(document["results"]), 23)
        for result in document["results"]:
            self.assertGreaterEqual(result["under_load"]["seconds"], 0.02)
            self.assertEqual(result["under_load"]["flow"]["tx_depth"], 3)
            self.assertEqual(result["errors"], 0)

    def test_a_window_of_large_messages_is_cut_to_what_a_window_holds(self):
        result, = self.perf("send_lat", "--self", "--transport", "shm", "-n", "5", "--under-load", "64M")["results"]
        self.assertEqual(result["under_load"]["flow"]["tx_depth"], 8)

    def test_the_table_has_a_line_for_it(self):
        done = self.run_command("perf", "send_lat", "--self", "--transport", "shm", "-n", "50", "--under-load", "4K", "--percentiles", "90")
        self.assertRegex(done.stdout.splitlines()[2], r"^   under load \([\d.]+ MiB/sec\): t_min [\d.]+, t_max .*, 99.9% [\d.]+, 90% [\d.]+ \[usec\]$")

    def test_csv_has_columns_for_it_at_the_end(self):
        path = self.file("both.json")
        done = self.run_command("perf", "send_lat", "--self", "--transport", "shm", "-n", "50", "--under-load", "4K", "--percentiles", "90,99", "--confidence", "100", "--format", "csv", "--json", path)
        row, = csv.DictReader(io.StringIO(done.stdout))
        with open(path, encoding="utf-8") as file:
            loaded = json.load(file)["results"][0]["under_load"]
        for name in FIELDS | {"p90"}:
            self.assertEqual(float(row[f"under_load_{name}_ns"]), loaded["latency_ns"][name])
        self.assertEqual(float(row["under_load_flow_bytes_per_second"]), loaded["flow"]["bytes_per_second"])
        self.assertNotIn(None, row)
        self.assertNotIn(None, row.values())

    def test_two_commands_do_it_and_the_server_goes_on(self):
        server = self.start("perf", "send_lat", "--transport", "tcp", "--bind", "127.0.0.1", "-p", "0", "--forever")
        address = server.stderr.readline().split()[-1]
        for _ in range(2):
            result, = self.perf("send_lat", address, "-n", "50", "--under-load", "8K")["results"]
            self.assertGreater(result["under_load"]["flow"]["messages_per_second"], 0)
        self.assertNotIn("under_load", self.perf("send_lat", address, "-n", "50")["results"][0])
        self.assertIsNone(server.poll())

    def test_a_server_that_is_killed_meanwhile_is_a_failure(self):
        process = self.start("perf", "send_lat", "--self", "--transport", "tcp", "-D", "0.01", "-a", "--under-load", "64K", "--confidence", "0.01", "--runs", "1000")
        self.assertIn("#bytes", process.stdout.readline())
        self.assertIn("2 ", process.stdout.readline())
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
            os.kill(int(file.read().split()[0]), signal.SIGKILL)
        process.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(process.returncode, 1)

    def test_damage_of_the_measured_messages_is_found(self):
        self.run_command("perf", "send_lat", "--self", "--transport", "tcp", "-n", "20", "--under-load", "4K", "--corrupt", expect=4)

    def test_what_makes_no_sense_is_refused(self):
        for value, arguments in (("send_bw", ["send_bw", "--self", "--under-load", "4K"]), ("x", ["send_lat", "--self", "--under-load", "x"]),
                                 ("0", ["send_lat", "--self", "--under-load", "0"]), ("1 GiB", ["send_lat", "--self", "--under-load", "1G"]),
                                 ("perftest", ["send_lat", "--self", "--under-load", "4K", "--format", "perftest"]),
                                 ("1024", ["send_lat", "--self", "--under-load", "4K", "-t", "2000"]),
                                 ("server", ["send_lat", "--under-load", "4K"])):
            with self.subTest(arguments=arguments):
                done = self.run_command("perf", *arguments, expect=2)
                self.assertEqual(len(done.stderr.splitlines()), 1)
                for part in ("--under-load", value, "example"):
                    self.assertIn(part, done.stderr)
        self.assertNotIn("under_load", json.loads(self.run_command("perf", "send_lat", "--self", "-n", "20", "--json", "-").stdout)["results"][0])


if __name__ == "__main__":
    command.main()
