"""One end of a test: sends and receives messages after NetPIPE's schedule, and times them. Runs on every node.

A receiver listens for two connections: one for control (lines of JSON), one for data (TCP; or a UDP socket instead).
The transmitter times; a stream is timed by its receiver. The payload is compared outside the timed part.
"""
import hashlib
import json
import mmap
import os
import select
import socket
import struct
import time

import netpipe_schedule as schedule

MOST_DATAGRAM = 65507
QUIET_SECONDS = 0.2  # a datagram that did not come by then is lost
MOST_LOST = 50  # datagrams of one trial
COPY_BYTES = 1 << 20


class Failed(Exception):
    """Why this end gave up."""


def _timeout(seconds):
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))


def _family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class Control:
    """Lines of JSON to the other end."""

    def __init__(self, connection, patience):
        connection.settimeout(patience)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = connection.makefile("rwb", buffering=0)

    def say(self, **words):
        self._file.write(json.dumps(words).encode() + b"\n")

    def hear(self):
        line = self._file.readline()
        if not line:
            raise Failed("the other end of the test has ended")
        return json.loads(line)


class Group:
    """The transmitters of one front end, in step: all measure the same size at once, as often as the first says."""

    def __init__(self, followers=(), leader=None, patience=60.0):
        self._followers, self._leader = followers, leader
        for each in (*followers, *((leader,) if leader else ())):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeout(patience))

    def meet(self, number=0):
        """Returns when all are here: the leader's number."""
        if self._leader is not None:
            self._leader.send(struct.pack("<q", number))
            return self._word(self._leader)
        for each in self._followers:
            self._word(each)
        for each in self._followers:
            each.send(struct.pack("<q", number))
        return number

    @staticmethod
    def _word(end):
        try:
            word = end.recv(8)
        except BlockingIOError as error:
            raise Failed("another pair of this test is too slow") from error
        if not word:
            raise Failed("another pair of this test has failed")
        return struct.unpack("<q", word)[0]


class Memory:
    """What is sent and where it arrives: two halves in turn; with `nocache` a walk through 200 MB at either end."""

    def __init__(self, size, nocache):
        room = max(schedule.NO_CACHE_BYTES, 2 * size) if nocache else 2 * size
        self._size, self._turns, self._turn = size, room // size, 0
        # Which byte it is tells where it lies: a shifted message differs.
        pattern = bytes((i * 7 + (i >> 8) * 13 + size) & 0xFF for i in range(min(size, 16384)))
        self._expected = (pattern * (size // len(pattern) + 1))[:size]
        self._out, self._into = bytearray(self._expected * self._turns), bytearray(size * self._turns)

    def _part(self, memory, turn):
        return memoryview(memory)[turn * self._size:(turn + 1) * self._size]

    def advance(self):
        self._turn = (self._turn + 1) % self._turns

    def out(self):
        return self._part(self._out, self._turn)

    def into(self):
        return self._part(self._into, self._turn)

    def forget(self):
        """So that what is compared later has really arrived. Of the walk of `nocache` the first two places: 200 MB take too long."""
        memoryview(self._into)[:2 * self._size] = bytes(2 * self._size)

    def is_whole(self):
        return self.into() == self._expected

    def last_is_whole(self):
        """Of the message before the last advance()."""
        return self._part(self._into, (self._turn - 1) % self._turns) == self._expected


class TcpLine:
    def __init__(self, connection, patience):
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, _timeout(patience))
        self._patience = patience
        self.lost = 0

    def begin_trial(self):
        """Nothing is left of the trial before: a connection loses nothing."""

    def send(self, view):
        try:
            self._socket.sendall(view)
        except BlockingIOError as error:
            raise Failed("the other end takes nothing any more") from error

    def receive(self, view):
        got, whole = 0, len(view)
        while got < whole:
            try:
                more = self._socket.recv_into(view[got:], 0, socket.MSG_WAITALL)
            except BlockingIOError as error:
                raise Failed("the other end sends nothing any more") from error
            if more == 0:
                raise Failed("the other end has closed the connection")
            got += more
        return True

    def both(self, out, into):
        """Sends and receives at once: two ends that only sent would wait for each other."""
        self._socket.setblocking(False)
        poll = select.poll()
        sent = got = 0
        while sent < len(out) or got < len(into):
            progress = False
            try:
                if sent < len(out):
                    sent += self._socket.send(out[sent:])
                    progress = True
            except BlockingIOError:
                pass
            try:
                if got < len(into):
                    more = self._socket.recv_into(into[got:])
                    if more == 0:
                        raise Failed("the other end has closed the connection")
                    got, progress = got + more, True
            except BlockingIOError:
                pass
            if not progress:
                wanted = (select.POLLIN if got < len(into) else 0) | (select.POLLOUT if sent < len(out) else 0)
                poll.register(self._socket, wanted)
                if not poll.poll(self._patience * 1000):
                    raise Failed("the other end neither sends nor takes any more")
        self._socket.setblocking(True)
        return True


class UdpLine:
    """One message is one datagram. One that does not come is lost and counted."""

    def __init__(self, connection, patience):
        self._socket = connection
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeout(QUIET_SECONDS))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeout(patience))
        self.lost = 0

    def begin_trial(self):
        """What came too late for the trial before is thrown away."""
        self.lost = 0
        while select.select([self._socket], [], [], 0)[0]:
            self._socket.recv(MOST_DATAGRAM)

    def send(self, view):
        self._socket.send(view)

    def receive(self, view):
        """Whether one came in time."""
        try:
            return self._socket.recv_into(view) == len(view)
        except BlockingIOError:
            self.lost += 1
            return False

    def both(self, out, into):
        self.send(out)
        return self.receive(into)


def set_buffers(end, spec):
    for option, name in ((socket.SO_SNDBUF, "sndbuf"), (socket.SO_RCVBUF, "rcvbuf")):
        if spec.get(name):
            end.setsockopt(socket.SOL_SOCKET, option, spec[name])


def granted(end):
    """What the kernel made of it: it doubles what is asked for and takes no more than net.core.{w,r}mem_max."""
    return {"sndbuf": end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF), "rcvbuf": end.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)}


class Receiver:
    """Listens, tells its port by `announce`, and serves one test."""

    def __init__(self, spec):
        self._spec = spec
        self._listener = socket.socket(_family(spec["address"]))
        set_buffers(self._listener, spec)  # a window's scale is agreed on when the connection begins
        self._listener.bind((spec["address"], 0))
        self._listener.listen(2)
        self._listener.settimeout(spec["patience"])

    def port(self):
        return self._listener.getsockname()[1]

    def serve(self):
        spec = self._spec
        control = Control(self._listener.accept()[0], spec["patience"])
        if spec["transport"] == "udp":
            data = socket.socket(_family(spec["address"]), socket.SOCK_DGRAM)
            set_buffers(data, spec)
            data.bind((spec["address"], 0))
            control.say(port=data.getsockname()[1])
            data.connect((spec["address_of_transmitter"], control.hear()["port"]))
            line = UdpLine(data, spec["patience"])
            control.say(ready=True)
        else:
            data = self._listener.accept()[0]
            line = TcpLine(data, spec["patience"])
        while (words := control.hear()).get("size"):
            if spec["mode"] == "file":
                _serve_file(words, line, control)
            else:
                self._serve_size(words, line, control)
        return {"granted": granted(data)}

    def _serve_size(self, words, line, control):
        memory = Memory(words["size"], self._spec["nocache"])
        while words.get("repeats"):
            memory.forget()
            line.begin_trial()
            control.say(ready=True)
            words = dict(words, **control.hear())  # begins a trial
            control.say(**_echo(words, memory, line, control))
            words = control.hear()  # another trial, or {}


def _echo(words, memory, line, control):
    """The receiver's part of a trial. Its clock runs before the first message is sent."""
    failures = received = 0
    began = ended = time.perf_counter()
    control.say(begun=True)
    for _ in range(words["repeats"]):
        if words["mode"] == "bidir":
            came = line.both(memory.out(), memory.into())
        else:
            came = line.receive(memory.into())
            if words["mode"] == "pingpong":
                line.send(memory.out())
        if words["mode"] == "stream":
            if not came:
                break  # quiet: what has not come is lost
            ended = time.perf_counter()
        received += came
        if words["integrity"] and not memory.is_whole():
            failures += 1
        memory.advance()
    if not words["integrity"] and not line.lost and not memory.last_is_whole():
        failures += 1
    return {"seconds": (ended - began) / max(received, 1), "failures": failures, "lost": words["repeats"] - received}


def _send_and_time(words, memory, line, group):
    """The transmitter's part of a trial: seconds of one message, and how many arrived changed."""
    failures, mode = 0, words["mode"]
    began = time.perf_counter()
    for _ in range(words["repeats"]):
        if mode == "bidir":
            line.both(memory.out(), memory.into())
        else:
            line.send(memory.out())
            if mode == "pingpong":
                line.receive(memory.into())
        if words["integrity"] and mode != "stream" and not memory.is_whole():
            failures += 1
        memory.advance()
    # The rate of several pairs is what they did together: to the end of the slowest.
    group.meet()
    seconds = (time.perf_counter() - began) / words["repeats"]
    if mode != "stream" and not words["integrity"] and not line.lost and not memory.last_is_whole():
        failures += 1
    return (seconds / 2 if mode == "pingpong" else seconds), failures


class Transmitter:
    def __init__(self, spec, group):
        self._spec, self._group = spec, group

    def run(self):
        spec = self._spec
        control = Control(self._connected(), spec["patience"])
        if spec["transport"] == "udp":
            port = control.hear()["port"]
            data = socket.socket(_family(spec["address"]), socket.SOCK_DGRAM)
            set_buffers(data, spec)
            data.bind((spec["address"], 0))
            data.connect((spec["to"], port))
            control.say(port=data.getsockname()[1])
            control.hear()
            line = UdpLine(data, spec["patience"])
        else:
            data = self._connected()
            line = TcpLine(data, spec["patience"])
        rows = file_rows(spec, line, control, self._group) if spec["mode"] == "file" else self._rows(line, control)
        control.say(size=0)
        return {"rows": rows, "granted": granted(data)}

    def _connected(self):
        spec = self._spec
        end = socket.socket(_family(spec["address"]))
        set_buffers(end, spec)
        end.settimeout(spec["patience"])
        end.bind((spec["address"], 0))
        end.connect((spec["to"], spec["port"]))
        return end

    def _rows(self, line, control):
        last, rows = schedule.FIRST_GUESS_SECONDS, []
        if self._spec["sizes"][0] > 1:
            # NetPIPE's guess is that of one byte: for more, a first trial would take far too long.
            last = max(self._row(self._spec["sizes"][0], None, line, control)["trials"])
        for size in self._spec["sizes"]:
            # All stop together: the first pair's time decides.
            if self._group.meet(int(last >= schedule.STOP_SECONDS)):
                break
            rows.append(self._row(size, last, line, control))
            last = max(sum(rows[-1]["trials"]) / len(rows[-1]["trials"]), 1e-6)
        return rows

    def _row(self, size, last, line, control):
        """`last`: seconds of a message of the size before. None: the fewest messages, in one trial."""
        spec = self._spec
        memory = Memory(size, spec["nocache"])
        wanted = schedule.FEWEST_REPEATS if last is None else schedule.repeats(last, spec["seconds"], spec["repeats"])
        repeats = self._group.meet(wanted)
        words = {"size": size, "repeats": repeats, "mode": spec["mode"], "integrity": spec["integrity"]}
        row = {"bytes": size * (2 if spec["mode"] == "bidir" else 1), "size": size, "repeats": repeats, "trials": [], "failures": 0, "lost": 0}
        if spec["integrity"]:
            row["integrity"] = True
        for _ in range(1 if spec["integrity"] or last is None else spec["trials"]):
            memory.forget()
            line.begin_trial()
            control.say(**words)
            control.hear()
            self._group.meet()
            control.say(begin=True)
            control.hear()
            seconds, failures = _send_and_time(words, memory, line, self._group)
            theirs = control.hear()
            row["trials"].append(theirs["seconds"] if spec["mode"] == "stream" else seconds)
            if row["trials"][-1] <= 0:
                raise Failed(f"no datagram of {size} bytes arrived; take a smaller size")
            row["failures"] += failures + theirs["failures"]
            row["lost"] += max(line.lost, theirs["lost"])
            if row["lost"] > MOST_LOST * (len(row["trials"]) if spec["mode"] != "stream" else repeats):
                raise Failed(f"more than {MOST_LOST} datagrams of {size} bytes were lost in a trial; take a smaller size")
        control.say()
        return row


class File:
    """A file on the memory of tmpfs, without a name."""

    def __init__(self, size, filled):
        self._size, self.descriptor = size, os.memfd_create("sluice-test")
        if filled:
            self._fill()

    def _fill(self):
        block = bytes((i * 11 + (i >> 8) * 5) & 0xFF for i in range(COPY_BYTES))
        for at in range(0, self._size, COPY_BYTES):
            os.pwrite(self.descriptor, (struct.pack("<Q", at) + block[8:])[:self._size - at], at)

    def send(self, line, piece):
        buffer = memoryview(bytearray(piece))
        for at in range(0, self._size, piece):
            got = os.preadv(self.descriptor, [buffer], at)
            line.send(buffer[:got])

    def receive(self, line, piece):
        """Into a file that is empty at first, as a copy to a new file is."""
        os.ftruncate(self.descriptor, 0)
        buffer = memoryview(bytearray(piece))
        for at in range(0, self._size, piece):
            part = buffer[:min(piece, self._size - at)]
            line.receive(part)
            os.pwrite(self.descriptor, part, at)

    def digest(self):
        with mmap.mmap(self.descriptor, 0, prot=mmap.PROT_READ) as mapped:
            return hashlib.blake2b(mapped).hexdigest()

    def close(self):
        os.close(self.descriptor)


def file_rows(spec, line, control, group):
    """A file there and back, read and written in pieces of each size. Compared outside the timed part."""
    rows, total = [], spec["file_bytes"]
    source, back = File(total, filled=True), File(total, filled=False)
    try:
        digest = source.digest()
        for piece in spec["sizes"]:
            for direction in ("there", "back"):
                row = {"bytes": piece, "size": piece, "direction": direction, "repeats": 1, "trials": [], "failures": 0, "lost": 0}
                for _ in range(spec["trials"]):
                    control.say(size=piece, file_bytes=total, direction=direction)
                    control.hear()
                    group.meet()
                    began = time.perf_counter()
                    control.say(begin=True)
                    if direction == "there":
                        source.send(line, piece)
                        control.hear()  # it has all of it
                    else:
                        back.receive(line, piece)
                    row["trials"].append(time.perf_counter() - began)
                    row["failures"] += (control.hear()["digest"] if direction == "there" else back.digest()) != digest
                rows.append(dict(row, file_bytes=total))
        return rows
    finally:
        source.close()
        back.close()


def _serve_file(words, line, control):
    file = File(words["file_bytes"], filled=words["direction"] == "back")
    try:
        control.say(ready=True)
        control.hear()
        if words["direction"] == "there":
            file.receive(line, words["size"])
            control.say(received=True)
            control.say(digest=file.digest())
        else:
            file.send(line, words["size"])
    finally:
        file.close()
