#!/usr/bin/env python3
"""`sluice perf --transport l2`: server and client in two network namespaces with a cable between and no IP address."""
import json
import re
import shutil
import subprocess
import sys

import command
import wire

TESTS = [f"{verb}_{what}" for verb in ("send", "write", "read", "exchange", "rpc") for what in ("lat", "bw")]
SMALL, LARGE = 64, 300 * 1024


class OverEthernet(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.wire = wire.Wire()
        self.addCleanup(self.wire.close)

    def start_server(self, test, *arguments):
        """At the right end: the process, and the address as the left end says it."""
        server = self.start("perf", test, "--transport", "l2", "-p", "0", *arguments, within=self.wire.there)
        line = server.stderr.readline()
        self.assertIn("listening at l2://right/", line)
        address = line.split()[-1]
        # The address names the server's interface; the client has another.
        self.assertIn("sluice perf " + test + " " + address.replace("l2://right/", "l2://INTERFACE/"), server.stderr.readline())
        return server, address.replace("l2://right/", "l2://left/")

    def finish(self, server, expect=0):
        out, errors = server.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(server.returncode, expect, errors)
        return out, errors

    def between(self, test, *arguments):
        server, address = self.start_server(test)
        document = self.perf(test, address, "--transport", "l2", *arguments)
        self.finish(server)
        return document

    def test_every_test_crosses_and_is_verified(self):
        for test in TESTS:
            for size, iterations in ((SMALL, 60), (LARGE, 20)):
                with self.subTest(test=test, size=size):
                    document = self.between(test, "-s", str(size), "-n", str(iterations), *command.depth(test, 4))
                    self.assertEqual(document["warnings"], [])
                    self.assertEqual(document["environment"]["transport"]["requested"], "l2")
                    self.assertIn(wire.RIGHT_MAC, document["environment"]["transport"]["peer"])
                    result, = document["results"]
                    self.assertEqual((result["transport"], result["iterations"], result["errors"]), ("packet", iterations, 0))
                    self.assertGreaterEqual(result["verified_bytes"], size)

    def test_a_fetch_is_copied_once_by_our_code_at_the_receiver_and_not_at_the_sender(self):
        for more in ((), ("--into",)):
            result, = self.between("exchange_bw", "-s", str(LARGE), "-n", "20", "-t", "4", *more)["results"]
            # The client fetches. The kernels copy once each; a sender that is pulled from is not told of its own.
            self.assertEqual(result["copied_by"]["client"], {"user": 1, "kernel": 1})
            self.assertEqual(result["copied_by"]["server"]["user"], 0)
            self.assertIn(result["copied_by"]["server"]["kernel"], (0, 1))
            self.assertEqual(result["user_copied_bytes_per_byte"], 1)

    def test_a_batch_is_what_the_kernel_is_given_in_one_call(self):
        if shutil.which("strace") is None:
            self.skipTest("strace is not installed")
        longest = {}
        for frames in (7, 92):
            server, address = self.start_server("send_bw")
            path = self.file(f"calls-{frames}")
            self.run_command("perf", "send_bw", address, "--transport", "l2", "-s", str(LARGE), "-n", "20", "-t", "4", SLUICE_L2_BULK="frames",
                             SLUICE_TUNING=f"defaults,l2_batch_frames={frames}", within=("strace", "-f", "-qq", "-e", "trace=sendmmsg", "-o", path))
            self.finish(server)
            with open(path, encoding="utf-8", errors="replace") as file:
                longest[frames] = max(int(count) for count in re.findall(r", (\d+), MSG_DONTWAIT\) += \d+$", file.read(), re.MULTILINE))
        self.assertEqual(longest[7], 7)
        self.assertGreater(longest[92], 7)

    def test_several_connections_share_the_work(self):
        result, = self.between("write_bw", "-s", str(LARGE), "-n", "20", "-t", "2", "--qps", "3")["results"]
        self.assertEqual(len(result["bytes_by_qp"]), 3)
        self.assertEqual(result["errors"], 0)

    def test_what_was_dropped_is_counted_by_cause(self):
        server, address = self.start_server("send_lat")
        client = self.start("perf", "send_lat", address, "-D", "2", "--json", self.file("result.json"))
        self.assertIn("#bytes", client.stdout.readline())
        with open(f"/proc/{client.pid}/net/unix", encoding="ascii") as file:
            port = int(re.search(r"@sluice-l2-\d+-(\d+)", file.read()).group(1))
        # A PING to the client's port with a wrong checksum, and a type that there is none.
        script = ("import socket\nwith socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as s:\n s.bind(('right', 0))\n"
                  f" for head in 7 * [0x27] + 3 * [0x3f]: s.send(bytes.fromhex('{(wire.LEFT_MAC + wire.RIGHT_MAC).replace(':', '')}88b5') + "
                  f"bytes([head, 0, 0, 0]) + ({port}).to_bytes(2, 'little') + bytes(54))\n")
        subprocess.run([*self.wire.there, sys.executable, "-c", script], check=True)
        _, errors = client.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(client.returncode, 0, errors)
        self.finish(server)
        with open(self.file("result.json"), encoding="utf-8") as file:
            counters = json.load(file)["counters"]
        self.assertEqual((counters["l2.dropped_header_crc"], counters["l2.dropped_type"]), (7, 3))

    def test_an_interface_and_a_mac_address_are_a_host(self):
        server, address = self.start_server("send_lat", "--bind", "right")
        port = address.rsplit(":", 1)[1]
        self.perf("send_lat", f"left/{wire.RIGHT_MAC}", "-p", port, "--transport", "l2", "-n", "20")
        self.finish(server)

    def test_damage_is_found(self):
        server, address = self.start_server("exchange_bw")
        self.run_command("perf", "exchange_bw", address, "-s", "64K", "-n", "20", "--corrupt", expect=4)
        self.finish(server)

    def test_both_ends_on_one_machine_use_the_loopback_interface(self):
        result, = self.perf("read_bw", "--self", "--transport", "l2", "-s", "64K", "-n", "20", "-t", "4")["results"]
        self.assertEqual((result["transport"], result["errors"]), ("packet+udp", 0))
        # The path's own name means the same.
        result, = self.perf("send_lat", "--self", "--transport", "packet", "-n", "20")["results"]
        self.assertEqual(result["transport"], "packet+udp")

    def test_an_interface_that_is_not_there_is_named_with_those_that_are(self):
        for arguments in (("--bind", "eth7"), (f"eth7/{wire.RIGHT_MAC}",)):
            done = self.run_command("perf", "send_lat", "--transport", "l2", *arguments, expect=1)
            self.assertIn("no interface 'eth7' here, but ", done.stderr)
            self.assertIn("left", done.stderr)

    def test_a_wrong_mac_address_reaches_nobody_and_is_named(self):
        server, address = self.start_server("send_lat")
        wrong = address.replace(wire.RIGHT_MAC, "02:00:00:00:00:0c")
        done = self.run_command("perf", "send_lat", wrong, expect=1)
        self.assertIn(f"nobody answers at {wrong}", done.stderr)
        # And a server that is told a MAC address of somebody else's says whose it has.
        done = self.run_command("perf", "send_lat", "--transport", "l2", "--bind", f"left/{wire.RIGHT_MAC}", expect=1)
        self.assertIn(f"left has the address {wire.LEFT_MAC}", done.stderr)
        self.perf("send_lat", address, "-n", "20")
        self.finish(server)

    def test_without_the_capability_the_error_names_it_and_the_command_that_grants_it(self):
        without = ("setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw")
        for arguments, code in (("--bind", "left"), 77), ((f"left/{wire.RIGHT_MAC}",), 77), (("--self",), 77):
            done = self.run_command("perf", "send_lat", "--transport", "l2", *arguments, expect=code, within=without)
            self.assertIn("CAP_NET_RAW", done.stderr)
            self.assertIn("sudo setcap cap_net_raw+ep /", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_which_interface_is_asked_where_there_are_several_or_none(self):
        wire.ip("link", "add", "more", "type", "veth", "peer", "name", "moreover")
        self.addCleanup(wire.ip, "link", "del", "more")
        for interface in ("more", "moreover"):
            wire.ip("link", "set", interface, "up")
        done = self.run_command("perf", "send_lat", "--transport", "l2", expect=2)
        for part in ("--bind", "left", "more", "moreover", "example"):
            self.assertIn(part, done.stderr)
        done = self.run_command("perf", "send_lat", "127.0.0.1", "--transport", "l2", expect=2)
        self.assertIn("names no interface and MAC address", done.stderr)


if __name__ == "__main__":
    command.main()
