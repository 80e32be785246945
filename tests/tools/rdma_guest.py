#!/usr/bin/env python3
"""The command where there is an RDMA device: what `sluice info` finds, `sluice perf` over it, and the main job.

    rdma_guest.py BINARY [Info|Perf|Pair|Demo]...      run by guest_test (docs/lab.md), or by hand on a machine with a device
"""
import json
import os
import pathlib

import command

DEVICE = os.environ.get("SLUICE_LAB_DEVICE", "rxe0")
ADDRESS = os.environ.get("SLUICE_LAB_ADDRESS", "10.77.0.1")
LARGE = 256 << 10


class Info(command.CommandTest):
    def test_the_device_its_port_its_gids_and_the_way_to_a_host(self):
        info = json.loads(self.run_command("info", "--json", "--explain", ADDRESS).stdout)
        rdma = info["rdma"]
        self.assertTrue(rdma["usable"], rdma["obstacle"])
        device, = (device for device in rdma["devices"] if device["name"] == DEVICE)
        self.assertEqual(device["kind"], "soft-iWARP" if DEVICE.startswith("siw") else "soft-RoCE")
        self.assertIsNone(device["trouble"])
        self.assertGreater(device["limits"]["queue_depth"], 0)
        port, = device["ports"]
        self.assertEqual(port["state"], "ACTIVE")
        self.assertIn(ADDRESS, port["addresses"])
        self.assertGreaterEqual(port["mtu_bytes"], 256)
        self.assertTrue(port["gids"])
        route = rdma["route"]
        self.assertTrue(route["found"], route["why"])
        self.assertEqual((route["device"], route["port"], route["local"]), (DEVICE, 1, ADDRESS))
        if DEVICE.startswith("rxe"):
            self.assertIn(route["gid"], port["gids"])
            self.assertEqual((route["gid"]["type"], route["gid"]["netdev"]), ("RoCE v2", "lab0"))
        path, = (path for path in info["paths"] if path["path"] == "verbs")
        self.assertTrue(path["usable"])
        self.assertEqual(path["copies_per_fetch"], 2)  # the kernel's
        self.assertIn(DEVICE, path["why"])

    def test_doctor_tries_the_device_and_finds_what_keeps_a_user_from_it(self):
        def findings(expect, *within):
            said = json.loads(self.run_command("doctor", "--json", "--need", "rdma", ADDRESS, expect=expect, within=within, SLUICE_ARENA_LIMIT="64M").stdout)
            return {finding["check"]: finding for finding in said["findings"]}
        found = findings(0)
        self.assertEqual(found["rdma"]["text"], "64 KiB there and back by verbs, verified")
        self.assertIn(DEVICE, found["rdma-route"]["text"])
        # A user's usual limit of locked memory: an arena's first extent does not fit.
        rdma = findings(1, "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit", "--memlock=65536:65536")["rdma"]
        self.assertEqual(rdma["severity"], "problem")
        self.assertIn("RLIMIT_MEMLOCK", rdma["text"])
        self.assertIn("ulimit -l unlimited", rdma["remedy"])

    def test_software_moderates_no_events_and_says_so_once(self):
        asked = {"SLUICE_RDMA_MODERATION": "auto"}
        told = self.run_command("info", "--explain", **asked).stdout
        self.assertIn("no event moderation", told)
        self.assertIn("without effect on " + DEVICE, told)
        done = self.run_command("perf", "send_lat", "--self", "--transport", "rdma", "-n", "60", "--wait", "sleep", **asked)
        refusals = [line for line in done.stderr.splitlines() if "does not moderate completion events" in line]
        self.assertIn(len(refusals), (1, 2), done.stderr)  # one for each of the two processes, if both speak


class Perf(command.CommandTest):
    def test_messages_one_sided_operations_and_atomics(self):
        cases = [(["send_lat", "-s", "64"], 60), (["write_bw", "-s", str(LARGE), "-t", "4"], 12),
                 (["read_bw", "-s", str(LARGE), "-t", "4"], 12), (["write_bw", "-s", str(LARGE), "-t", "4", "-q", "2"], 12), (["exchange_bw", "-s", str(LARGE), "-t", "4", "--into"], 8),
                 (["rpc_lat", "-s", "64", "--reply-size", "20K"], 60), (["rpc_bw", "-s", "200K", "--reply-size", "64", "-t", "4"], 12),
                 (["write_lat"], 60), (["atomic_lat"], 60), (["atomic_bw", "-A", "CMP_AND_SWAP", "-t", "8"], 100)]
        for arguments, iterations in cases:
            with self.subTest(arguments=arguments):
                document = self.perf(*arguments, "--self", "--transport", "rdma", "-n", str(iterations))
                self.assertEqual(document["warnings"], [])
                result, = document["results"]
                self.assertEqual(result["transport"], "verbs")
                self.assertEqual(result["iterations"], iterations)
                self.assertEqual(result["errors"], 0)
                self.assertGreaterEqual(result["verified_bytes"], result["size_bytes"])
                if result["size_bytes"] == LARGE:
                    self.assertEqual(result["user_copied_bytes_per_byte"], 0)
                    # Soft RDMA: by the kernel at the end that works, at the other, too, where it is told.
                    self.assertIn(result["copied_bytes_per_byte"], (1, 2))

    def test_memory_is_registered_and_let_go_of(self):
        for more in ((), ("--bind", ADDRESS)):
            document = self.perf("reg", "--transport", "rdma", "-s", "1M", "-n", "20", *more)
            self.assertEqual((document["warnings"], document["environment"]["transport"]["local"]), ([], DEVICE))
            result, = document["results"]
            self.assertEqual((result["transport"], result["iterations"]), ("verbs", 20))
            for figures in (result, result["deregister"]):
                self.assertGreater(figures["latency_ns"]["min"], 0)
        self.assertEqual(self.perf("reg", "-n", "5")["results"][0]["transport"], "verbs")
        done = self.run_command("perf", "reg", "--transport", "rdma", "--bind", "10.99.0.1", expect=1)
        self.assertIn("no RDMA device has the address 10.99.0.1", done.stderr)

    def test_a_wrong_word_is_found(self):
        for kind in ("FETCH_AND_ADD", "CMP_AND_SWAP"):
            done = self.run_command("perf", "atomic_bw", "--self", "--transport", "rdma", "-n", "40", "-t", "4", "-A", kind,
                                    "--corrupt", expect=4)
            self.assertIn("not sent", done.stderr)


class Pair(command.CommandTest):
    def test_server_and_client_as_two_commands(self):
        server = self.start("perf", "write_bw", "--transport", "rdma", "-p", "0")
        address = server.stderr.readline().split()[-1]
        self.assertRegex(address, r"^rdma://0\.0\.0\.0:\d+$")
        port = address.rsplit(":", 1)[1]
        document = self.perf("write_bw", ADDRESS, "--transport", "rdma", "-p", port, "-n", "20", "-s", "64K", "-t", "4")
        self.assertEqual(document["results"][0]["transport"], "verbs")
        _, errors = server.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(server.returncode, 0, errors)


class Demo(command.CommandTest):
    def test_the_main_job_runs_over_rdma_beside_the_others(self):
        path = self.file("demo.json")
        done = self.run_command("demo", "--model", "tiny", "--steps", "1", "--json", path)
        document = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        self.assertEqual(document["unavailable"], [])
        results = {(entry["path"], entry["mode"]): entry for entry in document["results"]}
        modes = ("zerocopy", "onecopy", "grpc-over-sluice", "grpc-unary", "grpc-expert")
        self.assertEqual(set(results), {(path, mode) for path in ("shm", "rdma", "tcp") for mode in modes}, done.stdout)
        for entry in results.values():
            self.assertTrue(entry["verified"])
        # gRPC runs over TCP at the same address: there is something to compare with.
        self.assertGreater(results["rdma", "zerocopy"]["ratio_to_grpc"], 0)
        # One more each way and worker where tensors go through bounce buffers.
        self.assertGreater(results["rdma", "onecopy"]["copied_bytes_per_byte"], results["rdma", "zerocopy"]["copied_bytes_per_byte"])

    def test_a_worker_that_was_killed_rejoins_over_rdma(self):
        path = self.file("demo.json")
        self.run_command("demo", "--model", "tiny", "--steps", "3", "--paths", "rdma", "--modes", "zerocopy", "--kill-worker-at-step", "1",
                         "--kill-seed", "1", "--timeout", "30", "--json", path)
        entry, = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["results"]
        self.assertTrue(entry["verified"])
        self.assertGreaterEqual(entry["restarts"], 1)


if __name__ == "__main__":
    command.main()
