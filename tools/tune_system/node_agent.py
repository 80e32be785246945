"""What runs on a node: reads and sets parameters, and runs the ends of tests as children.

The controller sends it over whatever leads to the node (node.py), and talks with it in lines of JSON over
stdin and stdout, one answer for each request. It ends, with its children, when its input does.
"""
import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket
import sys
import time
import traceback

import node_settings
import test_end

PR_SET_PDEATHSIG = 1
# An abstract Unix socket: each network namespace has its own, and the kernel frees it when its
# process ends.
TURN_NAME = "sluice-tune-system"
# An agent whose front end is gone ends after the value that it is at: one call sets it, one reads
# it back.
TURN_SECONDS = 2 * node_settings.LIMIT_SECONDS + 5
TURN_PAUSE_SECONDS = 0.05


def front_end_gone():
    """Whether the input has ended, though requests may be left in it. Under sshd it is a socket."""
    poll = select.poll()
    poll.register(0, select.POLLHUP | select.POLLRDHUP)
    return bool(poll.poll(0))


@contextlib.contextmanager
def turn(limit=TURN_SECONDS):
    """Within it no other agent sets values in this network namespace. Raises Refused.

    So an undo cannot come between the values of an agent that was given up and has not ended.
    """
    until = time.monotonic() + limit
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
        while True:
            try:
                held.bind("\0" + TURN_NAME)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    why = f"@{TURN_NAME} cannot be held: {os.strerror(error.errno)}"
                    raise node_settings.Refused(why) from error
            if front_end_gone():
                raise node_settings.Refused("the front end is gone")
            if time.monotonic() >= until:
                raise node_settings.Refused(
                    f"another agent sets values here and has not ended in {limit:.0f} s: wait for "
                    f"it, or end the process that `ss -xap` shows at @{TURN_NAME}")
            time.sleep(TURN_PAUSE_SECONDS)
        yield


class Child:
    """An end of a test in a process of its own, which dies with the agent."""

    def __init__(self, work):
        self._read, write = os.pipe()
        parent = os.getpid()
        self._process = os.fork()
        if self._process == 0:
            status = 1
            try:
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() == parent:
                    _work(work, write)
                    status = 0
            finally:
                os._exit(status)
        os.close(write)

    def fileno(self):
        return self._read

    def result(self):
        """Reads to the end, and reaps. Requires: it has ended, or is killed."""
        parts = []
        while part := os.read(self._read, 1 << 16):
            parts.append(part)
        os.close(self._read)
        os.waitpid(self._process, 0)
        text = b"".join(parts)
        return json.loads(text.splitlines()[-1]) if text.strip() else {"failed": "the end of the test was killed"}

    def first_line(self):
        """What it says before it serves: its port."""
        line = b""
        while not line.endswith(b"\n"):
            part = os.read(self._read, 1)
            if not part:
                break
            line += part
        return json.loads(line) if line else {"failed": "the end of the test was killed"}

    def kill(self):
        os.kill(self._process, signal.SIGKILL)
        self.result()


def _work(work, write):
    def say(words):
        text = json.dumps(words).encode() + b"\n"
        while text:
            text = text[os.write(write, text):]

    try:
        say(work(say))
    except (test_end.Failed, OSError) as error:
        say({"failed": str(error) or type(error).__name__})
    except Exception:  # a defect of ours: the controller prints where it is
        say({"failed": traceback.format_exc(limit=4).strip().replace("\n", " | ")})


def _receive(spec):
    def work(say):
        receiver = test_end.Receiver(spec)
        say({"port": receiver.port()})
        return receiver.serve()
    return work


def _transmit(spec, group):
    return lambda _: test_end.Transmitter(spec, group).run()


class Agent:
    def __init__(self):
        self._children = {}
        self._next = 0

    def _add(self, child):
        self._next += 1
        self._children[self._next] = child
        return self._next

    def do_hello(self, _):
        network = os.stat("/proc/self/ns/net")
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return {"boot": boot, "network": f"{network.st_dev}:{network.st_ino}", "host": socket.gethostname(), "kernel": os.uname().release}

    def do_read(self, request):
        values, refused = {}, {}
        for name in request["names"]:
            try:
                values[name] = node_settings.read(name, request.get("interface"))
            except node_settings.Refused as why:
                refused[name] = str(why)
        return {"values": values, "refused": refused}

    def do_write(self, request):
        refused = {}
        try:
            with turn():
                for name, value in request["values"].items():
                    try:
                        if front_end_gone():  # it undoes by now, or somebody does in its place
                            raise node_settings.Refused("the front end is gone")
                        node_settings.write(name, value, request.get("interface"))
                    except node_settings.Refused as why:
                        refused[name] = str(why)
        except node_settings.Refused as why:
            refused = dict.fromkeys(request["values"], str(why))
        return {"refused": refused}

    def do_presence(self, request):
        return {name: node_settings.presence(name, request.get("interface")) for name in request["names"]}

    def do_receive(self, request):
        child = Child(_receive(request["spec"]))
        said = child.first_line()
        if "failed" in said:
            child.result()
            return said
        return {"end": self._add(child), "port": said["port"]}

    def do_transmit(self, request):
        """All of them in step; the first is the leader."""
        pairs = [socket.socketpair() for _ in request["specs"][1:]]
        ends = []
        for number, spec in enumerate(request["specs"]):
            mine = [leader for leader, _ in pairs] if number == 0 else [pairs[number - 1][1]]

            def work(say, spec=spec, number=number, mine=tuple(mine)):
                for end in (end for pair in pairs for end in pair if end not in mine):
                    end.close()
                group = test_end.Group(mine, patience=spec["patience"]) if number == 0 else test_end.Group(leader=mine[0], patience=spec["patience"])
                return _transmit(spec, group)(say)
            ends.append(self._add(Child(work)))
        for pair in pairs:
            for end in pair:
                end.close()
        return {"ends": ends}

    def do_result(self, request):
        """Waits for a child; its input's end ends all."""
        child = self._children.pop(request["end"])
        poll = select.poll()
        poll.register(child, select.POLLIN)
        poll.register(0, select.POLLHUP | select.POLLRDHUP)
        parts = poll.poll(request["limit"] * 1000)
        if any(descriptor == 0 for descriptor, _ in parts):
            child.kill()
            self.stop()
            sys.exit(0)
        if not parts:
            child.kill()
            return {"failed": f"no result within {request['limit']:.0f} s"}
        return child.result()

    def do_cancel(self, _):
        self.stop()
        return {}

    def stop(self):
        for child in self._children.values():
            child.kill()
        self._children.clear()


def main():
    agent = Agent()
    try:
        while line := sys.stdin.readline():
            request = json.loads(line)
            answer = getattr(agent, "do_" + request["do"])(request)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    finally:
        agent.stop()
