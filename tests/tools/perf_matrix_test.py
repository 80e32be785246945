#!/usr/bin/env python3
"""Every test of `sluice perf` over every path: the schema, the counts, what is copied."""
import command

TESTS = [f"{verb}_{what}" for verb in ("send", "write", "read", "exchange") for what in ("lat", "bw")]
TRANSPORTS = ("shm", "tcp", "loopback", "auto")
SMALL, LARGE = 64, 300 * 1024  # below and above what rides in a control message
LATENCY = ("min", "p50", "p99", "p99_9", "max")
NUMBERS = ("size_bytes", "iterations", "bytes_per_second", "messages_per_second", "cpu_ns_per_byte",
           "copied_bytes_per_byte", "verified_bytes", "errors")


class Matrix(command.CommandTest):
    def check_result(self, result, test, transport, size, iterations):
        self.assertEqual(result["test"], test)
        self.assertEqual(result["transport"], "shm" if transport == "auto" else transport)
        self.assertEqual(result["size_bytes"], size)
        self.assertEqual(result["iterations"], iterations)
        for name in NUMBERS:
            self.assertIsInstance(result[name], (int, float), name)
        latency = result["latency_ns"]
        self.assertEqual(set(latency), {*LATENCY, "mean", "stdev"})
        values = [latency[name] for name in LATENCY]
        self.assertEqual(values, sorted(values))
        self.assertGreater(latency["min"], 0)
        self.assertLessEqual(latency["min"], latency["mean"])
        self.assertLessEqual(latency["mean"], latency["max"])
        self.assertGreater(result["bytes_per_second"], 0)
        self.assertAlmostEqual(result["bytes_per_second"], result["messages_per_second"] * size,
                               delta=result["bytes_per_second"] * 1e-6)
        self.assertEqual(result["errors"], 0)
        # Both sides check at least one whole payload.
        self.assertGreaterEqual(result["verified_bytes"], size)

    def check_copies(self, result, test, transport, size):
        """What README.md says of each path, user space and kernel, both sides."""
        copies = result["copied_bytes_per_byte"]
        if test.startswith("exchange") and transport != "tcp":
            self.assertEqual(copies, 0, "a view was copied")
        elif size == LARGE:
            self.assertEqual(copies, 2 if transport == "tcp" else 1)
        else:
            self.assertGreater(copies, 0)

    def run_all(self, transport):
        for test in TESTS:
            for size, iterations in ((SMALL, 60), (LARGE, 25)):
                with self.subTest(test=test, size=size):
                    document = self.perf(test, "--self", "--transport", transport, "-s", str(size), "-n", str(iterations), *command.depth(test, 8))
                    self.assertEqual(document["schema"], "sluice.perf/1")
                    self.assertEqual(document["warnings"], [])
                    self.assertEqual(len(document["results"]), 1)
                    result = document["results"][0]
                    self.check_result(result, test, transport, size, iterations)
                    self.check_copies(result, test, transport, size)

    def test_bandwidth_over_several_connections(self):
        for transport, path in (("shm", "shm"), ("tcp", "tcp"), ("loopback", "loopback"), ("auto", "shm")):
            for test in ("send_bw", "write_bw", "read_bw"):
                with self.subTest(test=test, transport=transport):
                    document = self.perf(test, "--self", "--transport", transport, "-s", str(LARGE), "-n", "31", "-t", "4", "-q", "3")
                    self.assertEqual(document["warnings"], [])
                    result, = document["results"]
                    self.check_result(result, test, path, LARGE, 31)
                    self.check_copies(result, test, path, LARGE)
                    self.assertEqual(result["qps"], 3)
                    self.assertEqual(len(result["bytes_by_qp"]), 3)
                    for carried in result["bytes_by_qp"]:
                        self.assertGreaterEqual(carried, 10 * LARGE)
                    self.assertGreaterEqual(sum(result["bytes_by_qp"]), 31 * LARGE)
                    self.assertGreaterEqual(result["verified_bytes"], 3 * 4 * LARGE)

    def test_every_test_over_shm(self):
        self.run_all("shm")

    def test_every_test_over_tcp(self):
        self.run_all("tcp")

    def test_every_test_within_one_process(self):
        self.run_all("loopback")

    def test_every_test_over_the_path_that_is_chosen(self):
        self.run_all("auto")

    def test_fetch_into_copies_once_over_shm(self):
        for test in ("exchange_lat", "exchange_bw"):
            for transport, copies in (("shm", 1), ("loopback", 1), ("tcp", 2)):
                with self.subTest(test=test, transport=transport):
                    document = self.perf(test, "--self", "--transport", transport, "-s", "300K", "-n", "20", "--into")
                    self.assertEqual(document["results"][0]["copied_bytes_per_byte"], copies)
                    self.assertTrue(document["results"][0]["into"])

    def test_a_damaged_byte_is_found_and_no_figure_is_printed(self):
        for transport in ("shm", "tcp", "loopback"):
            for test in TESTS:
                with self.subTest(test=test, transport=transport):
                    path = self.file("result.json")
                    done = self.run_command("perf", test, "--self", "--transport", transport, "-s", "64K", "-n", "20",
                                            "--corrupt", "--json", path, expect=4)
                    self.assertIn("not sent", done.stderr)
                    rows = [line for line in done.stdout.splitlines() if "#" not in line]
                    self.assertEqual(rows, [])
                    with open(path, encoding="utf-8") as file:
                        document = command.json.load(file)
                    self.assertEqual(document["results"], [])
                    self.assertEqual(len(document["warnings"]), 1)

    def test_a_checksum_in_each_message_verifies_it_where_that_is_asked_for(self):
        for transport in ("shm", "tcp", "loopback"):
            for test in TESTS:
                with self.subTest(test=test, transport=transport):
                    arguments = (test, "--self", "--transport", transport, "-s", "4097", "-n", "20")
                    plain, summed = (self.perf(*arguments, verify)["results"][0] for verify in ("--verify", "--verify=crc32c"))
                    self.assertEqual((plain["verified_by"], summed["verified_by"]), ("bytes", "crc32c"))
                    self.assertEqual((summed["verified_bytes"], summed["errors"]), (plain["verified_bytes"], 0))
                    self.assertGreater(summed["verified_bytes"], 4096)

    def test_a_damaged_byte_is_found_by_the_checksum_of_its_message(self):
        for transport in ("shm", "tcp"):
            for test in TESTS:
                with self.subTest(test=test, transport=transport):
                    done = self.run_command("perf", test, "--self", "--transport", transport, "-s", "4K", "-n", "20",
                                            "--verify=crc32c", "--corrupt", expect=4)
                    self.assertIn("messages whose CRC32C is wrong", done.stderr)

    def test_what_is_too_short_for_a_checksum_is_compared_and_said(self):
        for test, size in (("send_lat", "7"), ("write_lat", "15")):
            with self.subTest(test=test):
                document = self.perf(test, "--self", "--transport", "shm", "-s", size, "-n", "20", "--verify=crc32c")
                self.assertEqual(document["results"][0]["verified_by"], "bytes")
                self.assertIn("no room for a checksum", document["warnings"][0])
        document = self.perf("send_lat", "--self", "--transport", "shm", "-s", "8", "-n", "20", "--verify=crc32c")
        self.assertEqual((document["results"][0]["verified_by"], document["warnings"]), ("crc32c", []))

    def test_first_hand_overs_of_extents_are_apart(self):
        document = self.perf("exchange_lat", "--self", "--transport", "shm", "-s", "64", "-n", "50")
        first = document["results"][0]["first_handover_ns"]
        self.assertGreaterEqual(len(first), 2)
        self.assertTrue(all(value > 0 for value in first))


if __name__ == "__main__":
    command.main()
