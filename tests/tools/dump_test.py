#!/usr/bin/env python3
"""`sluice dump` of capture files: the golden frames as decode.py reads them, and files that are damaged.

    dump_test.py BINARY FRAMES     FRAMES: tests/slp/golden/frames.txt
"""
import json
import os
import pathlib
import re
import subprocess
import sys

GOLDEN = pathlib.Path(sys.argv.pop(2)).resolve()
sys.path.insert(0, str(GOLDEN.parent))
import captures  # noqa: E402
import command  # noqa: E402
import decode  # noqa: E402

FRAMES = captures.golden(GOLDEN)
MACS = {"client": "02:00:00:00:00:0a", "server": "02:00:00:00:00:0b"}
FIRST_NS = 1_700_000_000 * 10**9


def eager(offset, payload):
    """A frame with a piece of the message stream, made from the first golden one."""
    frame = bytearray(next(frame for end, frame in FRAMES if end == "client" and frame[0] & 31 == 8)[:48])
    frame[6:8] = len(payload).to_bytes(2, "little")
    frame[40:44] = offset.to_bytes(4, "little")
    frame[32:36] = decode.crc32c(payload).to_bytes(4, "little")
    frame[28:32] = bytes(4)
    frame[28:32] = decode.crc32c(bytes(frame)).to_bytes(4, "little")
    return bytes(frame) + payload


class Dump(command.CommandTest):
    def dump(self, capture, *arguments, expect=0):
        """(stdout's lines, stderr) of a capture given by stdin."""
        done = subprocess.run([command.BINARY, "dump", "-", *arguments], input=capture, capture_output=True,
                              timeout=command.LIMIT_SECONDS, env=command.environment(), check=False)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout.decode("ascii").splitlines(), done.stderr.decode("ascii")

    def json(self, capture, *arguments, expect=0):
        lines, _ = self.dump(capture, "--json", "--payload", *arguments, expect=expect)
        return [json.loads(line) for line in lines]

    def check_golden(self, told, frames=None):
        """What was told is what the decoder written from the page reads."""
        frames = FRAMES if frames is None else frames
        self.assertEqual(len(told), len(frames))
        for said, (_, frame) in zip(told, frames):
            expected = decode.decode(frame)
            self.assertNotIn("damaged", said)
            self.assertEqual(said["payload"], expected.pop("bytes", frame[len(frame) - expected["payload_bytes"]:]).hex())
            expected.pop("header_crc")
            if "pairs" in expected:
                expected["pairs"] = [list(pair) for pair in expected["pairs"]]
            self.assertEqual({name: said[name] for name in expected}, expected)


class Golden(Dump):
    packets = [captures.ethernet(end, frame) for end, frame in FRAMES]

    def test_every_form_of_a_capture_tells_the_same_as_the_decoder_of_the_page(self):
        forms = {f"pcap {order} {ns}": captures.pcap(self.packets, order, ns) for order in "<>" for ns in (False, True)}
        forms.update({f"pcapng {order}": captures.pcapng(self.packets, order) for order in "<>"})
        for name, capture in forms.items():
            with self.subTest(form=name):
                told = self.json(capture)
                self.check_golden(told)
                for i, ((end, frame), said) in enumerate(zip(FRAMES, told)):
                    self.assertEqual((said["carrier"], said["from"]), ("ethernet", MACS[end]))
                    self.assertEqual(said["to"], MACS["server" if end == "client" else "client"])
                    self.assertEqual(said["bytes"], max(len(frame), 46))  # with Ethernet's padding
                    untimed = name.startswith("pcapng") and i % 3 == 1  # a simple packet block has no time
                    self.assertEqual(said["time_ns"], 0 if untimed else FIRST_NS + i * 1000)

    def test_resolutions_and_offsets_of_times(self):
        for order in "<>":
            for resolution, ticks, ns in ((9, FIRST_NS + 7, FIRST_NS + 7), (3, 1_700_000_000_123, FIRST_NS + 123_000_000),
                                          (0x80 | 10, 1_700_000_000 * 1024 + 512, FIRST_NS + 500_000_000), (None, 5, 5000)):
                capture = captures.section(order) + captures.interface(order, resolution=resolution, offset=60) + \
                    captures.enhanced(order, self.packets[0], ticks)
                self.assertEqual(self.json(capture)[0]["time_ns"], ns + 60 * 10**9)

    def test_a_second_section_may_count_bytes_the_other_way_round(self):
        both = captures.pcapng(self.packets[:3], ">") + captures.pcapng(self.packets[3:], "<")
        self.check_golden(self.json(both))

    def test_records_of_streams_are_put_together(self):
        _, expected = decode.conversation(GOLDEN.read_text(encoding="ascii").splitlines())
        told = self.json(captures.pcap(self.packets))
        found = {key: [] for key in expected}
        for said in told:
            if said["type"] == "EAGER":
                end = next(end for end, mac in MACS.items() if mac == said["from"])
                found[end, said["stream"]] += said["records"]
        for key, records in expected.items():
            want = []
            for name, fields in records:
                one = {"record": name, **{k: v for k, v in fields.items() if k not in ("text", "zero")}}
                if "text" in fields:
                    one["bytes"] = len(fields["text"])
                want.append(one)
            self.assertEqual(found[key], want, key)

    def test_pieces_that_come_in_any_order_and_twice_make_the_same_records(self):
        def all_records(packets):
            return sorted(json.dumps(record) for said in self.json(captures.pcap(packets)) for record in said.get("records", []))
        self.assertEqual(all_records(self.packets[::-1]), all_records(self.packets))
        self.assertEqual(all_records([packet for packet in self.packets for _ in "12"]), all_records(self.packets))

    def test_a_long_stream_is_told_to_its_end_and_a_hole_that_is_never_filled_ends_it(self):
        message = (1000).to_bytes(4, "little") + bytes(1000)
        frames = [eager(at * len(message), message) for at in range(80)]
        def told(frames):
            return [len(said["records"]) for said in self.json(captures.pcap([captures.ethernet("client", frame) for frame in frames]))]
        self.assertEqual(told(frames), [1] * 80)
        self.assertEqual(told(frames[:60] + frames[61:62] + frames[60:61]), [1] * 60 + [0, 2])
        self.assertEqual(told(frames[:1] + frames[2:20] + frames[1:2]), [1] + [0] * 18 + [19])
        self.assertEqual(told(frames[:1] + frames[2:] + frames[1:2]), [1] + [0] * 79)  # more than is kept
        # Offsets begin again after 2^32.
        wrapped = [eager((2**32 - 2008 + at * 1004) % 2**32, message) for at in range(4)]
        self.assertEqual(told(wrapped), [0] * 2 + [1] * 2)  # a stream begins at 0: what is before it was never seen

    def test_vlan_tags_one_or_two(self):
        for vlans in ((42,), (100, 4094)):
            told = self.json(captures.pcap([captures.ethernet(end, frame, vlans) for end, frame in FRAMES]))
            self.check_golden(told)
            self.assertTrue(all(said["vlans"] == list(vlans) for said in told))

    def test_udp_over_ipv4_and_ipv6(self):
        forms = {"v4": captures.ipv4, "v4 with options": lambda e, f: captures.ipv4(e, f, options=bytes(8)),
                 "v6": captures.ipv6, "v6 with headers between": lambda e, f: captures.ipv6(e, f, extensions=3)}
        for name, make in forms.items():
            with self.subTest(form=name):
                for packets, link in (([captures.in_ethernet(make(end, frame)) for end, frame in FRAMES], captures.ETHERNET),
                                      ([make(end, frame) for end, frame in FRAMES], captures.RAW_IP)):
                    told = self.json(captures.pcap(packets, link=link))
                    self.check_golden(told)
                    self.assertEqual(told[0]["carrier"], "udp")
                    self.assertEqual(told[0]["from"], "192.0.2.1:50000" if name.startswith("v4") else "[2001:db8::1]:50000")
                    self.assertEqual(self.dump(captures.pcap(packets, link=link), "--udp-port", "0")[0], [])
                    self.assertEqual(self.dump(captures.pcap(packets, link=link), "--udp-port", "4800")[0], [])
                marked = self.json(captures.pcap([captures.in_ethernet(captures.ipv4("client", FRAMES[0][1], congested=True))]))
                self.assertTrue(marked[0]["ip_congestion"])

    def test_frames_that_were_captured_as_one_long_datagram(self):
        clients = [(end, frame) for end, frame in FRAMES if end == "client"]
        told = self.json(captures.pcap([captures.in_ethernet(captures.ipv4("client", b"".join(frame for _, frame in clients)))]))
        self.check_golden(told, clients)
        self.assertEqual([said["bytes"] for said in told], [len(frame) for _, frame in clients])

    def test_fragments_of_datagrams_are_counted_and_not_guessed_at(self):
        packets = [captures.in_ethernet(captures.ipv4("client", FRAMES[0][1], fragment=0x2000)),
                   captures.in_ethernet(captures.ipv4("client", FRAMES[0][1], fragment=100))]
        lines, errors = self.dump(captures.pcap(packets), "--udp-port", str(captures.UDP_PORT))
        self.assertEqual(lines, [])
        self.assertIn("1 IP fragments", errors)

    def test_datagrams_of_any_port_are_frames_if_their_checksum_says_so_and_those_of_a_named_port_always(self):
        good, bad = FRAMES[0][1], bytearray(FRAMES[0][1])
        bad[50] ^= 1
        packets = [captures.in_ethernet(captures.ipv4("client", payload)) for payload in (good, bytes(bad), b"", b"another's", good[:39])]
        self.assertEqual([said["type"] for said in self.json(captures.pcap(packets))], ["HELLO"])
        told = self.json(captures.pcap(packets), "--udp-port", str(captures.UDP_PORT))
        self.assertEqual([said.get("damaged") for said in told], [None, "header_crc", "runt", "runt", "runt"])

    def test_cooked_captures_of_all_interfaces(self):
        for link, make in ((captures.COOKED, captures.cooked), (captures.COOKED2, captures.cooked2)):
            told = self.json(captures.pcap([make(end, frame) for end, frame in FRAMES], link=link))
            self.check_golden(told)
            self.assertEqual((told[0]["from"], told[0]["to"]), (MACS["client"], None))

    def test_what_is_not_ours_is_passed_over(self):
        other = [captures.ethernet("client", FRAMES[0][1], ethertype=0x0806), b"", b"\0" * 13, captures.in_ethernet(bytes([0x45]) + bytes(40))]
        lines, errors = self.dump(captures.pcap(other))
        self.assertEqual(lines, [])
        self.assertIn("0 frames; 4 packets seen", errors)
        _, errors = self.dump(captures.pcap(other, link=127))
        self.assertIn("4 packets of unknown links", errors)

    def test_lines_say_who_what_and_why(self):
        lines, errors = self.dump(captures.pcap(self.packets))
        self.assertIn(f"{len(FRAMES)} frames; {len(FRAMES)} packets seen", errors)
        text = "\n".join(lines)
        for part in (r"^22:13:20\.000000000 02:00:00:00:00:0a/40000 > 02:00:00:00:00:0b/7 HELLO conn 00000000 session 00000000 nonce 0123456789abcdef use 00010002",
                     r"HELLO_ACK .* nonce 1122334455667788 answers 0123456789abcdef use 00030004 versions 1-1 mtu 1452 wait 200us",
                     r"{MESSAGE bytes 5}", r"{RTS handle 33450000 length 2788 bytes 4}", r"{PULL transfer 00010000 handle 33450000 offset 0 length 2788 limit 2788}",
                     r"{DONE transfer 00020000 status bad range}", r"DATA #\d+ ack \d+\+\d+ age \d+us .* transfer 00010000 at 1344 1344 B \[ACK",
                     r"ACK #\d+ ack 4\+0 .* -1\+2 ", r"AGAIN", r"NACK conn 00000000 session [0-9a-f]{8} reason no session of 00030004"):
            self.assertRegex(text, re.compile(part, re.M))


class Choice(Dump):
    packets = Golden.packets

    def test_count_port_and_ethertype(self):
        capture = captures.pcap(self.packets)
        self.assertEqual(len(self.dump(capture, "--count", "3")[0]), 3)
        of_port = [frame for _, frame in FRAMES if b"\7\0" in (frame[2:4], frame[4:6])]
        self.assertEqual(len(of_port), len(FRAMES) - 1)  # a question for a name is for no port
        self.assertEqual(len(self.dump(capture, "--port", "7")[0]), len(of_port))
        self.assertEqual(self.dump(capture, "--port", "8")[0], [])
        self.assertEqual(self.dump(capture, "--ethertype", "0x88b6")[0], [])
        other = captures.pcap([captures.ethernet(end, frame, ethertype=0x88B6) for end, frame in FRAMES])
        self.check_golden(self.json(other, "--ethertype", "0x88b6"))

    def test_what_is_written_is_what_was_read(self):
        for capture in (captures.pcap(self.packets), captures.pcapng(self.packets, ">"),
                        captures.pcap([captures.cooked2(end, frame) for end, frame in FRAMES], link=captures.COOKED2),
                        captures.pcap(self.packets, snap=70)):
            path = self.file("copy.pcap")
            told = self.json(capture, "--write", path)
            copy = pathlib.Path(path).read_bytes()
            self.assertEqual(self.json(copy), told)
            self.assertEqual([json.loads(line) for line in self.run_command("dump", path, "--json", "--payload").stdout.splitlines()], told)
        self.json(captures.pcap([captures.ethernet("client", FRAMES[0][1], ethertype=0x0806)]), "--write", path)
        self.assertEqual(len(pathlib.Path(path).read_bytes()), 24)  # a whole capture of nothing

    def test_the_file_that_is_read_is_not_written_whatever_it_is_called(self):
        path = self.file("read.pcap")
        capture = captures.pcap(self.packets)
        pathlib.Path(path).write_bytes(capture)
        names = {"symlink": self.file("symlink.pcap"), "link": self.file("link.pcap")}
        os.symlink(path, names["symlink"])
        os.link(path, names["link"])
        for name in (os.path.join(os.path.dirname(path), ".", "read.pcap"), *names.values()):
            done = self.run_command("dump", path, "--write", name, expect=1)
            self.assertIn("is what is read; give --write a file of its own", done.stderr)
            self.assertEqual(pathlib.Path(path).read_bytes(), capture)
        # A file that is not there leaves what was written before.
        kept = self.file("kept.pcap")
        pathlib.Path(kept).write_bytes(capture)
        self.run_command("dump", "/nowhere/none.pcap", "--write", kept, expect=1)
        self.assertEqual(pathlib.Path(kept).read_bytes(), capture)

    def test_a_capture_of_two_links_cannot_be_written_as_one(self):
        capture = captures.section("<") + captures.interface("<") + captures.interface("<", link=captures.COOKED2) + \
            captures.enhanced("<", self.packets[0], 1) + captures.enhanced("<", captures.cooked2(*FRAMES[0]), 2, number=1)
        self.assertEqual(len(self.json(capture)), 2)
        _, errors = self.dump(capture, "--write", self.file("copy.pcap"), expect=1)
        self.assertIn("link type 276 after those of 1", errors)

    def test_usage_errors_name_flag_and_example(self):
        for flag, value, arguments in (("FROM", "", []), ("--count", "none", ["-", "-c", "none"]), ("--port", "65536", ["-", "--port", "65536"]),
                                       ("--ethertype", "0x100", ["-", "--ethertype", "0x100"]), ("FROM", "b", ["b", "-r", "a"]),
                                       ("--udp-port", "4799x", ["-", "--udp-port", "4799x"]), ("--promiscuous", "-", ["-", "--promiscuous"])):
            done = self.run_command("dump", *arguments, expect=2)
            for part in (flag, value, "example"):
                self.assertIn(part, done.stderr)
        done = self.run_command("dump", "/nowhere/a.pcap", expect=1)
        self.assertIn("'/nowhere/a.pcap' cannot be read: No such file", done.stderr)


class Damage(Dump):
    data = next(frame for end, frame in FRAMES if frame[0] & 31 == 9)

    def test_each_byte_of_a_header_is_watched_and_named(self):
        size = 40 + decode.EXTENSION["DATA"]
        packets = []
        for at in range(size):
            bad = bytearray(self.data)
            bad[at] ^= 0x40
            packets.append(captures.ethernet("client", bytes(bad)))
        told = self.json(captures.pcap(packets))
        self.assertEqual(len(told), size)
        for at, said in enumerate(told):
            self.assertIn("damaged", said, at)
            self.assertTrue(said["problem"])
            self.assertNotIn("type", said)  # nothing is believed of it
        self.assertEqual({said["damaged"] for said in told}, {"version", "flags", "length", "header_crc"})

    def test_a_wrong_payload_is_named_and_the_header_told(self):
        bad = bytearray(self.data)
        bad[-1] ^= 1
        said, = self.json(captures.pcap([captures.ethernet("client", bytes(bad))]))
        self.assertEqual((said["damaged"], said["type"]), ("payload_crc", "DATA"))
        lines, errors = self.dump(captures.pcap([captures.ethernet("client", bytes(bad))]))
        self.assertRegex(lines[0], r"DAMAGED payload checksum [0-9a-f]{8} is wrong")
        self.assertIn("1 frames, 1 damaged", errors)

    def test_congestion_marks_are_no_damage(self):
        marked = bytearray(self.data)
        marked[1] |= 1
        said, = self.json(captures.pcap([captures.ethernet("client", bytes(marked))]))
        self.assertNotIn("damaged", said)
        self.assertIn("CE", said["flags"])

    def test_runts_are_damaged_and_short_captures_are_cut(self):
        runts = captures.pcap([captures.CLIENT_MAC + captures.SERVER_MAC + b"\x88\xb5" + self.data[:length] for length in range(40)])
        told = self.json(runts)
        self.assertEqual({said["damaged"] for said in told}, {"runt"})
        self.assertEqual(len(told), 40)
        for snap in range(14, 14 + len(self.data)):
            said, = self.json(captures.pcap([captures.ethernet("client", self.data)], snap=snap)) if snap % 23 == 0 or snap < 75 else [None]
            if said is None:
                continue
            self.assertTrue(said["cut"], snap)
            self.assertNotIn("damaged", said)
            self.assertEqual("type" in said, snap >= 14 + 40 + 16, snap)
        lines, errors = self.dump(captures.pcap([captures.ethernet("client", self.data)], snap=100))
        self.assertIn("CUT 30 of ", lines[0])
        self.assertIn("1 cut by the capture", errors)
        _, errors = self.dump(captures.pcap([captures.ethernet("client", self.data)], snap=10))
        self.assertIn("1 packets cut before it can be told", errors)

    def test_only_padding_that_is_missing_is_no_cut(self):
        ping = next(frame for _, frame in FRAMES if frame[0] & 31 == 7)
        packet = captures.ethernet("client", ping)
        self.assertGreater(len(packet), 14 + len(ping))
        told = [self.json(captures.pcap([packet], snap=14 + len(ping) - less))[0].get("cut", False) for less in (0, 1)]
        self.assertEqual(told, [False, True])

    def test_a_simple_packet_is_as_long_as_its_interface_keeps(self):
        packet = captures.ethernet(*FRAMES[0])
        capture = captures.section("<") + captures.interface("<", snap=77) + \
            captures.block("<", 3, captures.struct.pack("<I", len(packet)) + packet[:80])
        self.assertEqual(self.json(capture)[0]["captured_bytes"], 77 - 14)

    def test_bytes_after_a_datagram_are_not_of_it(self):
        frame = FRAMES[0][1]
        packet = bytearray(captures.ipv4("client", frame + b"trailer"))
        packet[24:26] = (8 + len(frame)).to_bytes(2, "big")
        for trailer in (b"", bytes(9)):
            said, = self.json(captures.pcap([captures.in_ethernet(bytes(packet) + trailer)]))
            self.assertEqual(said["bytes"], len(frame))
        said, = self.json(captures.pcap([captures.in_ethernet(captures.ipv4("client", frame)) + bytes(9)]))
        self.assertEqual(said["bytes"], len(frame))

    def test_a_file_that_ends_too_early_tells_all_before_and_says_where(self):
        packets = [captures.ethernet(end, frame) for end, frame in FRAMES[:4]]
        for capture in (captures.pcap(packets), captures.pcapng(packets)):
            lengths = sorted({*range(0, 60), *range(60, len(capture), 29)})
            for length in lengths:
                lines, errors = self.either(capture[:length])
                self.assertLessEqual(len(lines), 4)
                if "kCorrupt" in errors:
                    self.assertRegex(errors, r"after \d packets, at byte \d+: the file (ends within|is empty)")
        self.assertIn("after 3 packets", self.either(captures.pcap(packets)[:-1])[1])

    def either(self, capture):
        done = subprocess.run([command.BINARY, "dump", "-"], input=capture, capture_output=True, timeout=command.LIMIT_SECONDS,
                              env=command.environment(), check=False)
        errors = done.stderr.decode("ascii")
        self.assertEqual(done.returncode, 1 if "kCorrupt" in errors else 0, errors)
        return done.stdout.splitlines(), errors

    def test_hostile_lengths_are_named_and_cost_nothing(self):
        packet = captures.ethernet(*FRAMES[0])
        head = captures.section("<") + captures.interface("<")
        struct = captures.struct
        cases = {
            "neither pcap nor pcapng": b"\x7fELF" + bytes(60),
            "the file is empty": b"",
            "pcap version 3": captures.pcap([packet])[:4] + b"\3\0" + captures.pcap([packet])[6:],
            ": a packet of 4294967295 bytes": captures.pcap([]) + struct.pack("<IIII", 1, 1, 0xFFFFFFFF, 0xFFFFFFFF),
            "a packet's time": captures.pcap([]) + struct.pack("<IIII", 1, 1_000_000, 0, 0),
            "section without byte order": b"\n\r\r\n" + struct.pack("<I", 28) + bytes(20),
            "a section's header of 4294967292 bytes": b"\n\r\r\n" + struct.pack("<IIHHQ", 0xFFFFFFFC, 0x1A2B3C4D, 1, 0, 0) + bytes(20),
            "pcapng version 2": b"\n\r\r\n" + struct.pack("<IIHHQI", 28, 0x1A2B3C4D, 2, 0, 0, 28),
            "a block of 4 bytes": head + struct.pack("<II", 6, 4),
            "a block of 13 bytes": head + struct.pack("<II", 6, 13) + bytes(13),
            "a block of 4294967292 bytes": head + struct.pack("<II", 6, 0xFFFFFFFC) + bytes(40),
            "ends within a block of 4294967292 bytes": head + struct.pack("<II", 0x999, 0xFFFFFFFC) + bytes(40),
            "a block's two lengths differ": head + struct.pack("<II", 5, 16) + bytes(4) + struct.pack("<I", 20),
            "of interface 1, of which nothing was said": head + captures.enhanced("<", packet, 0, number=1),
            "of interface 0, of which nothing was said": captures.section("<") + captures.simple("<", packet),
            "bytes in a smaller block": head + captures.block("<", 6, struct.pack("<IIIII", 0, 0, 0, 400, 400) + bytes(60)),
            "after 1 packets, at byte 296: a packet of interface 0": head + captures.enhanced("<", bytes(60), 0) + captures.section("<") +
            captures.enhanced("<", bytes(60), 0),
            "a packet's block of 16 bytes": head + captures.block("<", 6, bytes(16)),
            "an interface's block of 4 bytes": captures.section("<") + captures.block("<", 1, bytes(4)),
            "an interface's option that goes beyond": captures.section("<") + captures.block("<", 1, struct.pack("<HHIHH", 1, 0, 0, 9, 500)),
        }
        for why, capture in cases.items():
            with self.subTest(why=why):
                lines, errors = self.dump(capture, expect=1)
                self.assertEqual(lines, [])
                self.assertIn(why, errors)

    def test_nonsense_in_streams_is_named_once(self):
        end, frame = next((end, frame) for end, frame in FRAMES if frame[0] & 31 == 8)
        # An EAGER frame whose record is of no kind, with checksums that are right.
        bad = bytearray(frame)
        bad[40 + 8 + 3] = 77
        bad[32:36] = decode.crc32c(bytes(bad[48:])).to_bytes(4, "little")
        bad[28:32] = bytes(4)
        bad[28:32] = decode.crc32c(bytes(bad[:48])).to_bytes(4, "little")
        said, = self.json(captures.pcap([captures.ethernet(end, bytes(bad))]))
        self.assertEqual([record["record"] for record in said["records"]], ["NONSENSE"])


if __name__ == "__main__":
    command.main()
