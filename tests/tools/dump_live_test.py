#!/usr/bin/env python3
"""`sluice dump` of an interface: frames of a real connection between two namespaces.

    dump_live_test.py BINARY FRAMES     FRAMES: tests/slp/golden/frames.txt
"""
import json
import os
import pathlib
import signal
import socket
import sys

GOLDEN = pathlib.Path(sys.argv.pop(2)).resolve()
import captures  # noqa: E402
import command  # noqa: E402
import wire  # noqa: E402


class Live(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.wire = wire.Wire()
        self.addCleanup(self.wire.close)

    def listen(self, interface, *arguments, within=()):
        process = self.start("dump", interface, "--json", *arguments, within=within)
        self.assertEqual(process.stderr.readline(), f"sluice dump: listening on {interface}\n")
        return process

    def stop(self, process, expect=0):
        """What it told, and its sum."""
        if expect == 0:
            process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(process.returncode, expect, errors)
        return [json.loads(line) for line in out.splitlines()], errors

    def talk(self):
        server = self.start("perf", "exchange_bw", "--transport", "l2", "-p", "0", "--bind", "right", within=self.wire.there)
        address = server.stderr.readline().split()[-1].replace("l2://right/", "l2://left/")
        self.perf("exchange_bw", address, "-n", "10", "-s", "100K", "-t", "2")
        _, errors = server.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(server.returncode, 0, errors)
        return int(address.rsplit(":", 1)[1])

    def check_conversation(self, told, port):
        """Both ends are heard from the first word on, and nothing is damaged."""
        self.assertEqual([said for said in told if "damaged" in said or "cut" in said], [])
        self.assertEqual(told[0]["type"], "HELLO")
        self.assertEqual((told[0]["from"], told[0]["to"], told[0]["destination"]), (wire.LEFT_MAC, wire.RIGHT_MAC, port))
        for mac in (wire.LEFT_MAC, wire.RIGHT_MAC):
            self.assertIn("EAGER", {said["type"] for said in told if said["from"] == mac})
        self.assertTrue(any(said["type"] == "DATA" for said in told))
        names = {record["record"] for said in told for record in said.get("records", [])}
        self.assertIn("MESSAGE", names)
        self.assertNotIn("NONSENSE", names)
        # Of one direction: the two are stamped on two processors and meet in the socket's queue.
        for mac in (wire.LEFT_MAC, wire.RIGHT_MAC):
            times = [said["time_ns"] for said in told if said["from"] == mac]
            self.assertEqual(times, sorted(times))
            self.assertGreater(times[0], 1_700_000_000 * 10**9)

    def test_a_connection_is_heard_both_ways_and_what_is_written_tells_the_same(self):
        path = self.file("live.pcap")
        process = self.listen("left", "--write", path)
        port = self.talk()
        told, errors = self.stop(process)
        self.check_conversation(told, port)
        self.assertIn(f"sluice dump: {len(told)} frames; ", errors)
        again = [json.loads(line) for line in self.run_command("dump", path, "--json").stdout.splitlines()]
        self.assertEqual(again, told)

    def test_it_stops_by_itself_after_a_count(self):
        process = self.listen("left", "--count", "5")
        self.talk()
        out, errors = process.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual((process.returncode, len(out.splitlines())), (0, 5), errors)

    def test_vlan_tags_that_the_device_takes_off_are_told(self):
        frames = captures.golden(GOLDEN)
        path = self.file("vlan.pcap")
        # The sender's end sees them in the frame, the receiver's beside it.
        for interface, within in (("left", ()), ("right", self.wire.there)):
            for vlans in ((42,), (7, 4094), ()):
                process = self.listen(interface, "--write", path, "--count", str(len(frames)), within=within)
                with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
                    sender.bind(("left", 0))
                    for end, frame in frames:
                        sender.send(captures.ethernet(end, frame, vlans))
                out, errors = process.communicate(timeout=command.LIMIT_SECONDS)
                self.assertEqual(process.returncode, 0, errors)
                told = [json.loads(line) for line in out.splitlines()]
                self.assertEqual([said.get("vlans", []) for said in told], [list(vlans)] * len(frames))
                self.assertEqual([said for said in told if "damaged" in said], [])
                again = [json.loads(line) for line in self.run_command("dump", path, "--json").stdout.splitlines()]
                self.assertEqual(again, told)

    def test_on_the_loopback_interface_each_frame_is_told_once(self):
        process = self.listen("lo")
        self.perf("send_lat", "--self", "--transport", "l2", "-n", "20")
        told, _ = self.stop(process)
        numbered = [(said["source"], said["number"]) for said in told if said["number"] != 0]
        self.assertGreater(len(numbered), 20)
        self.assertEqual(len(numbered), len(set(numbered)))

    def test_frames_in_udp(self):
        for address, end, within in (("192.0.2.1/24", "left", ()), ("192.0.2.2/24", "right", self.wire.there)):
            wire.ip("address", "add", address, "dev", end, within=within)
        frames = [frame for end, frame in captures.golden(GOLDEN) if end == "client"]
        process = self.listen("left", "--count", str(len(frames)))
        elsewhere = self.listen("left", "--udp-port", "4800")
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(sender.close)
        sender.bind(("192.0.2.1", 0))
        for frame in frames:
            sender.sendto(frame, ("192.0.2.2", captures.UDP_PORT))
        out, errors = process.communicate(timeout=command.LIMIT_SECONDS)
        told = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual([said["to"] for said in told], [f"192.0.2.2:{captures.UDP_PORT}"] * len(frames))
        self.assertEqual([said["carrier"] for said in told], ["udp"] * len(frames))
        self.assertEqual([said for said in told if "damaged" in said], [])
        self.assertEqual(self.stop(elsewhere)[0], [])

    def test_a_connection_in_udp_is_heard_with_what_the_kernel_cuts_up_and_joins(self):
        for address, end, within in (("192.0.2.1/24", "left", ()), ("192.0.2.2/24", "right", self.wire.there)):
            wire.ip("address", "add", address, "dev", end, within=within)
        for interface, within in (("left", ()), ("right", self.wire.there)):
            process = self.listen(interface, within=within)
            server = self.start("perf", "write_bw", "--transport", "udp", "--bind", "192.0.2.2", "-p", "0", within=self.wire.there)
            address = server.stderr.readline().split()[-1]
            port = int(address.rsplit(":", 1)[1])
            self.perf("write_bw", address, "-n", "10", "-s", "100K", "-t", "2")
            _, errors = server.communicate(timeout=command.LIMIT_SECONDS)
            self.assertEqual(server.returncode, 0, errors)
            told, _ = self.stop(process)
            self.assertEqual([said for said in told if "damaged" in said or said["carrier"] != "udp"], [])
            self.assertEqual((told[0]["type"], told[0]["to"]), ("HELLO", f"192.0.2.2:{port}"))
            data = [said for said in told if said["type"] == "DATA"]
            # Ten writes and those that verify; each frame of a joined datagram is told by itself.
            self.assertGreaterEqual(len({(said["transfer"], said["offset"]) for said in data}), 10 * 100 * 1024 // 1344)
            self.assertEqual({said["payload_bytes"] for said in data}, {1344, 100 * 1024 % 1344})

    def test_an_interface_that_goes_down_may_come_back_and_one_that_is_gone_ends_it(self):
        process = self.listen("left")
        wire.ip("link", "set", "left", "down")
        wire.ip("link", "set", "left", "up")
        port = self.talk()
        wire.ip("link", "del", "left")
        told, errors = self.stop(process, expect=1)
        self.check_conversation(told, port)
        self.assertIn("the interface left went away", errors)

    def test_without_the_capability_the_error_names_it_and_the_command_that_grants_it(self):
        done = self.run_command("dump", "left", expect=1, within=("setpriv", "--bounding-set=-net_raw"))
        self.assertIn("CAP_NET_RAW", done.stderr)
        self.assertIn(f"sudo setcap cap_net_raw+ep {os.path.realpath(command.BINARY)}", done.stderr)
        done = self.run_command("dump", "eth7", expect=1)
        self.assertIn("no interface 'eth7' here, but ", done.stderr)


if __name__ == "__main__":
    command.main()
