#!/usr/bin/env python3
"""`sluice doctor`: it finds what was planted, names the remedy, and has nothing to say against a healthy machine.

Works in a network namespace of its own.
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

import command
import wire

OF_TEST_PROGRAMS = ("SLUICE_BENCH_COUNTERS", "SLUICE_COLLECTIVE_", "SLUICE_CONTRACT_", "SLUICE_FILE_MIB", "SLUICE_HOSTILE_", "SLUICE_KILL_",
                    "SLUICE_RELAY_", "SLUICE_REVOCATIONS", "SLUICE_REVOKE_", "SLUICE_WIRE_")
HEALTHY = {"SLUICE_ARENA_LIMIT": "64M"}


class Doctor(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.wire = wire.Wire()
        self.addCleanup(self.wire.close)
        wire.ip("address", "add", "192.0.2.1/24", "dev", "left")
        wire.ip("address", "add", "192.0.2.2/24", "dev", "right", within=self.wire.there)
        self.addCleanup(shutil.rmtree, os.path.join(self.folder, "cache"), True)

    def doctor(self, *arguments, within=(), log_lines=0, **extra):
        """{check: finding}, of several the worst; what the exit code and the lines say is compared with them."""
        settings = {**HEALTHY, "SLUICE_CACHE_DIR": os.path.join(self.folder, "cache"), **extra}
        done = subprocess.run([*within, command.BINARY, "doctor", "--json", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=command.LIMIT_SECONDS, env=command.environment(**settings), check=False)
        if log_lines is not None:
            self.assertEqual(len(done.stderr.splitlines()), log_lines, done.stderr)
        said = json.loads(done.stdout)
        self.assertEqual(said["schema"], "sluice.doctor/1")
        problems = [finding["check"] for finding in said["findings"] if finding["severity"] == "problem"]
        self.assertEqual((done.returncode, said["problems"]), (1 if problems else 0, len(problems)), done.stdout)
        for finding in said["findings"]:
            self.assertTrue(finding["text"], finding)
            self.assertEqual(bool(finding["remedy"]), finding["severity"] != "ok", finding)
        order = ("ok", "note", "problem")
        return {finding["check"]: finding for finding in sorted(said["findings"], key=lambda finding: order.index(finding["severity"]))}

    def assert_problem(self, findings, check, *parts):
        self.assertIn(check, findings)
        finding = findings[check]
        self.assertEqual(finding["severity"], "problem", finding)
        for part in parts:
            self.assertIn(part, finding["text"] + "; " + finding["remedy"])

    def assert_only(self, findings, check, *parts):
        self.assertEqual([name for name, finding in findings.items() if finding["severity"] == "problem"], [check], findings)
        self.assert_problem(findings, check, *parts)

    def test_a_healthy_machine_has_no_problem_and_its_paths_were_tried(self):
        findings = self.doctor()
        self.assertEqual([finding for finding in findings.values() if finding["severity"] == "problem"], [])
        for path in ("shm", "tcp", "udp"):
            self.assertEqual(findings[path]["text"], f"64 KiB there and back by {path}, verified")

    def test_lines_for_people_say_what_to_do(self):
        done = self.run_command("doctor", expect=1, **{**HEALTHY, "SLUICE_ARENA_LIMT": "1G"})
        self.assertIn("SLUICE_ARENA_LIMT is set, and nothing reads it", done.stdout)
        self.assertIn("do: did you mean SLUICE_ARENA_LIMIT?", done.stdout)
        self.assertRegex(done.stdout.splitlines()[-1], r"^1 problem, \d+ notes?, \d+ checks passed$")

    def test_settings_that_nothing_reads_or_that_cannot_be_meant(self):
        self.assert_only(self.doctor(log_lines=1, SLUICE_PEER="x"), "variables", "SLUICE_PEERS")
        self.assert_only(self.doctor(SLUICE_RDMA_MODERATION="16"), "moderation", "16/8")
        self.assert_only(self.doctor(SLUICE_TUNING="spin=1"), "tuning", "SLUICE_TUNING", "example")
        self.assert_problem(self.doctor(SLUICE_ARENA_LIMIT="lots"), "context", "SLUICE_ARENA_LIMIT", "lots")

    def test_every_variable_that_the_program_reads_is_known(self):
        names = {name.decode() for name in re.findall(rb"\0(SLUICE_[A-Z0-9_]+)(?=\0)", pathlib.Path(command.BINARY).read_bytes())}
        # The command knows these for not warning of them, and reads none.
        names = {name for name in names if not name.startswith(OF_TEST_PROGRAMS) and name != "SLUICE_LAB"}
        self.assertIn("SLUICE_L2_SECRET_FILE", names)
        findings = self.doctor(log_lines=None, **{name: {"SLUICE_CACHE_DIR": "/1", "SLUICE_GRPC": "off", "SLUICE_L2_BULK": "frames", "SLUICE_LOG": "error", "SLUICE_RECORD": "/1", "SLUICE_TCP_ZEROCOPY": "0", "SLUICE_WAITING": "spin"}.get(name, "1") for name in names})
        self.assertEqual(findings["variables"]["text"], f"{len(names)} of sluice's are set")

    def test_an_arena_larger_than_the_machine(self):
        self.assert_only(self.doctor(SLUICE_ARENA_LIMIT="1023G"), "memory", "SLUICE_ARENA_LIMIT=")

    def test_measurements_that_are_damaged(self):
        cache = os.path.join(self.folder, "cache")
        self.run_command("tune", SLUICE_CACHE_DIR=cache)
        self.assertEqual(self.doctor()["tuning"]["text"], "measurements: read")
        file, = pathlib.Path(cache).iterdir()
        file.write_text("nonsense\n", encoding="ascii")
        self.assert_only(self.doctor(log_lines=1), "tuning", os.fspath(file), "sluice tune")

    def test_names_of_peers_that_cannot_be_read(self):
        peers = self.file("peers")
        pathlib.Path(peers).write_text("gpu7 not-a-mac\n", encoding="ascii")
        self.assert_only(self.doctor(SLUICE_PEERS=peers), "peers", peers)

    def test_few_open_files(self):
        self.assert_only(self.doctor(within=("prlimit", "--nofile=100:100")), "open-files", "100", "ulimit -n")

    def test_no_descriptor_to_look_for_an_interface(self):
        for files in range(5, 20):
            for finding in self.doctor(within=("prlimit", f"--nofile={files}:{files}"), log_lines=None).values():
                self.assertNotIn("there is no interface", finding["text"], files)

    def test_files_too_small_for_an_arena(self):
        findings = self.doctor(within=("prlimit", "--fsize=1000000"))
        self.assert_problem(findings, "file-size", "SIGXFSZ", "ulimit -f unlimited")
        self.assertIn("mend file-size", findings["context"]["remedy"])

    def test_too_few_addresses(self):
        findings = self.doctor(within=("prlimit", "--as=4000000000"), SLUICE_ARENA_LIMIT="6G")
        self.assert_problem(findings, "address-space", "ulimit -v unlimited", "SLUICE_ARENA_LIMIT=")

    def test_system_calls_that_a_sandbox_forbids(self):
        forbid = (sys.executable, "-B", os.path.join(os.path.dirname(os.path.abspath(__file__)), "forbid.py"))
        for call, number in (("memfd_create", 319), ("pidfd_open", 434)):
            with self.subTest(call):
                findings = self.doctor(within=(*forbid, str(number)), log_lines=None)
                self.assert_problem(findings, "system-calls", f"{call} is forbidden here", "seccomp profile")

    def test_a_dev_shm_of_a_container(self):
        small = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1M tmpfs /dev/shm && exec "$@"', "sh")
        findings = self.doctor(within=small)
        self.assertEqual(findings["dev-shm"]["severity"], "note", findings["dev-shm"])
        self.assertIn("--shm-size", findings["dev-shm"]["remedy"])
        self.assertEqual(findings["shm"]["severity"], "ok")

    def test_a_program_of_another_version(self):
        # A HELLO of version 7 (docs/wire.md): type, flags, header_bytes, payload_bytes, incarnation, magic, versions, zeros.
        hello = struct.pack("<BBHIQIHH", 1, 0, 96, 0, 7, 0x43554c53, 7, 7) + bytes(72)
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
            listener.settimeout(60)

            def answer():
                while True:
                    try:
                        peer = listener.accept()[0]
                    except OSError:
                        return  # the test is over
                    # The first look at the port may reset its connection.
                    with peer, contextlib.suppress(OSError):
                        peer.sendall(hello)
                        peer.recv(4096)

            threading.Thread(target=answer, daemon=True).start()
            self.assert_only(self.doctor(f"127.0.0.1:{listener.getsockname()[1]}"), "version", "we speak versions 1..1, the peer 7..7", "upgrade the older side")

    def test_a_path_that_is_needed_and_not_there(self):
        self.assertEqual(self.doctor()["kmod"]["severity"], "note")
        self.assert_only(self.doctor("--need", "shm,kmod"), "kmod", "modprobe sluice")
        if self.doctor()["rdma"]["severity"] == "note":
            self.assert_only(self.doctor("--need", "rdma"), "rdma", "sluice lab")

    def test_without_the_right_to_packet_sockets(self):
        without = ("setpriv", "--bounding-set=-net_raw")
        self.assertEqual(self.doctor(within=without)["l2"]["severity"], "note")
        self.assert_only(self.doctor("--need", "l2", within=without), "l2", "CAP_NET_RAW")

    def test_no_interface_that_carries_frames(self):
        wire.ip("link", "set", "left", "mtu", "1000")
        findings = self.doctor("--need", "l2")
        self.assert_only(findings, "interface", "sluice info --explain")
        findings = self.doctor()
        self.assertEqual(findings["interface"]["severity"], "note")
        self.assertIn("left", findings["interface"]["text"])

    def test_one_address_on_two_interfaces(self):
        wire.ip("link", "add", "twin", "type", "veth", "peer", "name", "other")
        self.addCleanup(wire.ip, "link", "del", "twin")
        wire.ip("address", "add", "192.0.2.1/24", "dev", "twin")
        self.assert_only(self.doctor(), "addresses", "192.0.2.1", "left", "twin")
        wire.ip("address", "del", "192.0.2.1/24", "dev", "twin")
        for device in ("left", "twin"):
            wire.ip("address", "add", "2001:db8::1/64", "dev", device, "nodad")
        self.assert_only(self.doctor(), "addresses", "2001:db8::1", "left", "twin")

    def test_loopback_that_is_down(self):
        wire.ip("link", "set", "lo", "down")
        self.addCleanup(wire.ip, "link", "set", "lo", "up")
        self.assert_problem(self.doctor(), "tcp", "ip link set lo up")

    def test_a_host_without_an_address_or_a_route(self):
        self.assert_only(self.doctor("nobody.invalid:7"), "name", "nobody.invalid")
        self.assert_only(self.doctor("198.51.100.1"), "route", "ip route get 198.51.100.1")

    def test_a_port_that_is_none_and_a_whole_address(self):
        self.assert_only(self.doctor("192.0.2.2:http"), "name", "'http' is no port")
        self.assert_only(self.doctor("192.0.2.2:70000"), "name", "65535")
        self.assert_only(self.doctor("tcp://192.0.2.2:7"), "port", "nobody listens at 192.0.2.2:7")

    def test_a_secret_that_cannot_be_read_is_the_cause_that_is_told(self):
        findings = self.doctor(SLUICE_L2_SECRET_FILE="/nowhere/secret")
        self.assert_problem(findings, "udp", "/nowhere/secret")
        self.assertNotIn("set lo up", findings["udp"]["remedy"])
        for name in ("tcp", "shm", "secret"):
            self.assert_problem(findings, name, "/nowhere/secret")

    def test_a_port_where_nobody_listens(self):
        findings = self.doctor("--need", "shm,tcp", "192.0.2.2:7")
        self.assert_only(findings, "port", "nobody listens at 192.0.2.2:7")
        self.assertEqual(findings["route"]["text"], "from 192.0.2.1 by left")

    def test_of_a_hosts_addresses_the_one_that_answers_counts(self):
        # As a name whose first address is IPv6, and a server that has IPv4 alone.
        hosts = self.file("hosts")
        pathlib.Path(hosts).write_text("2001:db8::1 both\n192.0.2.1 both\n", encoding="ascii")
        wire.ip("address", "add", "2001:db8::1/64", "dev", "left", "nodad")
        within = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts)
        with contextlib.closing(socket.create_server(("192.0.2.1", 0))) as listener:
            port = listener.getsockname()[1]
            findings = self.doctor(f"both:{port}", within=within)
        self.assertIn("2001:db8::1", findings["name"]["text"])
        self.assert_only(findings, "connection", "both")  # somebody answered, and did not greet
        self.assert_only(self.doctor(f"both:{port}", within=within), "port", "both")  # and now nobody listens

    def test_where_none_of_a_hosts_addresses_answers_the_best_one_says_why(self):
        hosts = self.file("hosts")
        pathlib.Path(hosts).write_text("2001:db8::9 both\n192.0.2.2 both\n", encoding="ascii")  # to the first there is no route
        within = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts)
        findings = self.doctor("both:7", within=within)
        self.assertIn("192.0.2.2", findings["name"]["text"])
        self.assert_only(findings, "port", "nobody listens at both:7")

    def test_a_firewall_that_drops(self):
        # The neighbour is known, so that the packets leave and nobody answers: as behind a firewall.
        wire.ip("neighbour", "replace", "192.0.2.9", "lladdr", "02:00:00:00:00:99", "dev", "left")
        self.assert_only(self.doctor("192.0.2.9:7"), "port", "no answer", "firewall")

    def test_a_program_that_speaks_something_else(self):
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
            listener.settimeout(60)

            def answer():
                for _ in range(4):
                    with contextlib.suppress(OSError), listener.accept()[0] as peer:
                        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)

            thread = threading.Thread(target=answer, daemon=True)
            thread.start()
            self.assert_only(self.doctor(f"127.0.0.1:{listener.getsockname()[1]}"), "connection", "did not greet us", "may not speak sluice")

    def test_a_program_that_uses_sluice(self):
        server = subprocess.Popen([*self.wire.there, command.BINARY, "perf", "send_lat", "--transport", "auto", "--port", "18777"], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, env=command.environment(**HEALTHY))
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("192.0.2.2", 18777), timeout=1):
                break
            time.sleep(0.02)
        findings = self.doctor("192.0.2.2:18777")
        self.assertEqual(findings["connection"]["severity"], "ok", findings)
        self.assertIn("by tcp", findings["connection"]["text"])

    def test_a_tunnel_on_the_way_is_told(self):
        wire.ip("route", "add", "198.51.100.0/24", "via", "192.0.2.2", "mtu", "1300")
        findings = self.doctor("198.51.100.1")
        self.assertEqual(findings["path-mtu"]["severity"], "note")
        self.assertIn("1300", findings["path-mtu"]["text"])

    def test_a_wrong_command_line(self):
        self.assertIn("bogus", self.run_command("doctor", "--need", "bogus", expect=2).stderr)


if __name__ == "__main__":
    command.main()
