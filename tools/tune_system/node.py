"""A node as the controller sees it: how it is reached, and requests to the agent that runs there.

The agent's source goes with the request, so that a node needs Python 3.8 and nothing of sluice.
"""
import base64
import contextlib
import io
import json
import os
import select
import shlex
import subprocess
import sys
import time
import zipfile

from node_settings import LIMIT_SECONDS
from trouble import NodeLost, Trouble

HERE = os.path.dirname(os.path.realpath(__file__))
AGENT_FILES = ("node_agent.py", "node_settings.py", "netpipe_schedule.py", "parameters.py", "test_end.py")
# Takes the agent from its first line of input and keeps it in memory: a zip file that Python imports from.
_START = ("import os,sys,base64;f=os.memfd_create('sluice-agent');os.write(f,base64.b64decode(sys.stdin.readline()));"
          "sys.path.insert(0,'/proc/self/fd/%d'%f);sys.dont_write_bytecode=True;import node_agent;node_agent.main()")
AGENT_COMMAND = ("python3", "-B", "-c", _START)
DEFAULT_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=5"
# For a request that measures nothing, without the calls of `ip` and `ethtool`.
ANSWER_SECONDS = 30.0
STOP_SECONDS = 5.0  # for an agent to end when its input has
# The longest that one value takes: a call that sets it, and one that reads it back.
VALUE_SECONDS = 2.0 * LIMIT_SECONDS


def agent_archive():
    """The agent as one line."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in AGENT_FILES:
            with open(os.path.join(HERE, name), encoding="utf-8") as file:
                archive.writestr(zipfile.ZipInfo(name), file.read())
    return base64.b64encode(packed.getvalue()) + b"\n"


def command_to_reach(reach, ssh=DEFAULT_SSH):
    """argv that runs the agent there. `reach`: local, new (a namespace that lives as long as the agent), netns:NAME, ssh:HOST."""
    kind, _, where = reach.partition(":")
    if kind == "local":
        return list(AGENT_COMMAND)
    if kind == "new":
        return ["unshare", "--net", *AGENT_COMMAND]
    if kind == "netns":
        return ["ip", "netns", "exec", where, *AGENT_COMMAND]
    return [*shlex.split(ssh), where, shlex.join(AGENT_COMMAND)]


def answer_seconds(do, words):
    """How long the answer to a request may take: each value may have to wait for a slow driver."""
    if do == "write":
        # One more: another agent may first have to end what it sets (node_agent.turn).
        return ANSWER_SECONDS + VALUE_SECONDS * (1 + len(words["values"]))
    return ANSWER_SECONDS + LIMIT_SECONDS * len(words.get("names", ()))


class Node:
    def __init__(self, name, address, reach="local", interface=None, ssh=DEFAULT_SSH):
        self.name, self.address, self.reach, self.interface = name, address, reach, interface
        self.ssh, self._process, self._pending = ssh, None, b""
        self.identity = None
        self._within = ANSWER_SECONDS  # for the answer to the last request
        self._sets_values = False  # whether the agent may be setting some now
        self._ends_by = 0.0

    def start(self):
        command = command_to_reach(self.reach, self.ssh)
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                                             start_new_session=True,  # Ctrl-C is for the controller, which then undoes
                                             env=dict(os.environ, PATH=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"))
        except OSError as error:
            raise Trouble(f"node {self.name}: {command[0]}: {error.strerror}; check that it is installed") from error
        self._send(agent_archive())
        self.identity = self.ask("hello")
        return self

    @property
    def pid(self):
        return self._process.pid

    def _send(self, data):
        try:
            while data:  # unbuffered: a pipe may take a part
                data = data[self._process.stdin.write(data):]
        except OSError as error:
            raise NodeLost(self.name, self._ended()) from error

    def _ended(self):
        try:
            return f"its agent ended with status {self._process.wait(timeout=2)}"
        except subprocess.TimeoutExpired:
            return "its agent closed the connection"

    def ask(self, do, within=None, **words):
        self.tell(do, **words)
        return self.answer(within)

    def tell(self, do, **words):
        """A request whose answer() is taken later, so that nodes work in parallel."""
        if self._process is None:
            raise NodeLost(self.name, "it was not started")
        self._within, self._sets_values = answer_seconds(do, words), do == "write"
        self._send(json.dumps(dict(words, do=do)).encode() + b"\n")

    def answer(self, within=None):
        within = self._within if within is None else within
        while b"\n" not in self._pending:
            if not select.select([self._process.stdout], [], [], within)[0]:
                raise NodeLost(self.name, f"no answer within {within:.0f} s")
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise NodeLost(self.name, self._ended())
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        self._sets_values = False
        try:
            return json.loads(line)
        except ValueError as error:
            raise NodeLost(self.name, f"it said '{line[:60].decode(errors='replace')}'") from error

    def end_input(self):
        """The agent ends by itself then, and so do others meanwhile."""
        if self._process is not None and not self._process.stdin.closed:
            limit = STOP_SECONDS + (VALUE_SECONDS if self._sets_values else 0)
            self._ends_by = time.monotonic() + limit
            self._process.stdin.close()

    def stop(self):
        """Ends the agent, and with it a namespace that was made for it.

        An agent that sets values ends after the one that it is at. Whoever undoes must not come
        before that, and over ssh a kill would reach the local ssh alone.
        """
        if self._process is None:
            return
        self.end_input()
        try:
            self._process.wait(max(0.0, self._ends_by - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process = None


def start_all(nodes):
    """All of them, or none."""
    started = []
    try:
        for node in nodes:
            node.start()
            started.append(node)
    except BaseException:
        for node in (*started, *(each for each in nodes if each not in started)):
            node.stop()
        raise
    return nodes


def stop_all(nodes):
    """Each of them, though a signal may end the wait for one."""
    with contextlib.ExitStack() as stack:
        for each in ("stop", "end_input"):  # the last first
            for node in reversed(nodes):
                stack.callback(_done, node, each)


def _done(node, what):
    try:
        getattr(node, what)()
    except OSError as error:
        print(f"sluice tune system: node {node.name}: {error}", file=sys.stderr)
