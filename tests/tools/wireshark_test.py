#!/usr/bin/env python3
"""The Wireshark dissector reads the golden frames as decode.py and `sluice dump` do; tshark shows what it read.

    wireshark_test.py BINARY FRAMES DISSECTOR     FRAMES: tests/slp/golden/frames.txt
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

DISSECTOR = pathlib.Path(sys.argv.pop(3)).resolve()
GOLDEN = pathlib.Path(sys.argv.pop(2)).resolve()
sys.path.insert(0, str(GOLDEN.parent))
import captures  # noqa: E402
import command  # noqa: E402
import decode  # noqa: E402

FRAMES = captures.golden(GOLDEN)
# What tshark calls it, what the decoder of the page calls it.
EVERY = {"srcport": "source", "dstport": "destination", "payload_bytes": "payload_bytes", "connection": "connection", "number": "number",
         "ack": "ack", "run": "run", "age": "age", "credit": "credit", "marks": "marks", "header_crc": "header_crc",
         "payload_crc": "payload_crc", "session": "session"}
SOME = {"hello.nonce": "nonce", "hello.answers": "answers", "hello.cookie": "cookie", "hello.connection": "connection_to_use",
        "hello.lowest": "lowest", "hello.highest": "highest", "hello.capabilities": "capabilities", "hello.mtu": "mtu",
        "hello.stream_kib": "stream_kib", "hello.transfers": "transfers", "hello.handles": "handles", "hello.wait_us": "wait_us",
        "nack.reason": "reason", "nack.meant": "meant", "eager.stream": "stream", "data.transfer": "transfer", "find.nonce": "asked"}
OTHERS = ["type", "flags", "hello.salt", "hello.tag", "eager.offset", "data.offset", "ack.gap", "ack.run", "find.name", "record", "payload",
          "header_crc.status", "payload_crc.status", "expert.malformed", "expert.header_crc", "expert.payload_crc", "padding"]
NAMES = [f"slp.{name}" for name in (*EVERY, *SOME, *OTHERS)] + ["_ws.col.Protocol", "_ws.col.Info", "_ws.malformed", "_ws.expert.message"]


class Wireshark(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.tshark = shutil.which("tshark")
        self.assertTrue(self.tshark, "there is no tshark; tools/setup installs it")

    def read(self, capture):
        """Of each packet, what tshark found by name: a list, one entry for each time."""
        path = self.file("it.pcap")
        pathlib.Path(path).write_bytes(capture)
        home = os.path.join(self.folder, "home")
        os.makedirs(home)
        fields = [part for name in NAMES for part in ("-e", name)]
        done = subprocess.run([self.tshark, "-n", "-X", f"lua_script:{DISSECTOR}", "-r", path, "-T", "fields", "-E", "separator=\x01",
                               "-E", "aggregator=\x02", "-E", "occurrence=a", *fields], capture_output=True, text=True,
                              timeout=command.LIMIT_SECONDS, check=False,
                              env={**command.environment(), "HOME": home, "WIRESHARK_CONFIG_DIR": home})
        shutil.rmtree(home)
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("Lua", "error", "Error"):
            self.assertNotIn(word, done.stderr)
        rows = [line.split("\x01") for line in done.stdout.split("\n")[:-1]]
        self.assertNotIn("Lua Error", done.stdout)
        return [{name: value.split("\x02") if value else [] for name, value in zip(NAMES, row)} for row in rows]

    def number(self, row, name):
        value, = row[f"slp.{name}"]
        return int(value, 0)

    def check_frame(self, row, frame):
        expected = decode.decode(frame)
        self.assertEqual(row["_ws.col.Protocol"], ["SLP"])
        self.assertEqual(row["_ws.malformed"] + row["slp.expert.malformed"] + row["slp.expert.header_crc"] + row["slp.expert.payload_crc"], [])
        self.assertEqual(decode.TYPES[self.number(row, "type")], expected["type"])
        self.assertEqual([name for bit, name in decode.FLAGS.items() if self.number(row, "flags") & bit], expected["flags"])
        for theirs, ours in EVERY.items():
            self.assertEqual(self.number(row, theirs), expected[ours], theirs)
        for theirs, ours in SOME.items():
            if ours in expected:
                self.assertEqual(self.number(row, theirs), expected[ours], theirs)
            else:
                self.assertEqual(row[f"slp.{theirs}"], [], theirs)
        if "salt" in expected:
            self.assertEqual((row["slp.hello.salt"], row["slp.hello.tag"]), ([expected["salt"]], [expected["tag"]]))
        if "offset" in expected:
            self.assertEqual(self.number(row, "eager.offset" if expected["type"] == "EAGER" else "data.offset"), expected["offset"])
        self.assertEqual(row["slp.find.name"], [expected["name"]] if "name" in expected else [])
        pairs = list(zip(row["slp.ack.gap"], row["slp.ack.run"]))
        self.assertEqual([(int(gap), int(run)) for gap, run in pairs], expected.get("pairs", []))
        if "bytes" in expected:
            self.assertEqual(row["slp.payload"], [expected["bytes"].hex()])
        self.assertEqual(row["slp.header_crc.status"], ["1"])
        self.assertEqual(row["slp.payload_crc.status"], ["1" if "PCRC" in expected["flags"] else "2"])

    def test_the_golden_frames_read_the_same_on_every_carrier(self):
        forms = {"ethernet": [captures.ethernet(end, frame) for end, frame in FRAMES],
                 "vlan": [captures.ethernet(end, frame, (42,)) for end, frame in FRAMES],
                 "udp4": [captures.in_ethernet(captures.ipv4(end, frame)) for end, frame in FRAMES],
                 "udp6": [captures.in_ethernet(captures.ipv6(end, frame)) for end, frame in FRAMES]}
        for name, packets in forms.items():
            with self.subTest(form=name):
                rows = self.read(captures.pcap(packets))
                self.assertEqual(len(rows), len(FRAMES))
                for row, (_, frame) in zip(rows, FRAMES):
                    self.check_frame(row, frame)

    def test_records_are_told_where_sluice_dump_tells_them(self):
        rows = self.read(captures.pcap([captures.ethernet(end, frame) for end, frame in FRAMES]))
        lines = self.run_command("dump", self.file("it.pcap")).stdout.splitlines()
        self.assertEqual(len(rows), len(lines))
        records = 0
        for row, line in zip(rows, lines):
            for record in row["slp.record"]:
                self.assertIn("{" + record + "}", line)
            self.assertEqual(line.count("{"), len(row["slp.record"]))
            records += len(row["slp.record"])
        self.assertGreater(records, 8)

    def test_datagrams_of_other_ports_are_known_by_their_checksum(self):
        captures.UDP_PORT, usual = 18515, captures.UDP_PORT
        try:
            packets = [captures.in_ethernet(captures.ipv4(end, frame)) for end, frame in FRAMES]
            packets.append(captures.in_ethernet(captures.ipv4("client", bytes([0x29]) + bytes(60))))
        finally:
            captures.UDP_PORT = usual
        rows = self.read(captures.pcap(packets))
        for row, (_, frame) in zip(rows, FRAMES):
            self.check_frame(row, frame)
        self.assertEqual(rows[-1]["slp.type"], [])

    def test_frames_of_one_long_datagram_are_all_told(self):
        clients = [frame for end, frame in FRAMES if end == "client"]
        row, = self.read(captures.pcap([captures.in_ethernet(captures.ipv4("client", b"".join(clients)))]))
        self.assertEqual([int(value) for value in row["slp.number"]], [decode.decode(frame)["number"] for frame in clients])
        self.assertEqual(row["slp.expert.malformed"], [])

    def test_damage_is_marked_as_sluice_dump_marks_it(self):
        data = next(frame for _, frame in FRAMES if frame[0] & 31 == 9)
        packets = []
        for at in [*range(56), len(data) - 1]:
            bad = bytearray(data)
            bad[at] ^= 0x40
            packets.append(captures.ethernet("client", bytes(bad)))
        packets.append(captures.ethernet("client", data))
        rows = self.read(captures.pcap(packets))
        marks = [bool(row["slp.expert.malformed"] or row["slp.expert.header_crc"] or row["slp.expert.payload_crc"]) for row in rows]
        told = [json.loads(line) for line in self.run_command("dump", self.file("it.pcap"), "--json").stdout.splitlines()]
        self.assertEqual(marks, ["damaged" in said for said in told])
        self.assertEqual(marks, [True] * 57 + [False])

    def test_frames_of_any_length_are_read_without_an_error_of_the_script(self):
        data = next(frame for _, frame in FRAMES if frame[0] & 31 == 9)
        hello = FRAMES[0][1]
        packets = [captures.ethernet("client", b"")[:14] + frame[:length] for frame in (data, hello) for length in range(0, 140)]
        self.assertEqual(len(self.read(captures.pcap(packets))), len(packets))
        for snap in (14, 50, 60, 100):
            rows = self.read(captures.pcap([captures.ethernet(end, frame) for end, frame in FRAMES], snap=snap))
            self.assertEqual(len(rows), len(FRAMES))


if __name__ == "__main__":
    command.main()
