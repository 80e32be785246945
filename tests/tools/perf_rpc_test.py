#!/usr/bin/env python3
"""`sluice perf rpc_lat` and `rpc_bw`: calls, whose answers have a size of their own."""
import csv
import io
import json
import os
import pathlib

import command

TRANSPORTS = ("shm", "tcp", "udp", "loopback")
LARGE = 300 * 1024


class Calls(command.CommandTest):
    def check(self, result, test, size, reply, iterations):
        self.assertEqual((result["test"], result["size_bytes"], result["reply_size_bytes"], result["iterations"]), (test, size, reply, iterations))
        self.assertEqual(result["errors"], 0)
        self.assertGreaterEqual(result["verified_bytes"], size + reply)
        # A message is a call, and its bytes are those of both directions.
        self.assertAlmostEqual(result["messages_per_second"] * result["seconds"], iterations, delta=1e-6 * iterations)
        self.assertAlmostEqual(result["bytes_per_second"], result["messages_per_second"] * (size + reply), delta=1 + result["bytes_per_second"] * 1e-6)
        values = [result["latency_ns"][name] for name in ("min", "p50", "p99", "p99_9", "max")]
        self.assertEqual(values, sorted(values))
        self.assertGreater(values[0], 0)

    def test_requests_and_answers_of_any_two_sizes_cross_every_path(self):
        for transport in TRANSPORTS:
            for size, reply in ((64, 64), (64, LARGE), (LARGE, 64), (0, 4096), (4096, 0), (0, 0), (LARGE, LARGE)):
                for test in ("rpc_lat", "rpc_bw"):
                    with self.subTest(transport=transport, test=test, size=size, reply=reply):
                        document = self.perf(test, "--self", "--transport", transport, "-s", str(size), "--reply-size", str(reply), "-n", "40", *command.depth(test, 8))
                        self.assertEqual(document["warnings"], [])
                        result, = document["results"]
                        self.check(result, test, size, reply, 40)

    def test_an_answer_is_as_long_as_its_request_where_nothing_else_is_said(self):
        results = self.perf("rpc_bw", "--self", "--transport", "shm", "-s", "64", "--perturb", "3", "-n", "40")["results"]
        self.assertEqual([(result["size_bytes"], result["reply_size_bytes"]) for result in results], [(61, 61), (64, 64), (67, 67)])

    def test_a_latency_is_the_whole_round_trip(self):
        result, = self.perf("rpc_lat", "--self", "--transport", "shm", "-s", "64", "-n", "20000")["results"]
        # The samples follow one another without a gap: together they are the time that all of it took.
        together = result["latency_ns"]["mean"] * result["iterations"] / 1e9
        # The rate of the processor's counter, which the samples are taken by, is measured.
        self.assertLessEqual(together, 1.01 * result["seconds"])
        self.assertGreater(together, 0.6 * result["seconds"])

    def test_calls_go_over_several_connections_in_lists_and_with_pauses(self):
        result, = self.perf("rpc_bw", "--self", "--transport", "tcp", "-s", "4K", "--reply-size", "64", "-n", "61", "-t", "4", "-q", "3", "-l", "2")["results"]
        self.check(result, "rpc_bw", 4096, 64, 61)
        self.assertEqual((len(result["bytes_by_qp"]), result["post_list"]), (3, 2))
        self.assertGreaterEqual(sum(result["bytes_by_qp"]), 61 * (4096 + 64))
        result, = self.perf("rpc_lat", "--self", "--transport", "shm", "-s", "64", "-n", "50", "--perturb", "20us")["results"]
        self.assertGreater(result["pauses"]["seconds"], 0)

    def test_more_calls_under_way_than_operations_fit_are_made_all_the_same(self):
        # Each is two operations at either end, of which a connection has room for 4096.
        for transport in ("shm", "tcp"):
            result, = self.perf("rpc_bw", "--self", "--transport", transport, "-s", "8", "-n", "12000", "-t", "4000")["results"]
            self.check(result, "rpc_bw", 8, 8, 12000)

    def test_latencies_under_load_and_in_time(self):
        result, = self.perf("rpc_lat", "--self", "--transport", "tcp", "-s", "64", "-n", "50", "--under-load", "4K")["results"]
        self.assertGreater(result["under_load"]["latency_ns"]["p50"], 0)
        result, = self.perf("rpc_bw", "--self", "--transport", "shm", "-s", "64", "--reply-size", "1K", "-D", "0.3", "--interval", "0.1")["results"]
        self.assertGreaterEqual(result["seconds"], 0.3)
        self.assertEqual(sum(part["iterations"] for part in result["intervals"]), result["iterations"])

    def test_a_damaged_byte_is_found(self):
        for transport in ("shm", "tcp"):
            for test in ("rpc_lat", "rpc_bw"):
                # Of what has no bytes none can be damaged: it must be the other one.
                for size, reply in (("4K", "4K"), ("0", "4K"), ("4K", "0")):
                    for verify in ("--verify", "--verify=crc32c"):
                        with self.subTest(transport=transport, test=test, size=size, reply=reply, verify=verify):
                            done = self.run_command("perf", test, "--self", "--transport", transport, "-s", size, "--reply-size", reply, "-n", "20", "--corrupt", verify, expect=4)
                            self.assertEqual([line for line in done.stdout.splitlines() if "#" not in line], [])

    def test_checksums_verify_both_directions_and_say_where_there_is_no_room(self):
        document = self.perf("rpc_lat", "--self", "--transport", "shm", "-s", "4097", "--reply-size", "100", "-n", "20", "--verify=crc32c")
        self.assertEqual((document["results"][0]["verified_by"], document["warnings"]), ("crc32c", []))
        document = self.perf("rpc_lat", "--self", "--transport", "shm", "-s", "4097", "--reply-size", "5", "-n", "20", "--verify=crc32c")
        self.assertIn("5 B have no room for a checksum", document["warnings"][0])

    def test_a_server_follows_its_client(self):
        server = self.start("perf", "rpc_lat", "--transport", "tcp", "--bind", "127.0.0.1", "-p", "0")
        address = server.stderr.readline().split()[-1]
        result, = self.perf("rpc_lat", address, "-s", "64", "--reply-size", "3000", "-n", "30")["results"]
        self.check(result, "rpc_lat", 64, 3000, 30)
        _, errors = server.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(server.returncode, 0, errors)

    def test_a_link_by_its_name_runs_it_and_perftest_has_none(self):
        os.symlink(command.BINARY, self.file("sluice_rpc_lat"))
        os.symlink(command.BINARY, self.file("ib_rpc_lat"))
        for name, expect in (("sluice_rpc_lat", 0), ("ib_rpc_lat", 2)):
            done = command.subprocess.run([os.path.join(self.folder, name), "--self", "-n", "10"], capture_output=True, text=True, stdin=command.subprocess.DEVNULL,
                                          timeout=command.LIMIT_SECONDS, env=command.environment(), check=False)
            self.assertEqual(done.returncode, expect, done.stderr)


class Formats(command.CommandTest):
    LOAD = ("perf", "rpc_bw", "--self", "--transport", "shm", "-s", "64", "-n", "40", "-t", "4")

    def test_the_answers_size_is_in_every_format(self):
        rows = list(csv.DictReader(io.StringIO(self.run_command(*self.LOAD, "--reply-size", "128", "--format", "csv").stdout)))
        self.assertEqual([(row["size_bytes"], row["reply_size_bytes"]) for row in rows], [("64", "128")])
        self.assertNotIn("reply_size", self.run_command(*self.LOAD, "--format", "csv").stdout)
        self.assertIn('reply_size_bytes="128"', self.run_command(*self.LOAD, "--reply-size", "128", "--format", "openmetrics").stdout)
        lines = self.run_command(*self.LOAD, "--reply-size", "128").stdout.splitlines()
        self.assertEqual(lines[2], "   each answered with 128 bytes")

    def test_a_baseline_is_of_answers_of_the_same_size(self):
        old = self.file("old.json")
        self.run_command(*self.LOAD, "--reply-size", "128", "--json", old)
        done = self.run_command(*self.LOAD, "--reply-size", "128", "--baseline", old)
        self.assertIn("in the baseline", done.stderr)
        done = self.run_command(*self.LOAD, "--baseline", old, expect=2)
        self.assertIn("has no rpc_bw of 64 bytes answered with 64, but rpc_bw of 64 bytes answered with 128", done.stderr)

    def test_in_a_batch_it_is_of_its_line(self):
        batch = self.file("batch")
        pathlib.Path(batch).write_text("rpc_lat --self --transport shm -n 20 --reply-size 32\nrpc_bw --self --transport shm -n 20\n", encoding="utf-8")
        document = json.loads(self.run_command("perf", "--batch", batch, "--format", "json").stdout)
        self.assertEqual([result["reply_size_bytes"] for result in document["results"]], [32, 65536])
        self.assertIn("--reply-size", self.run_command("perf", "--batch", batch, "--format", "csv", expect=2).stderr)

    def test_what_it_is_not_for_is_refused_before_anything_is_opened(self):
        for arguments, parts in ((["send_lat", "--self", "--reply-size", "64"], ("--reply-size", "rpc_lat")),
                                 (["rpc_lat", "--reply-size", "64"], ("--reply-size", "at a server")),
                                 (["rpc_lat", "--self", "--reply-size", "12x"], ("--reply-size", "12x")),
                                 (["rpc_lat", "--self", "--reply-size=-1"], ("--reply-size", "-1")),
                                 (["rpc_lat", "--self", "--format", "perftest"], ("--format", "rpc_lat")),
                                 (["rpc_bw", "--self", "--out_json"], ("--out_json", "rpc_bw")),
                                 (["rpc_bw", "--self", "-b"], ("--bidirectional", "rpc_bw")),
                                 (["rpc_lat", "--self", "-q", "2"], ("--qps", "rpc_bw")),
                                 (["rpc_lat", "--self", "--cold-cache"], ("--cold-cache", "rpc_lat")),
                                 (["rcp_lat", "--self"], ("TEST", "did you mean rpc_lat?"))):
            with self.subTest(arguments=arguments):
                done = self.run_command("perf", *arguments, expect=2)
                self.assertEqual((done.stdout, len(done.stderr.splitlines())), ("", 1), done.stderr)
                for part in ("example", *parts):
                    self.assertIn(part, done.stderr)


if __name__ == "__main__":
    command.main()
