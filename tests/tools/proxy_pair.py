"""What tests of `sluice proxy` share: a program's server, the command with the lines that it prints, and pairs of the two."""
import contextlib
import hashlib
import os
import queue
import re
import select
import signal
import socket
import tempfile
import threading
import time

import command

MIB = 1 << 20
# An upper bound on a hang, not on speed.
PATIENCE = 60
PIECE = os.urandom(MIB)


def digest_of(size):
    sum_ = hashlib.sha256()
    for _ in range(size // MIB):
        sum_.update(PIECE)
    return sum_.hexdigest()


class Service:
    """A program's server: `behave(connection)` in a thread for each that comes."""

    def __init__(self, place, behave):
        self.place, self.behave = place, behave
        family = socket.AF_UNIX if place.startswith("unix:") else socket.AF_INET
        self.listener = socket.socket(family, socket.SOCK_STREAM)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host, _, port = place.rpartition(":")
        self.listener.bind(place[5:] if family == socket.AF_UNIX else (host, int(port)))
        self.listener.listen(256)
        if family == socket.AF_INET:
            self.place = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.threads, self.connections, self.broken = [], [], []
        self.accepting = threading.Thread(target=self.accept)
        self.accepting.start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.settimeout(PATIENCE)
            self.connections.append(connection)
            self.threads.append(threading.Thread(target=self.serve, args=(connection,)))
            self.threads[-1].start()

    def serve(self, connection):
        with connection:
            try:
                self.behave(connection)
            except OSError as error:
                self.broken.append(error)

    def stop(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.accepting.join(PATIENCE)
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(PATIENCE)
        if self.place.startswith("unix:"):
            os.unlink(self.place[5:])


def echo(connection):
    while data := connection.recv(MIB):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def send_all(connection, size):
    for _ in range(size // MIB):
        connection.sendall(PIECE)
    connection.shutdown(socket.SHUT_WR)


def receive_all(connection):
    """Digest and length of all that comes."""
    sum_, length = hashlib.sha256(), 0
    while data := connection.recv(MIB):
        sum_.update(data)
        length += len(data)
    return sum_.hexdigest(), length


class Proxy:
    """The command, and the lines that it has printed."""

    def __init__(self, test, *arguments):
        self.process = test.start("proxy", *arguments)
        self.lines, self.told = queue.Queue(), []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        test.addCleanup(self.process.stdout.close)
        test.addCleanup(self.reader.join, PATIENCE)
        test.addCleanup(test.end, self.process)

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)

    def line(self, pattern):
        """The first match among the lines to come."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.told.append(self.lines.get(timeout=max(0.01, end - time.monotonic())))
            except queue.Empty:
                raise AssertionError(f"no line like '{pattern}' in {self.told}") from None
            if match := re.search(pattern, self.told[-1]):
                return match

    def where(self):
        return self.line(r"listening at (\S+), ").group(1)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            return int(re.search(r"VmRSS:\s+(\d+) kB", status.read()).group(1)) * 1024

    def stop(self, test, number=signal.SIGTERM):
        """Ends it; what it printed since the last line that was looked for."""
        self.process.send_signal(number)
        test.assertEqual(self.process.wait(PATIENCE), 0)
        self.reader.join(PATIENCE)
        return "".join(self.lines.get() for _ in range(self.lines.qsize()))


class ProxyTest(command.CommandTest):
    def setUp(self):
        super().setUp()
        kept = tempfile.TemporaryDirectory(prefix="sluice-proxy.")
        self.addCleanup(kept.cleanup)
        self.place = kept.name

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)
        process.stderr.close()

    def service(self, behave=echo, place="127.0.0.1:0"):
        service = Service(place, behave)
        self.addCleanup(service.stop)
        return service

    def server(self, service, at="sluice://127.0.0.1:0", *more):
        proxy = Proxy(self, "--at", at, "--service", service, *more)
        return proxy, proxy.where()

    def client(self, to, *more, listen="127.0.0.1:0"):
        proxy = Proxy(self, "--listen", listen, "--to", to, *more)
        return proxy, proxy.where()

    def pair(self, behave=echo, at="sluice://127.0.0.1:0", more=()):
        service = self.service(behave)
        server, to = self.server(service.place, at, *more)
        client, place = self.client(to, *more)
        return service, server, client, place

    def connect(self, place):
        family = socket.AF_UNIX if place.startswith("unix:") else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        self.addCleanup(connection.close)
        connection.settimeout(PATIENCE)
        host, _, port = place.rpartition(":")
        connection.connect(place[5:] if family == socket.AF_UNIX else (host, int(port)))
        return connection

    def both_ways(self, place, size):
        connection = self.connect(place)
        sender = threading.Thread(target=send_all, args=(connection, size))
        sender.start()
        self.assertEqual(receive_all(connection), (digest_of(size), size))
        sender.join(PATIENCE)

    def asks_and_gets(self, place, text=b"question"):
        connection = self.connect(place)
        connection.sendall(text)
        self.assertEqual(connection.recv(100), text)
        return connection

    def until(self, what, text):
        end = time.monotonic() + PATIENCE
        while not what():
            self.assertLess(time.monotonic(), end, text)
            select.select([], [], [], 0.02)

    def is_refused(self, place):
        """The connection opens at most to be reset."""
        try:
            with self.connect(place) as connection:
                connection.sendall(b"question")
                return connection.recv(1) == b""
        except OSError:
            return True
