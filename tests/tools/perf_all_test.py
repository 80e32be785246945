#!/usr/bin/env python3
"""`sluice perf all`: every test that the path has, in turn, in one document."""
import csv
import io
import json

import command

TWO_ENDS = [f"{verb}_{what}" for verb in ("send", "write", "read", "exchange", "rpc") for what in ("lat", "bw")]


def tests_of(document):
    return [result["test"] for result in document["results"]]


class All(command.CommandTest):
    def test_every_test_of_a_path_is_in_one_document(self):
        for transport, local in (("shm", ["reg", "memcpy"]), ("tcp", ["memcpy"]), ("auto", ["reg", "memcpy"]), ("loopback", ["memcpy"])):
            with self.subTest(transport=transport):
                document = self.perf("all", "--self", "--transport", transport, "-s", "64", "-n", "20")
                self.assertEqual((document["schema"], document["warnings"], document["batch"]["file"]), ("sluice.perf/1", [], "all"))
                self.assertEqual(tests_of(document), TWO_ENDS + local)
                self.assertEqual([(line["line"], line["command"], line["exit_code"]) for line in document["batch"]["lines"]],
                                 [(number, test, 0) for number, test in enumerate(TWO_ENDS + local, 1)])
                for result in document["results"]:
                    self.assertEqual((result["size_bytes"], result["iterations"], result["errors"]), (64, 20, 0))

    def test_what_only_some_tests_have_is_told_to_these(self):
        document = self.perf("all", "--self", "--transport", "shm", "-s", "4K", "-n", "24", "-t", "6", "-q", "2", "-l", "2", "-b", "--into", "--reply-size", "100",
                             "--verify=crc32c", "--perturb", "1us", "--seed", "7", "--offset", "1", "--under-load", "1K", "--cold-cache", "-A", "CMP_AND_SWAP")
        by_test = {result["test"]: result for result in document["results"]}
        self.assertEqual({test for test, result in by_test.items() if result.get("bidirectional")}, {"send_bw", "write_bw", "read_bw"})
        self.assertEqual({test for test, result in by_test.items() if result["qps"] == 2}, {"send_bw", "write_bw", "read_bw", "rpc_bw"})
        self.assertEqual({test for test, result in by_test.items() if result.get("into")}, {"exchange_lat", "exchange_bw"})
        self.assertEqual({test for test, result in by_test.items() if result.get("reply_size_bytes") == 100}, {"rpc_lat", "rpc_bw"})
        self.assertEqual({test for test, result in by_test.items() if "under_load" in result and "pauses" in result}, {test for test in TWO_ENDS if test.endswith("_lat")})
        self.assertEqual({test for test, result in by_test.items() if result.get("cold_cache")}, {"send_lat", "write_lat", "exchange_lat"})
        self.assertEqual(by_test["memcpy"]["buffers"]["client"]["source_at"], 1)

    def test_a_table_and_csv_name_the_tests(self):
        text = self.run_command("perf", "all", "--self", "--transport", "tcp", "-n", "10").stdout.splitlines()
        self.assertEqual([line for line in text if line.startswith("# ")], ["# " + test for test in TWO_ENDS + ["memcpy"]])
        rows = list(csv.DictReader(io.StringIO(self.run_command("perf", "all", "--self", "--transport", "shm", "-n", "10", "--format", "csv", "--percentiles", "90").stdout)))
        self.assertEqual([row["test"] for row in rows], TWO_ENDS + ["reg", "memcpy"])
        for row in rows:
            self.assertNotIn(None, row)  # more fields than the header has
            self.assertNotIn(None, row.values())
        lines = [json.loads(line) for line in self.run_command("perf", "all", "--self", "--transport", "shm", "-n", "10", "--format", "ndjson", "--title", "x").stdout.splitlines()]
        self.assertEqual([(line["test"], line["title"]) for line in lines], [(test, "x") for test in TWO_ENDS + ["reg", "memcpy"]])
        self.assertEqual(len(json.loads(self.run_command("perf", "all", "--self", "-n", "10", "--json", "-").stdout)["results"]), 12)

    def test_a_server_of_all_follows_its_client_to_the_last_test(self):
        server = self.start("perf", "all", "--transport", "tcp", "--bind", "127.0.0.1", "-p", "0")
        address = server.stderr.readline().split()[-1]
        document = self.perf("all", address, "-s", "64", "-n", "20", "-q", "2", "-t", "4")
        self.assertEqual(tests_of(document), TWO_ENDS + ["memcpy"] if document["results"][-2]["test"] != "reg" else TWO_ENDS + ["reg", "memcpy"])
        _, errors = server.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(server.returncode, 0, errors)
        # It was not known before whether the path has atomics.
        codes = {line["command"]: line["exit_code"] for line in document["batch"]["lines"]}
        self.assertEqual({test for test, code in codes.items() if code == 77}, {"atomic_lat", "atomic_bw"})
        self.assertEqual(set(codes.values()), {0, 77})

    def test_a_server_of_all_takes_a_client_of_one_test(self):
        server = self.start("perf", "all", "--transport", "tcp", "--bind", "127.0.0.1", "-p", "0")
        address = server.stderr.readline().split()[-1]
        self.perf("read_bw", address, "-s", "4K", "-n", "20", "-t", "4")
        _, errors = server.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(server.returncode, 0, errors)

    def test_damage_in_any_of_them_ends_the_whole_and_its_server_with_4(self):
        server = self.start("perf", "all", "--transport", "tcp", "--bind", "127.0.0.1", "-p", "0")
        address = server.stderr.readline().split()[-1]
        document = self.perf("all", address, "--transport", "tcp", "-s", "4K", "-n", "20", "--corrupt", expect=4)
        self.assertEqual(document["results"], [])
        self.assertEqual({line["exit_code"] for line in document["batch"]["lines"]}, {4})
        server.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(server.returncode, 4)

    def test_results_of_all_are_a_baseline_of_all(self):
        old = self.file("old.json")
        load = ("perf", "all", "--self", "--transport", "shm", "-s", "64", "-n", "20")
        self.run_command(*load, "--json", old)
        done = self.run_command(*load, "--baseline", old)
        self.assertEqual(done.stderr.count("in the baseline"), 12)

    def test_what_is_of_one_test_is_refused(self):
        batch = self.file("batch")
        with open(batch, "w", encoding="utf-8") as file:
            file.write("all --self\n")
        for arguments, parts in ((["all", "--self", "--plot", "-"], ("--plot", "many tests")),
                                 (["all", "--self", "--hist", f"{self.folder}/latencies"], ("--hist", "many tests")),
                                 (["all", "--self", "--format", "perftest"], ("--format",)),
                                 (["all", "--self", "--format", "csv", "--confidence", "5"], ("--confidence", "same columns")),
                                 (["all", "--self", "-s", "0"], ("--size",)),
                                 (["all", "--self", "--bogus"], ("--bogus",)),
                                 (["all", "somehost", "--self"], ("--self", "somehost")),
                                 (["--batch", batch], ("line 1", "all", "a line"[:1])),
                                 (["al", "--self"], ("did you mean all?",))):
            with self.subTest(arguments=arguments):
                done = self.run_command("perf", *arguments, expect=2)
                self.assertEqual((done.stdout, len(done.stderr.splitlines())), ("", 1), done.stderr)
                for part in ("example", *parts):
                    self.assertIn(part, done.stderr)

    def test_names_from_elsewhere_are_told_what_they_are_here(self):
        for name, parts in (("stream_bw", ("no stream of bytes", "sluice perf send_bw --self")), ("stream_lat", ("sluice perf send_lat --self",)),
                            ("underload_lat", ("send_lat --self --under-load 64K",))):
            done = self.run_command("perf", name, "--self", expect=2)
            for part in ("TEST", name, *parts):
                self.assertIn(part, done.stderr)


if __name__ == "__main__":
    command.main()
