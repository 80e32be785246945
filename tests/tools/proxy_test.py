#!/usr/bin/env python3
"""`sluice proxy`: two of them between programs and a service, over each path and kind of socket, while either end fails."""
import itertools
import json
import os
import queue
import resource
import select
import signal
import socket
import subprocess
import threading
import time

import command
from proxy_pair import MIB, PATIENCE, PIECE, Proxy, ProxyTest, Service, digest_of, echo, receive_all, send_all


class Carried(ProxyTest):
    def check_path(self, at, path):
        _, server, client, place = self.pair(at=at)
        self.both_ways(place, 64 * MIB)
        self.assertRegex(client.stop(self), r"1 connections \(most at once 1, reset 0\), 64 MiB out, 64 MiB in, by " + path)
        self.assertRegex(server.stop(self), r"1 connections \(most at once 1, reset 0\), 64 MiB out, 64 MiB in, by " + path)

    def test_64_mib_both_ways_over_shared_memory(self):
        self.check_path("sluice://127.0.0.1:0", "shm")

    def test_64_mib_both_ways_over_tcp(self):
        self.check_path("tcp://127.0.0.1:0", "tcp")

    def test_64_mib_both_ways_from_and_to_unix_sockets(self):
        service = self.service(place=f"unix:{self.place}/service")
        server, to = self.server(service.place)
        client, place = self.client(to, listen=f"unix:{self.place}/programs")
        self.assertEqual(os.stat(place[5:]).st_mode & 0o777, 0o600)
        self.both_ways(place, 64 * MIB)
        client.stop(self)
        server.stop(self)
        self.assertEqual(os.listdir(self.place), ["service"], "the client's socket file is left")

    def test_over_shared_memory_pieces_are_not_copied_by_sluice(self):
        service = self.service()
        server, to = self.server(service.place)
        client = Proxy(self, "--listen", f"unix:{self.place}/p", "--to", to, "--json")
        self.until(lambda: os.path.exists(f"{self.place}/p"), "no socket")
        self.both_ways(f"unix:{self.place}/p", 16 * MIB)
        told = json.loads(client.stop(self))
        self.assertEqual((told["schema"], told["path"], told["connections"]), ("sluice.proxy/1", "shm", 1))
        self.assertEqual((told["bytes_out"], told["bytes_in"]), (16 * MIB, 16 * MIB))
        self.assertGreater(told["piece_bytes"], 8 * MIB)
        self.assertEqual((told["copied_bytes"], told["kernel_copied_bytes"], told["lies"]), (0, 0, 0))
        server.stop(self)

    def test_200_connections_at_once(self):
        _, server, client, place = self.pair()
        before = server.descriptors(), client.descriptors()
        connections = [self.connect(place) for _ in range(200)]
        for number, connection in enumerate(connections):
            connection.sendall(b"%06d" % number * 4000)
        for number, connection in enumerate(connections):
            wanted, got = b"%06d" % number * 4000, b""
            while len(got) < len(wanted):
                got += connection.recv(MIB)
            self.assertEqual(got, wanted)
        for connection in connections:
            connection.close()
        self.until(lambda: (server.descriptors(), client.descriptors()) == before, "descriptors are left")
        self.assertIn("200 connections (most at once 200, reset 0)", client.stop(self))
        self.assertIn("200 connections (most at once 200, reset 0)", server.stop(self))

    def test_short_connections_leave_nothing(self):
        _, server, client, place = self.pair()
        before = server.descriptors(), client.descriptors()
        for _ in range(500):
            self.asks_and_gets(place).close()
        self.until(lambda: (server.descriptors(), client.descriptors()) == before, "descriptors are left")
        self.assertIn("500 connections (most at once", client.stop(self))

    def test_the_end_of_one_direction_is_carried_and_the_other_goes_on(self):
        def answers_after_the_end(connection):
            _, length = receive_all(connection)
            connection.sendall(b"%d" % length * 1000)
        _, _, _, place = self.pair(answers_after_the_end)
        connection = self.connect(place)
        send_all(connection, 3 * MIB)
        self.assertEqual(receive_all(connection)[1], len(b"%d" % (3 * MIB)) * 1000)

    def test_what_a_program_sent_before_it_left_arrives(self):
        got = queue.Queue()
        _, _, _, place = self.pair(lambda connection: got.put(receive_all(connection)))
        connection = self.connect(place)
        send_all(connection, 2 * MIB)
        connection.close()
        self.assertEqual(got.get(timeout=PATIENCE), (digest_of(2 * MIB), 2 * MIB))


class Bounded(ProxyTest):
    def test_a_reader_that_stops_stops_the_writer_and_memory_stays_bounded(self):
        go_on, got = threading.Event(), queue.Queue()
        self.addCleanup(go_on.set)

        def reads_late(connection):
            go_on.wait(PATIENCE)
            got.put(receive_all(connection))
        for at in ("sluice://127.0.0.1:0", "tcp://127.0.0.1:0"):
            _, server, client, place = self.pair(reads_late, at=at)
            before = server.resident(), client.resident()
            connection = self.connect(place)
            connection.settimeout(1)
            sent = 0
            with self.assertRaises(TimeoutError, msg="the writer is not stopped"):
                while sent < 512 * MIB:
                    sent += connection.send(PIECE)
            self.assertLess(sent, 64 * MIB)
            for proxy, was in zip((server, client), before):
                self.assertLess(proxy.resident() - was, 16 * MIB, at)
            connection.settimeout(PATIENCE)
            go_on.set()
            connection.shutdown(socket.SHUT_WR)
            self.assertEqual(got.get(timeout=PATIENCE)[1], sent)
            client.stop(self)
            server.stop(self)
            go_on.clear()

    def test_of_two_windows_the_smaller_counts(self):
        for here, there in (("64K", "64M"), ("64M", "64K")):
            service = self.service()
            server, to = self.server(service.place, "sluice://127.0.0.1:0", "--window", there, "--connections", "4")
            client, place = self.client(to, "--window", here, "--connections", "4")
            self.both_ways(place, 8 * MIB)
            client.stop(self)
            server.stop(self)

    def test_more_connections_than_allowed_are_refused(self):
        _, server, client, place = self.pair(more=("--connections", "3"))
        kept = [self.asks_and_gets(place) for _ in range(3)]
        self.assertTrue(self.is_refused(place))
        client.line("refused: 3 are open, the most that --connections allows")
        kept.pop().close()
        self.until(lambda: not self.is_refused(place), "the place is not given back")
        self.assertRegex(client.stop(self), r"refused: other proxy away 0, too many \d+, service absent 0")
        server.stop(self)

    def test_the_server_refuses_more_than_it_allows(self):
        service = self.service()
        server, to = self.server(service.place, "sluice://127.0.0.1:0", "--connections", "2")
        client, place = self.client(to)
        kept = [self.asks_and_gets(place) for _ in range(2)]
        self.assertTrue(self.is_refused(place))
        client.line("refused: the other proxy has as many connections as it takes")
        self.assertEqual(len(kept), 2)
        self.assertIn("too many 1", client.stop(self))
        self.assertIn("too many 1", server.stop(self))


class Failing(ProxyTest):
    def test_an_absent_service_is_told_by_a_reset(self):
        service = Service("127.0.0.1:0", echo)
        service.stop()
        server, to = self.server(service.place)
        client, place = self.client(to)
        self.assertTrue(self.is_refused(place))
        client.line("a connection is refused: the service cannot be reached")
        server.line("a connection is refused: nobody answers at " + service.place)
        # Later it is there.
        again = Service(service.place, echo)
        self.addCleanup(again.stop)
        self.asks_and_gets(place)
        self.assertIn("service absent 1", client.stop(self))
        self.assertIn("service absent 1", server.stop(self))

    def test_a_lack_of_descriptors_is_told_as_such(self):
        _, server, client, place = self.pair()
        kept = self.asks_and_gets(place)
        process = server.process.pid
        taken = {int(name) for name in os.listdir(f"/proc/{process}/fd")}
        before = resource.prlimit(process, resource.RLIMIT_NOFILE)
        resource.prlimit(process, resource.RLIMIT_NOFILE, (next(fd for fd in itertools.count() if fd not in taken), before[1]))
        self.assertTrue(self.is_refused(place))
        server.line("a connection is refused: no socket: Too many open files; raise the limit of open files")
        resource.prlimit(process, resource.RLIMIT_NOFILE, before)
        self.asks_and_gets(place)
        kept.close()
        client.stop(self)
        server.stop(self)

    def test_connections_that_find_a_service_busy_wait_for_it(self):
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.settimeout(PATIENCE)
        listener.bind(f"{self.place}/service")
        listener.listen(0)
        server, to = self.server(f"unix:{self.place}/service")
        client, place = self.client(to)
        connections = [self.connect(place) for _ in range(10)]
        for number, connection in enumerate(connections):
            connection.sendall(b"%d" % number)
        select.select([], [], [], 0.3)  # they are on their way; a refusal would be, too
        for _ in connections:
            served, _ = listener.accept()
            with served:
                served.settimeout(PATIENCE)
                served.sendall(served.recv(100))
        self.assertEqual([connection.recv(100) for connection in connections], [b"%d" % number for number in range(10)])
        client.stop(self)
        self.assertNotIn("refused", server.stop(self))

    def test_an_answer_from_before_the_service_closed_arrives(self):
        answer = PIECE[:350_000]  # more than the program's socket and a window hold
        closed = threading.Event()

        def answers_and_leaves(connection):
            connection.sendall(answer)
            connection.close()
            closed.set()
        service = self.service(answers_and_leaves, f"unix:{self.place}/service")
        for at in ("sluice://127.0.0.1:0", "tcp://127.0.0.1:0"):
            closed.clear()
            server, to = self.server(service.place, at, "--window", "64K")
            client, place = self.client(to, "--window", "64K", listen=f"unix:{self.place}/programs")
            connection = self.connect(place)
            self.assertTrue(closed.wait(PATIENCE))
            connection.sendall(b"question")
            select.select([], [], [], 0.3)  # until the service's end is found by a write
            got = b""
            with self.assertRaises(ConnectionResetError):
                while data := connection.recv(MIB):
                    got += data
                raise ConnectionResetError  # of a Unix socket it may be an end
            self.assertEqual((len(got), got == answer), (len(answer), True), at)
            self.assertIn("reset 1", client.stop(self))
            self.assertIn("reset 1", server.stop(self))

    def test_a_program_that_does_not_read_is_told_of_a_service_that_left(self):
        def answers_and_leaves(connection):
            connection.setblocking(False)
            try:
                while True:
                    connection.send(PIECE)
            except BlockingIOError:
                pass
        service = self.service(answers_and_leaves, f"unix:{self.place}/service")
        server, to = self.server(service.place, "sluice://127.0.0.1:0", "--window", "64K")
        client, place = self.client(to, "--window", "64K", listen=f"unix:{self.place}/programs")
        connection = self.connect(place)
        with self.assertRaises((BrokenPipeError, ConnectionResetError)):
            while True:
                connection.sendall(PIECE)
        client.stop(self)
        server.stop(self)

    def test_peers_that_are_silent_while_they_are_sent_away_stop_nobody(self):
        service = self.service()
        server, to = self.server(service.place, "tcp://127.0.0.1:0")
        before = server.descriptors()
        strangers = [self.start("perf", "send_lat", to) for _ in range(4)]
        for stranger in strangers:
            self.addCleanup(stranger.stdout.close)
        self.until(lambda: server.descriptors() >= before + len(strangers), "they do not come")
        select.select([], [], [], 1)
        for stranger in strangers:
            stranger.send_signal(signal.SIGSTOP)
        server.line("says no HELLO of a proxy")
        begin = time.monotonic()
        client, place = self.client(to)
        self.asks_and_gets(place)
        self.assertLess(time.monotonic() - begin, 5, "each takes 2 s of all others' time")
        client.stop(self)
        server.stop(self)

    def test_what_fails_later_does_not_end_a_client(self):
        secret = f"{self.place}/secret"
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.urandom(32).hex().encode())
        client = Proxy(self, "--listen", "127.0.0.1:0", "--to", "l2://udp/127.0.0.1:1", "--secret-file", secret)
        client.line("no way to")
        os.truncate(secret, 0)
        client.line("no way to .*secret")
        client.stop(self)

    def test_the_other_proxy_is_killed_and_started_again(self):
        service = self.service()
        server, to = self.server(service.place)
        client, place = self.client(to)
        connection = self.asks_and_gets(place)
        server.process.kill()
        server.process.wait(PATIENCE)
        with self.assertRaises(ConnectionResetError):
            while connection.recv(100):
                pass
        client.line("no way to")
        self.assertTrue(self.is_refused(place))
        client.line("a connection is refused: the other proxy is away")
        server, _ = self.server(service.place, to)
        client.line("connected to")
        self.asks_and_gets(place)
        self.assertIn("other proxy away 1", client.stop(self))
        server.stop(self)

    def test_a_proxy_started_before_the_other_connects_later(self):
        service = self.service()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        client = Proxy(self, "--listen", "127.0.0.1:0", "--to", f"sluice://127.0.0.1:{port}")
        client.line("no way to")
        place = client.where()
        server, _ = self.server(service.place, f"sluice://127.0.0.1:{port}")
        client.line("connected to")
        self.asks_and_gets(place)
        client.stop(self)
        server.stop(self)

    def test_a_service_that_resets_in_the_middle_resets_the_program(self):
        def resets(connection):
            connection.recv(100)
            connection.sendall(PIECE)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        _, server, client, place = self.pair(resets)
        connection = self.connect(place)
        connection.sendall(b"question")
        with self.assertRaises(ConnectionResetError):
            while connection.recv(MIB):
                pass
        self.assertIn("reset 1", client.stop(self))
        self.assertIn("reset 1", server.stop(self))

    def test_a_program_killed_in_the_middle_ends_at_the_service(self):
        ended = queue.Queue()

        def writes_for_ever(connection):
            try:
                while True:
                    connection.sendall(PIECE)
            except OSError as error:
                ended.put(error)
        _, server, client, place = self.pair(writes_for_ever)
        connection = self.connect(place)
        self.assertTrue(connection.recv(MIB))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        self.assertIsInstance(ended.get(timeout=PATIENCE), OSError)
        client.stop(self)
        server.stop(self)


class Ends(ProxyTest):
    def test_an_idle_end_by_time_leaves_nothing(self):
        service = self.service()
        server, to = self.server(service.place)
        client, _ = self.client(to, "--for", "0.5", listen=f"unix:{self.place}/p")
        self.assertEqual(client.process.wait(PATIENCE), 0)
        self.assertEqual(os.listdir(self.place), [])
        server.line("the connection to .* ended")
        server.stop(self, signal.SIGINT)

    def test_an_end_waits_for_open_connections_and_takes_nobody_new(self):
        _, server, client, place = self.pair(more=("--grace", "1000"))
        connection = self.asks_and_gets(place)
        client.process.send_signal(signal.SIGTERM)
        self.until(lambda: self.is_refused(place), "it goes on taking connections")
        connection.sendall(b"more")
        self.assertEqual(connection.recv(100), b"more")
        connection.close()
        self.assertEqual(client.process.wait(PATIENCE), 0)
        server.stop(self)

    def test_a_server_that_ends_waits_for_open_connections_and_takes_nobody_new(self):
        service = self.service()
        server, to = self.server(service.place, "sluice://127.0.0.1:0", "--grace", "1000")
        client, place = self.client(to)
        connection = self.asks_and_gets(place)
        server.process.send_signal(signal.SIGTERM)
        self.until(lambda: self.is_refused(place), "it goes on taking connections")
        client.line("a connection is refused: the other proxy ends")
        connection.sendall(b"more")
        self.assertEqual(connection.recv(100), b"more")
        connection.close()
        self.assertEqual(server.process.wait(PATIENCE), 0)
        self.assertRegex(server.stop(self), "service absent 0, at the end [1-9]")
        client.stop(self)

    def test_a_proxy_whose_time_is_over_sleeps_while_it_waits(self):
        def processor_seconds(process):
            with open(f"/proc/{process.pid}/stat", encoding="utf-8") as file:
                return sum(map(int, file.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")
        service = self.service()
        server, to = self.server(service.place)
        client, place = self.client(to, "--for", "3", "--grace", "1000")
        connection = self.asks_and_gets(place)
        self.until(lambda: self.is_refused(place), "it goes on taking connections")
        before = processor_seconds(client.process)
        select.select([], [], [], 1)
        self.assertLess(processor_seconds(client.process) - before, 0.2)
        connection.close()
        self.assertEqual(client.process.wait(PATIENCE), 0)
        server.stop(self)

    def test_output_that_nobody_takes_ends_no_proxy(self):
        proxy = ("proxy", "--at", "sluice://127.0.0.1:0", "--service", "127.0.0.1:1", "--for", "0.2")
        with open("/dev/full", "wb") as full:
            done = subprocess.run([command.BINARY, *proxy, "--json"], stdout=subprocess.PIPE, stderr=full, check=False, timeout=PATIENCE)
            self.assertEqual((done.returncode, json.loads(done.stdout)["links"]), (0, 0))
            done = subprocess.run([command.BINARY, *proxy], stdout=full, check=False, timeout=PATIENCE)
            self.assertEqual(done.returncode, 1)  # nobody has its totals

    def test_a_second_signal_does_not_wait(self):
        _, server, client, place = self.pair(more=("--grace", "1000"))
        connection = self.asks_and_gets(place)
        client.process.send_signal(signal.SIGTERM)
        self.until(lambda: self.is_refused(place), "it goes on taking connections")
        client.process.send_signal(signal.SIGTERM)
        self.assertEqual(client.process.wait(PATIENCE), 0)
        with self.assertRaises(ConnectionResetError):
            connection.recv(100)
        server.stop(self)

    def test_a_stale_socket_file_is_replaced_and_a_used_one_is_not(self):
        path = f"{self.place}/p"
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(path)
        service = self.service()
        _, to = self.server(service.place)
        client, _ = self.client(to, listen=f"unix:{path}")
        done = self.run_command("proxy", "--listen", f"unix:{path}", "--to", to, expect=1)
        self.assertIn("cannot listen at unix:", done.stderr)
        self.assertIn("another program listens there: end it, or choose another place", done.stderr)
        self.assertTrue(os.path.exists(path))
        client.stop(self)

    def test_a_place_that_cannot_be_says_what_to_do(self):
        for listen, part in ((f"unix:{self.place}/missing/p", "make the folder first"),
                             ("203.0.113.7:0", "no interface of this machine has that address"),
                             ("nobody.invalid:7", "check its spelling, or give its IP address")):
            done = self.run_command("proxy", "--listen", listen, "--to", "tcp://127.0.0.1:1", expect=1)
            self.assertIn(part, done.stderr)
        done = self.run_command("proxy", "--at", "sluice://127.0.0.1:0", "--service", "127.0.0.1:1", "--secret-file", f"{self.place}/none", expect=1)
        self.assertIn("it cannot be opened; make one with", done.stderr)

    def test_what_cannot_mend_itself_ends_a_client_before_it_listens(self):
        secret = f"{self.place}/secret"
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.urandom(32).hex().encode())
        others = f"{self.place}/others"
        with open(os.open(others, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.urandom(32).hex().encode())
        os.chmod(others, 0o644)
        for to, file, part in (("tcp://127.0.0.1:1", secret, "goes unencrypted"), ("l2://udp/127.0.0.1:1", others, "chmod 600"),
                               ("l2://udp/127.0.0.1:1", f"{self.place}/none", "it cannot be opened; make one with")):
            done = self.run_command("proxy", "--listen", f"unix:{self.place}/p", "--to", to, "--secret-file", file, expect=1)
            self.assertIn(part, done.stderr)
            self.assertNotIn("trying again", done.stderr + done.stdout)

    def test_both_ends_can_share_a_secret(self):
        secret = f"{self.place}/secret"
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.urandom(32).hex().encode())
        service = self.service()
        server, to = self.server(service.place, "sluice://127.0.0.1:0", "--secret-file", secret)
        client, place = self.client(to, "--secret-file", secret)
        self.asks_and_gets(place)
        done = self.run_command("proxy", "--at", "sluice://127.0.0.1:0", "--service", service.place, "--secret-file", secret, "--for", "0.1")
        self.assertIn("no other host gets in", done.stdout + done.stderr)
        # A path that is not encrypted is refused with one.
        done = self.run_command("proxy", "--at", "tcp://127.0.0.1:0", "--service", service.place, "--secret-file", secret, expect=1)
        self.assertIn("unencrypted", done.stderr)

    def test_wrong_command_lines_say_what_is_right(self):
        for arguments, part in ((("--listen", "1"), "give --listen and --to"),
                                (("--listen", "1", "--at", "tcp://127.0.0.1:0"), "give --listen and --to"),
                                (("--listen", "1", "--to", "tcp://h:1", "--window", "1"), "64K to 256M"),
                                (("--listen", "1", "--to", "tcp://h:1", "--for", "nan"), "--for: it takes more than 0"),
                                (("--listen", "1", "--to", "tcp://h:1", "--for", "1e10"), "--for: it takes more than 0"),
                                (("--listen", "1", "--to", "tcp://h:1", "--grace", "nan"), "--grace: it takes 0 to 100000000"),
                                (("--listen", "1", "--to", "tcp://h:1", "--grace", "1e10"), "--grace: it takes 0 to 100000000"),
                                (("--listen", "1", "--to", "tcp://h:1", "--connections", "100000"), "fewer --connections")):
            done = self.run_command("proxy", *arguments, expect=2)
            self.assertIn(part, done.stderr)
            self.assertIn("example: sluice proxy", done.stderr)
        for arguments, part in ((("--listen", "nowhere", "--to", "tcp://127.0.0.1:1"), "neither HOST:PORT, PORT"),
                                (("--listen", "65536", "--to", "tcp://127.0.0.1:1"), "at most 65535"),
                                (("--listen", "0", "--to", "http://h:1"), "http"),
                                (("--at", "tcp://127.0.0.1:0", "--service", "unix:" + "x" * 200), "1 to 107 bytes")):
            self.assertIn(part, self.run_command("proxy", *arguments, expect=1).stderr)


if __name__ == "__main__":
    command.main()
