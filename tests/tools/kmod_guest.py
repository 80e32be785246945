#!/usr/bin/env python3
"""The command over the kernel module, in a guest: `sluice perf --transport kmod` between two network namespaces, by processes
without any capability, and what `sluice info` says of the module.

    kmod_guest.py BINARY MODULE [Class.test]...      run by guest_test (docs/lab.md)
"""
import json
import os
import subprocess
import sys
import time

import command
import wire

MODULE = os.path.abspath(sys.argv.pop(2))
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
# The tests whose bytes go as messages; as memory, pulled or pushed; by themselves.
TESTS = [f"{verb}_{what}" for verb in ("send", "write", "read", "exchange", "rpc") for what in ("lat", "bw")]
SMALL, LARGE = 64, 300 * 1024
UNLOAD_SECONDS = 30


def loaded():
    return os.path.exists("/sys/module/sluice")


class Without(command.CommandTest):
    def test_every_command_says_what_is_missing_and_how_to_get_it(self):
        self.assertFalse(loaded())
        path, = (path for path in json.loads(self.run_command("info", "--json").stdout)["paths"] if path["path"] == "module")
        self.assertFalse(path["usable"])
        self.assertIn("sudo modprobe sluice", path["why"])
        self.assertIn("sudo modprobe sluice", self.run_command("info", "--explain").stdout)
        done = self.run_command("perf", "send_lat", "--transport", "kmod", "--bind", "lo", expect=77)
        self.assertIn("the kernel module `sluice` is not loaded", done.stderr)


class OverTheModule(command.CommandTest):
    def setUp(self):
        super().setUp()
        subprocess.run(["/sbin/modprobe", "veth"], check=False, capture_output=True)
        subprocess.run(["/sbin/insmod", MODULE], check=True)
        self.addCleanup(self.unload)
        self.wire = wire.Wire()
        self.addCleanup(self.wire.close)

    def let_everybody_in(self):
        for within in ((), self.wire.there):
            subprocess.run([*within, "sh", "-c", "echo 1 > /proc/sys/net/sluice/unprivileged"], check=True)

    def unload(self):
        """A socket that was closed may go on sending for a second."""
        until = time.monotonic() + UNLOAD_SECONDS
        while subprocess.run(["/sbin/rmmod", "sluice"], check=False, capture_output=True).returncode != 0:
            self.assertLess(time.monotonic(), until, "the module is still in use")
        self.assertFalse(loaded())

    def between(self, test, *arguments, within=()):
        server = self.start("perf", test, "--transport", "kmod", "-p", "0", within=(*self.wire.there, *within))
        line = server.stderr.readline()
        self.assertIn("listening at kmod://right/", line)
        address = line.split()[-1].replace("kmod://right/", "kmod://left/")
        out = self.run_command("perf", test, address, "--transport", "kmod", *arguments, "--json", "-", within=within).stdout
        _, errors = server.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(server.returncode, 0, errors)
        document = json.loads(out)
        self.assertEqual(document["warnings"], [])
        result, = document["results"]
        return result

    def test_every_test_crosses_and_is_verified_without_any_capability(self):
        self.let_everybody_in()
        for test in TESTS:
            for size, iterations in ((SMALL, 60), (LARGE, 20)):
                with self.subTest(test=test, size=size):
                    result = self.between(test, "-s", str(size), "-n", str(iterations), *command.depth(test, 4), within=WITHOUT_RIGHTS)
                    self.assertEqual((result["transport"], result["iterations"], result["errors"]), ("module", iterations, 0))
                    self.assertGreaterEqual(result["verified_bytes"], size)

    def test_large_payloads_are_copied_by_the_kernel_only_once_at_each_end(self):
        result = self.between("exchange_bw", "-s", str(LARGE), "-n", "20", "-t", "4", "--into")
        self.assertEqual(result["copied_by"]["client"], {"user": 0, "kernel": 1})
        self.assertEqual(result["copied_by"]["server"]["user"], 0)
        self.assertEqual(result["user_copied_bytes_per_byte"], 0)

    def test_memory_that_may_not_be_pinned_is_refused_with_the_limit_and_how_to_raise_it(self):
        self.let_everybody_in()
        small = ("prlimit", "--memlock=1048576:1048576", *WITHOUT_RIGHTS)
        server = self.start("perf", "send_bw", "--transport", "kmod", "-p", "0", within=self.wire.there)
        address = server.stderr.readline().split()[-1].replace("kmod://right/", "kmod://left/")
        done = self.run_command("perf", "send_bw", address, "-s", "2M", "-n", "4", "-t", "1", within=small, expect=1)
        self.assertIn("2097152 bytes of memory could not be pinned", done.stderr)
        self.assertIn("ulimit -l) is limited to 1024 KiB", done.stderr)
        server.communicate(timeout=command.LIMIT_SECONDS)  # it hears of the client's end
        self.assertNotEqual(server.returncode, 0)

    def test_memory_is_pinned_and_let_go_of(self):
        result, = self.perf("reg", "--transport", "kmod", "--bind", "left", "-s", "1M", "-n", "20")["results"]
        self.assertEqual((result["transport"], result["iterations"]), ("module", 20))
        for figures in (result, result["deregister"]):
            self.assertGreater(figures["latency_ns"]["min"], 0)
        self.let_everybody_in()
        small = ("prlimit", "--memlock=1048576:1048576", *WITHOUT_RIGHTS)
        done = self.run_command("perf", "reg", "--transport", "kmod", "--bind", "left", "-s", "2M", "-n", "4", within=small, expect=1)
        self.assertIn("2097152 bytes of memory could not be pinned; see `ulimit -l`", done.stderr)

    def test_the_module_is_found_and_who_may_not_use_it_is_told(self):
        def module(within=()):
            paths = json.loads(self.run_command("info", "--json", within=within).stdout)["paths"]
            path, = (path for path in paths if path["path"] == "module")
            return path
        self.assertEqual(module()["copies_per_fetch"], 2)
        self.assertTrue(module()["usable"])
        self.assertFalse(module(WITHOUT_RIGHTS)["usable"])
        self.assertIn("CAP_NET_RAW", module(WITHOUT_RIGHTS)["why"])
        self.assertIn("sysctl net.sluice.unprivileged=1", module(WITHOUT_RIGHTS)["why"])
        self.let_everybody_in()
        self.assertTrue(module(WITHOUT_RIGHTS)["usable"])


if __name__ == "__main__":
    command.main()
