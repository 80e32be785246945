#!/usr/bin/env python3
"""`sluice perf` for those who know perftest: its flags, its JSON, its one number."""
import json
import os
import re

import command

# Of `ib_send_bw --help`, perftest 4.5; value or none. Not -h.
FLAGS = {
    "-a": None, "-b": None, "-c": "RC", "-d": "rxe0", "-D": "0.1", "-e": None, "-X": "1", "-f": "1", "-F": None, "-g": None, "-i": "1", "-I": "0", "-l": "2",
    "--recv_post_list": "2", "-L": "64", "-m": "1024", "-M": "ff0e::1", "-n": "5", "-N": None, "-O": None, "-q": "1", "-Q": "1", "-r": "512", "-R": None, "-s": "64",
    "-S": "0", "-t": "8", "-T": "0", "-u": "14", "-w": "0", "-W": "counters/port_xmit_data", "-x": "1", "-y": "0", "-z": None,
    "--cpu_util": None, "--dlid": "1", "--dont_xchg_versions": None, "--force-link": "Ethernet", "--inline_recv": "0", "--use-srq": None, "--ipv6": None,
    "--source_ip": "127.0.0.1", "--mmap": "/dev/null", "--mmap-offset": "0", "--mr_per_qp": None, "--odp": None, "--use_old_post_send": None, "--perform_warm_up": None,
    "--pkey_index": "0", "--report-both": None, "--report_gbits": None, "--report-per-port": None, "--reversed": None, "--run_infinitely": None, "--retry_count": "7",
    "--tclass": "0", "--use_hugepages": None, "--wait_destroy": "0", "--disable_pcie_relaxed": None, "--burst_size": "1", "--typical_pkt_size": "64", "--rate_limit": "1",
    "--rate_units": "g", "--rate_limit_type": "SW", "--output": "bandwidth",
}
# What they ask for is something else than what would be measured.
REFUSED = {"-g", "-M", "-O", "--mmap", "--mmap-offset", "--report-per-port", "--reversed", "--run_infinitely", "--burst_size", "--typical_pkt_size", "--rate_limit",
           "--rate_units", "--rate_limit_type"}


class Flags(command.CommandTest):
    def test_every_flag_of_ib_send_bw_is_taken_told_or_refused_with_the_reason(self):
        # Nothing listens there: what is checked is over before.
        for flag, value in FLAGS.items():
            with self.subTest(flag=flag):
                arguments = ["perf", "send_bw", "tcp://127.0.0.1:1", "--format", "perftest", flag] + ([value] if value else [])
                done = self.run_command(*arguments, expect=2 if flag in REFUSED else 1)
                self.assertNotIn("is no flag", done.stderr)
                if flag in REFUSED:
                    self.assertEqual(done.stdout, "")
                    self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_a_depth_that_a_latency_test_has_not_is_told(self):
        done = self.run_command("perf", "send_lat", "--self", "--transport", "shm", "-n", "10", "-t", "16")
        self.assertIn("--tx-depth has no effect", done.stderr)
        self.run_command("perf", "send_lat", "--self", "--transport", "shm", "-n", "10", "-t", "16", "--strict", expect=2)


class PostLists(command.CommandTest):
    def test_are_posted_verified_and_said_in_one_direction_and_in_both(self):
        for test, flags in (("send_bw", ()), ("write_bw", ("-q", "2")), ("read_bw", ()), ("send_bw", ("-b",))):
            with self.subTest(test=test, flags=flags):
                [result] = self.perf(test, "--self", "--transport", "shm", "-n", "203", "-t", "32", "-l", "8", *flags)["results"]
                self.assertEqual(result["post_list"], 8)
                self.assertEqual(result["iterations"], 203)
                self.assertEqual(result["errors"], 0)
                self.assertGreater(result["verified_bytes"], 0)
        done = self.run_command("perf", "send_bw", "--self", "--transport", "shm", "-n", "20", "-l", "4", "--format", "perftest", "--strict")
        self.assertIn(" Post List       : 4", done.stdout.splitlines())

    def test_longer_than_the_window_or_without_one_are_refused(self):
        for arguments in (("send_bw", "-t", "4", "-l", "5"), ("send_lat", "-l", "2"), ("exchange_bw", "-l", "2"), ("send_bw", "-l", "0")):
            with self.subTest(arguments=arguments):
                done = self.run_command("perf", arguments[0], "--self", *arguments[1:], expect=2)
                self.assertIn("--post_list", done.stderr)


class OutJson(command.CommandTest):
    def written(self, *arguments):
        path = self.file("perftest.json")
        self.run_command("perf", *arguments, "--self", "--transport", "shm", "--out_json_file", path)
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def test_has_the_keys_of_perftest_and_the_figures_of_the_table(self):
        found = self.written("write_bw", "-n", "20", "-s", "4096")
        self.assertEqual(found["test_info"]["test"], "RDMA_Write BW Test")
        self.assertEqual(found["test_info"]["Device"], "shm")
        self.assertEqual(set(found["results"]), {"MsgSize", "n_iterations", "BW_peak", "BW_average", "MsgRate"})
        self.assertEqual((found["results"]["MsgSize"], found["results"]["n_iterations"]), (4096, 20))
        self.assertAlmostEqual(found["results"]["BW_average"] * 2**20 / 4096 / 1e6, found["results"]["MsgRate"])
        found = self.written("send_lat", "-n", "20")["results"]
        self.assertEqual(set(found), {"MsgSize", "n_iterations", "t_min", "t_max", "t_typical", "t_avg", "t_stdev", "percentile_99", "percentile_99.9"})
        self.assertTrue(0 < found["t_min"] <= found["t_typical"] <= found["percentile_99"] <= found["t_max"])
        self.assertEqual(set(self.written("send_lat", "-D", "0.05")["results"]), {"MsgSize", "n_iterations", "t_avg", "tps_average"})

    def test_has_every_size(self):
        found = self.written("send_lat", "-a", "-n", "5")["results"]
        self.assertEqual([each["MsgSize"] for each in found], [2 ** exponent for exponent in range(1, 24)])

    def test_is_in_the_working_directory_by_default(self):
        self.expected_files.add("perftest_out.json")
        self.run_command("perf", "send_lat", "--self", "--transport", "shm", "-n", "5", "--out_json",
                         within=("sh", "-c", 'cd "$0" && exec "$@"', self.folder))
        self.assertTrue(os.path.getsize(os.path.join(self.folder, "perftest_out.json")) > 0)

    def test_that_cannot_be_written_is_refused_before_the_run(self):
        done = self.run_command("perf", "send_lat", "--self", "--out_json_file", "/nowhere/x", expect=2)
        self.assertIn("/nowhere/x", done.stderr)
        for arguments in (("send_lat",), ("exchange_bw", "--self")):
            self.assertIn("--out_json", self.run_command("perf", *arguments, "--out_json_file", "/dev/null", expect=2).stderr)


class OneNumber(command.CommandTest):
    def test_of_each_size_is_all_there_is(self):
        for test, output in (("write_bw", "bandwidth"), ("send_bw", "message_rate"), ("send_lat", "latency")):
            with self.subTest(output=output):
                done = self.run_command("perf", test, "--self", "--transport", "shm", "-n", "20", "--format", "perftest", "--output", output)
                self.assertTrue(re.fullmatch(r"\d+\.\d{6}\n", done.stdout), done.stdout)
                self.assertGreater(float(done.stdout), 0)

    def test_that_a_test_or_a_format_has_not_is_refused(self):
        for arguments in (("send_lat", "--format", "perftest", "--output", "bandwidth"), ("send_bw", "--format", "perftest", "--output", "latency"),
                          ("send_bw", "--output", "bandwidth"), ("send_bw", "--format", "perftest", "--output", "speed")):
            with self.subTest(arguments=arguments):
                self.assertIn("--output", self.run_command("perf", arguments[0], "--self", *arguments[1:], expect=2).stderr)


if __name__ == "__main__":
    command.main()
