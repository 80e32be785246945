#!/usr/bin/env python3
"""`sluice perf memcpy` and `reg`: the tests that one process does alone."""
import csv
import io
import json
import pathlib

import command

LATENCY = {"min", "p50", "p99", "p99_9", "max", "mean", "stdev"}


class Local(command.CommandTest):
    def assert_refused(self, arguments, parts, expect=2):
        done = self.run_command("perf", *arguments, expect=expect)
        self.assertEqual((done.stdout, len(done.stderr.splitlines())), ("", 1), done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)


class Copies(Local):
    def test_both_kinds_of_copy_are_measured_at_every_size_and_verified(self):
        document = self.perf("memcpy", "-a", "-n", "20")
        self.assertEqual((document["schema"], document["warnings"]), ("sluice.perf/1", []))
        self.assertEqual(document["environment"]["transport"]["path"], "none")
        results = document["results"]
        self.assertEqual([result["size_bytes"] for result in results], [2 ** exponent for exponent in range(1, 24)])
        for result in results:
            size, copies = result["size_bytes"], 20 * result["copies_per_iteration"]
            self.assertEqual((result["test"], result["transport"], result["iterations"], result["errors"]), ("memcpy", "memory", 20, 0))
            # Short ones are timed several at a time, and a figure is of one.
            self.assertEqual(result["copies_per_iteration"], max(16384 // size, 1))
            for figures in (result, result["past_caches"]):
                self.assertEqual(set(figures["latency_ns"]), LATENCY)
                self.assertAlmostEqual(figures["bytes_per_second"] * figures["seconds"], size * copies, delta=size * copies * 1e-6)
                self.assertAlmostEqual(figures["latency_ns"]["mean"] * copies / 1e9, figures["seconds"], delta=figures["seconds"] * 1e-6)
            self.assertEqual(result["verified_bytes"], 2 * size)
            self.assertEqual(result["copied_bytes_per_byte"], 1)
            self.assertIsNone(result["used"]["server"])

    def test_a_copy_that_is_wrong_is_found(self):
        for size in ("1", "64K"):
            done = self.run_command("perf", "memcpy", "-s", size, "-n", "10", "--corrupt", expect=4)
            self.assertEqual([line for line in done.stdout.splitlines() if "#" not in line], [])
        result, = self.perf("memcpy", "-s", "64K", "-n", "10", "--no-verify")["results"]
        self.assertEqual((result["verified_bytes"], result["verified_by"]), (0, None))

    def test_offsets_durations_percentiles_and_neighbours(self):
        results = self.perf("memcpy", "-s", "4K", "-D", "0.05", "--offset", "1,3", "--percentiles", "90", "--perturb", "3")["results"]
        self.assertEqual([result["size_bytes"] for result in results], [4093, 4096, 4099])
        for result in results:
            self.assertEqual(result["buffers"]["client"], {"source_at": 1, "destination_at": 3})
            self.assertIn("p90", result["past_caches"]["latency_ns"])
            self.assertGreater(result["iterations"], 0)

    def test_in_every_format(self):
        lines = self.run_command("perf", "memcpy", "-s", "64K", "-n", "10", "--self").stdout.splitlines()
        self.assertEqual(len(lines), 3)
        self.assertRegex(lines[1], r"^ 65536 +10 .* memory$")
        self.assertRegex(lines[2], r"^   past caches: \d+\.\d\d MiB/sec$")
        row, = csv.DictReader(io.StringIO(self.run_command("perf", "memcpy", "-s", "64K", "-n", "10", "--format", "csv").stdout))
        self.assertGreater(float(row["past_caches_bytes_per_second"]), 0)
        self.assertGreater(float(row["past_caches_p50_ns"]), 0)
        self.assertIn('test="memcpy"', self.run_command("perf", "memcpy", "-n", "10", "--format", "openmetrics").stdout)
        batch = self.file("batch")
        pathlib.Path(batch).write_text("memcpy -s 64K -n 10\nsend_lat --self --transport shm -n 10\nreg --transport shm -n 3\n", encoding="utf-8")
        rows = list(csv.DictReader(io.StringIO(self.run_command("perf", "--batch", batch, "--format", "csv").stdout)))
        self.assertEqual([row["test"] for row in rows], ["memcpy", "send_lat", "reg"])
        for row in rows:
            self.assertNotIn(None, row)  # more fields than the header has

    def test_an_earlier_run_is_a_baseline_and_a_plot_is_drawn(self):
        old, plot = self.file("old.json"), self.file("copies.svg")
        self.run_command("perf", "memcpy", "-s", "64K", "-n", "10", "--json", old, "--plot", plot)
        self.assertIn("memcpy over memory", pathlib.Path(plot).read_text(encoding="utf-8"))
        self.assertIn("in the baseline", self.run_command("perf", "memcpy", "-s", "64K", "-n", "10", "--baseline", old).stderr)

    def test_what_has_no_part_in_it_is_refused(self):
        for arguments, parts in ((["memcpy", "somehost"], ("HOST", "somehost", "one process")),
                                 (["memcpy", "--transport", "tcp"], ("--transport", "tcp")),
                                 (["memcpy", "--confidence", "5"], ("--confidence", "one process")),
                                 (["memcpy", "-D", "1", "--interval", "1"], ("--interval", "one process")),
                                 (["memcpy", "--under-load", "4K"], ("--under-load",)),
                                 (["memcpy", "--verify=crc32c"], ("--verify",)),
                                 (["memcpy", "--cold-cache"], ("--cold-cache",)),
                                 (["memcpy", "--qps", "2"], ("--qps",)),
                                 (["memcpy", "-b"], ("--bidirectional",)),
                                 (["memcpy", "--forever"], ("--forever",)),
                                 (["memcpy", "--reply-size", "4"], ("--reply-size",)),
                                 (["memcpy", "-s", "0"], ("--size",)),
                                 (["memcpy", "--format", "perftest"], ("--format", "memcpy")),
                                 (["memcpy", "-t", "4", "--strict"], ("--tx-depth",)),
                                 (["memcopy"], ("did you mean memcpy?",))):
            with self.subTest(arguments=arguments):
                self.assert_refused(arguments, ("example", *parts))
        self.assertIn("--tx-depth has no effect", self.run_command("perf", "memcpy", "-n", "10", "-t", "4").stderr)
        self.assert_refused(["memcpy", "-s", "1000G"], ("--size",), expect=1)


class Registrations(Local):
    def test_what_a_peer_maps_over_shared_memory_has_a_cost_of_its_own_at_either_end(self):
        document = self.perf("reg", "--transport", "shm", "-s", "4M", "-n", "15", "--percentiles", "90")
        self.assertEqual((document["warnings"], document["environment"]["transport"]["path"]), ([], "shm"))
        result, = document["results"]
        self.assertEqual((result["test"], result["transport"], result["size_bytes"], result["iterations"], result["verified_by"]), ("reg", "shm", 4 << 20, 15, None))
        for figures in (result, result["deregister"]):
            self.assertEqual(set(figures["latency_ns"]), {*LATENCY, "p90"})
            self.assertGreater(figures["latency_ns"]["min"], 0)
            self.assertAlmostEqual(figures["latency_ns"]["mean"] * 15 / 1e9, figures["seconds"], delta=figures["seconds"] * 1e-6)
            self.assertAlmostEqual(figures["bytes_per_second"] * figures["seconds"], 15 * (4 << 20), delta=100)
        # Each page is come upon, huge or not: the kernel is asked for more of more.
        larger, = self.perf("reg", "--transport", "shm", "-s", "64M", "-n", "15")["results"]
        self.assertGreater(larger["used"]["client"]["page_faults_per_message"], 4 * result["used"]["client"]["page_faults_per_message"])

    def test_sizes_that_are_no_whole_extents_and_the_path_that_is_chosen(self):
        results = self.perf("reg", "--self", "-n", "5", "-s", "3M", "--perturb", "1")["results"]
        self.assertEqual([result["size_bytes"] for result in results], [(3 << 20) - 1, 3 << 20, (3 << 20) + 1])
        self.assertIn(results[0]["transport"], ("shm", "verbs"))
        result, = self.perf("reg", "-n", "5", "--transport", "shm")["results"]
        self.assertEqual(result["size_bytes"], 2 << 20)

    def test_in_every_format(self):
        lines = self.run_command("perf", "reg", "--transport", "shm", "-n", "5").stdout.splitlines()
        self.assertEqual(len(lines), 3)
        self.assertIn("t_typical[usec]", lines[0])
        self.assertRegex(lines[2], r"^   deregister: t_min \d+\.\d+, .* \[usec\]$")
        row, = csv.DictReader(io.StringIO(self.run_command("perf", "reg", "--transport", "shm", "-n", "5", "--format", "csv").stdout))
        self.assertGreater(float(row["deregister_p50_ns"]), 0)
        line = json.loads(self.run_command("perf", "reg", "--transport", "shm", "-n", "5", "--format", "ndjson").stdout)
        self.assertGreater(line["deregister"]["latency_ns"]["p50"], 0)

    def test_a_path_that_registers_nothing_says_so(self):
        for transport in ("tcp", "udp", "l2", "loopback"):
            with self.subTest(transport=transport):
                self.assert_refused(["reg", "--transport", transport], ("--transport", transport, "registers no memory", "rdma, kmod and shm", "example"))
        self.assert_refused(["reg", "--offset", "1"], ("--offset", "whole pages"))
        self.assert_refused(["reg", "--verify=crc32c"], ("--verify",))
        self.assert_refused(["reg", "somehost"], ("HOST",))

    def test_without_a_device_there_is_nothing_to_run_on(self):
        obstacle = json.loads(self.run_command("info", "--json").stdout)["rdma"]["obstacle"]
        if obstacle is None:
            self.skipTest("this machine has an RDMA device; the guest's test is for it")
        self.assert_refused(["reg", "--transport", "rdma"], (obstacle,), expect=77)


if __name__ == "__main__":
    command.main()
