#!/usr/bin/env python3
"""`sluice demo --paths l2`: the main job over plain Ethernet, in namespaces of its own or by an interface."""
import json
import os
import pathlib
import signal

import command
import wire

TINY = ("demo", "--model", "tiny", "--timeout", "60")


def children(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


def interfaces():
    return [line.split()[1] for line in wire.ip("-o", "link").splitlines()]


def networks(processes):
    found = set()
    for process in processes:
        try:
            found.add(os.readlink(f"/proc/{process}/ns/net"))
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            pass  # `ip`, which has done its work or is at its end
    return found


class OverEthernet(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.wire = wire.Wire()  # for a network of this test's own, where `ip` may be asked what is left
        self.addCleanup(self.wire.close)

    def demo(self, *arguments, expect=0, within=()):
        path = self.file("demo.json")
        done = self.run_command(*TINY, *arguments, "--json", path, expect=expect, within=within)
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8")), done

    def test_every_mode_is_verified_beside_the_other_paths(self):
        document, done = self.demo("--paths", "shm,tcp,l2", "--steps", "3", "--workers", "2")
        self.assertEqual(document["unavailable"], [])
        results = {(entry["path"], entry["mode"]): entry for entry in document["results"]}
        modes = ("zerocopy", "onecopy", "grpc-over-sluice", "grpc-unary", "grpc-expert")
        self.assertEqual(set(results), {(path, mode) for path in ("shm", "l2", "tcp") for mode in modes}, done.stdout)
        for entry in results.values():
            self.assertTrue(entry["verified"], done.stdout)
        # gRPC crosses the same cable, by TCP: there is something to compare with.
        self.assertGreater(results["l2", "zerocopy"]["ratio_to_grpc"], 0)
        # Two by the kernels, of which one is not always told, and one by the receiver; bounce buffers cost one more each way and worker.
        self.assertGreaterEqual(results["l2", "zerocopy"]["copied_bytes_per_byte"], 2)
        self.assertGreater(results["l2", "onecopy"]["copied_bytes_per_byte"], results["l2", "zerocopy"]["copied_bytes_per_byte"] + 1)

    def test_server_and_workers_are_in_two_networks_and_nothing_is_left_of_them(self):
        before = interfaces()
        process = self.start(*TINY, "--paths", "l2", "--modes", "zerocopy", "--steps", "100000")
        own = os.readlink("/proc/self/ns/net")
        while len(networks(children(process)) - {own}) < 2:
            self.assertIsNone(process.poll())
        self.assertEqual(os.readlink(f"/proc/{process.pid}/ns/net"), own)
        ends = children(process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=command.LIMIT_SECONDS)
        for child in ends:  # orphans are ours: they die with their parent
            _, status = os.waitpid(child, 0)
            self.assertEqual(os.WTERMSIG(status), signal.SIGKILL)
        self.assertEqual(interfaces(), before)

    def test_a_worker_that_was_killed_rejoins(self):
        document, _ = self.demo("--paths", "l2", "--modes", "zerocopy", "--steps", "3", "--kill-worker-at-step", "1", "--kill-seed", "1")
        entry, = document["results"]
        self.assertTrue(entry["verified"])
        self.assertGreaterEqual(entry["restarts"], 1)

    def test_an_interface_can_be_named_instead(self):
        document, done = self.demo("--paths", "l2", "--l2", "lo", "--steps", "1")
        self.assertEqual({entry["mode"]: entry["verified"] for entry in document["results"]},
                         {"zerocopy": True, "onecopy": True, "grpc-unary": True, "grpc-expert": True})
        # Where the bridge would go by shared memory, it is not measured as l2.
        entry, = document["unavailable"]
        self.assertEqual((entry["path"], entry["mode"]), ("l2", "grpc-over-sluice"))
        self.assertIn("leave --l2 out", entry["reason"])
        self.assertIn(f"l2   grpc-over-sluice not available: {entry['reason']}", done.stdout)

    def test_why_it_cannot_is_told(self):
        for what, without, remedy in (("sys_admin", "need root (CAP_SYS_ADMIN)", "--l2 lo"), ("net_raw", "CAP_NET_RAW", "setcap cap_net_raw+ep /")):
            document, done = self.demo("--paths", "l2", "--steps", "1", expect=77, within=("setpriv", f"--bounding-set=-{what}"))
            entry, = document["unavailable"]
            self.assertEqual(entry["path"], "l2")
            for part in (without, remedy):
                self.assertIn(part, entry["reason"])
            self.assertIn(f"l2   not available: {entry['reason']}", done.stdout)
        # Without the right to make namespaces an interface is enough.
        document, _ = self.demo("--paths", "l2", "--l2", "lo", "--modes", "zerocopy", "--steps", "1", within=("setpriv", "--bounding-set=-sys_admin"))
        self.assertTrue(document["results"][0]["verified"])
        document, _ = self.demo("--paths", "l2", "--l2", "eth7", "--modes", "zerocopy", "--steps", "1", expect=1)
        self.assertIn("no interface 'eth7'", document["results"][0]["failure"])


if __name__ == "__main__":
    command.main()
