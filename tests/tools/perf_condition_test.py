#!/usr/bin/env python3
"""`sluice perf` with buffers off alignment or cold, with pauses between messages, and with sizes that are no powers of two."""
import platform

import command

SMALL, LARGE = 64, 300 * 1024
EVICTS = platform.machine() in ("x86_64", "aarch64")
VERBS = ("send", "write", "read", "exchange")


class Offsets(command.CommandTest):
    def test_buffers_of_both_ends_are_where_they_were_asked_for_and_every_byte_arrives(self):
        for transport in ("shm", "tcp", "loopback"):
            for test in [f"{verb}_{what}" for verb in VERBS for what in ("lat", "bw")]:
                into = ("--into",) if test.startswith("exchange") else ()
                for size in (SMALL, LARGE):
                    with self.subTest(transport=transport, test=test, size=size):
                        result, = self.perf(test, "--self", "--transport", transport, "-s", str(size), "-n", "20", "-t", "4", "--offset", "3,4093", *into)["results"]
                        self.assertEqual(result["errors"], 0)
                        self.assertGreaterEqual(result["verified_bytes"], size)
                        ends = result["buffers"]
                        # Who only sends has no destination; both ends together have both.
                        self.assertEqual({end.get("source_at", 3) for end in ends.values()}, {3})
                        self.assertEqual({end.get("destination_at", 4093) for end in ends.values()}, {4093})
                        self.assertTrue(any("source_at" in end for end in ends.values()), ends)
                        self.assertTrue(any("destination_at" in end for end in ends.values()), ends)

    def test_one_number_is_of_both(self):
        result, = self.perf("send_lat", "--self", "--transport", "shm", "-n", "20", "--offset", "1")["results"]
        self.assertEqual(result["buffers"], {end: {"source_at": 1, "destination_at": 1} for end in ("client", "server")})
        self.assertFalse(result["cold_cache"])

    def test_both_directions_and_several_connections_keep_to_it(self):
        result, = self.perf("send_bw", "--self", "--transport", "tcp", "-s", "4K", "-n", "60", "-b", "-q", "3", "--offset", "5,6")["results"]
        self.assertEqual(result["buffers"], {end: {"source_at": 5, "destination_at": 6} for end in ("client", "server")})
        self.assertEqual(result["errors"], 0)

    def test_a_destination_that_is_not_ours_is_told_and_refused_under_strict(self):
        done = self.run_command("perf", "exchange_lat", "--self", "--transport", "shm", "-n", "20", "--offset", "1,2")
        self.assertEqual(done.stderr.splitlines(), ["sluice perf: --offset has no effect: a fetch without --into has no destination of ours: the source's counts alone"])
        self.run_command("perf", "exchange_lat", "--self", "--transport", "shm", "-n", "20", "--offset", "1,2", "--strict", expect=2)
        self.run_command("perf", "exchange_lat", "--self", "--transport", "shm", "-n", "20", "--offset", "1", "--strict")

    def test_a_damaged_byte_is_found_there_too(self):
        for test in ("send_lat", "write_bw", "read_lat"):
            self.run_command("perf", test, "--self", "--transport", "shm", "-s", "4K", "-n", "20", "--offset", "7", "--corrupt", expect=4)


class Cold(command.CommandTest):
    def test_both_ends_evict_what_they_send_and_receive_with_every_message(self):
        if not EVICTS:
            self.skipTest("this processor has no instruction for it that a program may use")
        for transport in ("shm", "tcp", "loopback"):
            for test, into, buffers in (("send_lat", (), 2), ("write_lat", (), 2), ("exchange_lat", (), 1), ("exchange_lat", ("--into",), 2)):
                for size in (SMALL, LARGE):
                    with self.subTest(transport=transport, test=test, into=into, size=size):
                        result, = self.perf(test, "--self", "--transport", transport, "-s", str(size), "-n", "40", "--cold-cache", "--strict", *into)["results"]
                        self.assertTrue(result["cold_cache"])
                        self.assertEqual(result["errors"], 0)
                        for end in ("client", "server"):
                            # All but a round's first.
                            self.assertGreaterEqual(result["buffers"][end]["evicted_bytes"], 39 * buffers * size)
        warm, = self.perf("send_lat", "--self", "--transport", "shm", "-n", "40")["results"]
        self.assertNotIn("buffers", warm)

    def test_a_damaged_byte_is_found_there_too(self):
        for test in ("send_lat", "write_lat", "exchange_lat"):
            self.run_command("perf", test, "--self", "--transport", "tcp", "-s", "4K", "-n", "20", "--cold-cache", "--corrupt", expect=4)


class Perturbed(command.CommandTest):
    def test_pauses_are_those_of_the_seed_and_in_no_sample(self):
        for transport, test in (("shm", "send_lat"), ("tcp", "write_lat"), ("shm", "read_lat"), ("loopback", "exchange_lat")):
            with self.subTest(transport=transport, test=test):
                load = (test, "--self", "--transport", transport, "-n", "300", "--warmup", "0", "--perturb", "1ms", "--seed")
                one, = self.perf(*load, "7")["results"]
                same, = self.perf(*load, "7")["results"]
                other, = self.perf(*load, "8")["results"]
                self.assertEqual(one["pauses"], same["pauses"])
                self.assertNotEqual(one["pauses"]["seconds"], other["pauses"]["seconds"])
                self.assertEqual((one["pauses"]["most_ns"], one["pauses"]["seed"]), (1_000_000, 7))
                # Half a millisecond each, give or take.
                self.assertGreater(one["pauses"]["seconds"], 0.1)
                self.assertLess(one["pauses"]["seconds"], 0.2)
                self.assertGreaterEqual(one["seconds"], one["pauses"]["seconds"])
                # The time of all samples, there and back, is what is left, at most.
                ways = 1 if test == "read_lat" else 2
                samples = one["latency_ns"]["mean"] * ways * 300 / 1e9
                self.assertLessEqual(samples, (one["seconds"] - one["pauses"]["seconds"]) * 1.01)

    def test_a_seed_is_drawn_and_said_where_none_is_given(self):
        seeds = {self.perf("send_lat", "--self", "--transport", "shm", "-n", "5", "--perturb", "1us")["results"][0]["pauses"]["seed"] for _ in range(2)}
        self.assertEqual(len(seeds), 2)

    def test_sizes_have_neighbours(self):
        def sizes(*arguments):
            return [result["size_bytes"] for result in self.perf("send_bw", "--self", "--transport", "shm", "-n", "5", *arguments)["results"]]
        self.assertEqual(sizes("-s", "64", "--perturb", "3"), [61, 64, 67])
        self.assertEqual(sizes("-s", "3", "--perturb", "3"), [3, 6])
        every = sizes("-a", "--perturb", "1")
        self.assertEqual(every[:6], [1, 2, 3, 4, 5, 7])
        self.assertEqual(every[-3:], [2 ** 23 - 1, 2 ** 23, 2 ** 23 + 1])

    def test_both_at_once(self):
        results = self.perf("send_lat", "--self", "--transport", "shm", "-s", "64", "-n", "5", "--perturb", "3,20us")["results"]
        self.assertEqual([(result["size_bytes"], result["pauses"]["most_ns"]) for result in results], [(61, 20000), (64, 20000), (67, 20000)])


class Refusals(command.CommandTest):
    def test_by_default_no_more_fetches_are_under_way_than_a_path_has_room_for(self):
        [result] = self.perf("exchange_bw", "--self", "--transport", "udp", "-s", "256K", "-n", "300", "--into")["results"]
        self.assertEqual(result["iterations"], 300)

    def test_the_steps_of_a_subscription_are_taken_where_that_is_asked_for(self):
        for depth in ("1", "8", "32"):
            [result] = self.perf(
                "exchange_bw", "--self", "--transport", "shm", "-s", "4K", "-n", "300", "-t", depth,
                "--subscribe")["results"]
            self.assertEqual(
                (result["subscribed"], result["errors"], result["iterations"]), (True, 0, 300))
            self.assertGreater(result["verified_bytes"], 0)
        done = self.run_command(
            "perf", "exchange_bw", "--self", "--transport", "shm", "-n", "100", "--subscribe",
            "--corrupt", expect=4)
        self.assertIn("bytes arrived that were not sent", done.stderr)

    def test_whoever_fetched_reads_it_where_that_is_asked_for(self):
        for test, flags in (("exchange_bw", ("--into",)), ("exchange_bw", ()), ("exchange_lat", ())):
            with self.subTest(test=test, flags=flags):
                [result] = self.perf(test, "--self", "--transport", "shm", "-s", "100001", "-n", "20", "--consume", *flags)["results"]
                self.assertTrue(result["consumed"])
        [result] = self.perf("exchange_bw", "--self", "--transport", "shm", "-s", "4K", "-n", "20")["results"]
        self.assertFalse(result["consumed"])
        self.assertIn("--consume", self.run_command("perf", "send_bw", "--self", "--consume", expect=2).stderr)

    def test_of_each_page_a_byte_is_read_where_that_is_asked_for(self):
        for test in ("exchange_bw", "exchange_lat"):
            for spelled, stride in (("--consume=page", 4096), ("--consume", 64)):
                with self.subTest(test=test, flag=spelled):
                    [result] = self.perf(test, "--self", "--transport", "shm", "-s", "100001", "-n", "20", spelled)["results"]
                    self.assertEqual((result["consumed"], result["consumed_stride_bytes"]), (True, stride))
        self.assertIn("page", self.run_command("perf", "exchange_lat", "--self", "--consume=pages", expect=2).stderr)

    def test_as_many_tensors_are_published_in_turn_as_were_asked_for(self):
        for flags, tensors in (((), 8), (("--tensors", "2"), 2), (("--tensors", "3"), 3)):
            [result] = self.perf("exchange_lat", "--self", "--transport", "shm", "-s", "64", "-n", "50", *flags)["results"]
            self.assertEqual((result["tensors"], result["errors"]), (tensors, 0))
        for refused in (("exchange_lat", "--tensors", "1"), ("exchange_lat", "--tensors", "9"), ("exchange_bw", "--tensors", "3")):
            self.assertIn("--tensors", self.run_command("perf", refused[0], "--self", *refused[1:], expect=2).stderr)

    def test_operations_have_a_deadline_and_a_completion_where_that_is_asked_for(self):
        for test in ("send_lat", "exchange_lat"):
            for flags in ((), ("--default-options",)):
                with self.subTest(test=test, flags=flags):
                    [result] = self.perf(test, "--self", "--transport", "shm", "-s", "64", "-n", "20", *flags)["results"]
                    self.assertEqual((result["default_options"], result["errors"]), (bool(flags), 0))
        self.assertIn("--default-options", self.run_command("perf", "send_bw", "--self", "--default-options", expect=2).stderr)

    def test_what_no_test_or_end_can_do_is_refused_before_anything_is_opened(self):
        for flag, value, arguments in (
                ("--perturb", "x", ["send_lat", "--self", "--perturb", "x"]),
                ("--perturb", "", ["send_lat", "--self", "--perturb", ""]),
                ("--perturb", "0", ["send_lat", "--self", "--perturb", "0"]),
                ("--perturb", "0us", ["send_lat", "--self", "--perturb", "0us"]),
                ("--perturb", "2s", ["send_lat", "--self", "--perturb", "2s"]),
                ("--perturb", "99999999999us", ["send_lat", "--self", "--perturb", "99999999999us"]),
                ("--perturb", "1,2", ["send_lat", "--self", "--perturb", "1,2"]),
                ("--perturb", "1us,2us", ["send_lat", "--self", "--perturb", "1us,2us"]),
                ("--perturb", "-3", ["send_lat", "--self", "--perturb=-3"]),
                ("--perturb", "send_bw", ["send_bw", "--self", "--perturb", "1us"]),
                ("--perturb", "atomic_lat", ["atomic_lat", "--self", "--perturb", "3"]),
                ("--perturb", "send_lat", ["send_lat", "--perturb", "3"]),
                ("--seed", "5", ["send_lat", "--self", "--seed", "5"]),
                ("--seed", "-1", ["send_lat", "--self", "--perturb", "1us", "--seed=-1"]),
                ("--offset", "4096", ["send_lat", "--self", "--offset", "4096"]),
                ("--offset", "x", ["send_lat", "--self", "--offset", "1,x"]),
                ("--offset", "1,2,3", ["send_lat", "--self", "--offset", "1,2,3"]),
                ("--offset", "atomic_bw", ["atomic_bw", "--self", "--offset", "8"]),
                ("--cold-cache", "send_bw", ["send_bw", "--self", "--cold-cache"]),
                ("--cold-cache", "read_lat", ["read_lat", "--self", "--cold-cache"]),
                ("--cold-cache", "send_lat", ["send_lat", "--cold-cache"])):
            with self.subTest(arguments=arguments):
                done = self.run_command("perf", *arguments, expect=2)
                self.assertEqual(done.stdout, "")
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                for part in (flag, value, "example"):
                    self.assertIn(part, done.stderr)


if __name__ == "__main__":
    command.main()
