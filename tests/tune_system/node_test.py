#!/usr/bin/env python3
"""Agents that are slow, or whose front end is gone: none sets a value after an undo."""
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import modules

sys.path.insert(0, os.path.join(modules.HERE, "..", "tools"))
import control_logic
import node as nodes
import node_agent
import node_settings
import record
import wire

RMEM, MTU, TSO = "net.ipv4.tcp_rmem", "interface.mtu", "interface.tso"
ONE, OTHER = "4096 8192 8192", "4096 16384 16384"
# In place of ip(8): a call that sets something says that it has begun, and goes on when it may.
SLOW_IP = """#!/bin/sh
if [ "$1 $2" = "link set" ]; then echo > FOLDER/begun; read -r _ < FOLDER/go; fi
exec REAL "$@"
"""


class Agents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.wire = wire.Wire()
        cls.addClassCleanup(cls.wire.close)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-tune-system.")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.before = self.rmem()
        self.addCleanup(self.set_rmem, self.before)
        for name in ("begun", "go"):
            os.mkfifo(os.path.join(self.folder, name))
        stand_in, real = os.path.join(self.folder, "ip"), shutil.which("ip")
        with open(stand_in, "w", encoding="ascii") as file:
            file.write(SLOW_IP.replace("FOLDER", self.folder).replace("REAL", real))
        os.chmod(stand_in, 0o755)
        self.addCleanup(wire.ip, "link", "set", "left", "mtu", "1500")
        path = mock.patch.dict(os.environ, PATH=self.folder + ":" + os.environ["PATH"])
        path.start()
        self.addCleanup(path.stop)

    @staticmethod
    def rmem():
        return node_settings.read(RMEM)

    @staticmethod
    def set_rmem(value):
        node_settings.write(RMEM, value)

    def begun(self):
        with open(os.path.join(self.folder, "begun"), encoding="ascii") as file:
            file.read()

    def go(self):
        with open(os.path.join(self.folder, "go"), "w", encoding="ascii") as file:
            file.write("\n")

    def start(self):
        node = nodes.Node("n1", None, "local", "left").start()
        self.addCleanup(node.stop)
        return node

    # --- a front end that is gone

    def test_an_agent_sets_no_more_values_once_its_front_end_is_gone(self):
        node = self.start()
        node.tell("write", values={MTU: "1400", RMEM: ONE}, interface="left")
        self.begun()
        node._process.stdin.close()
        self.go()
        node._process.wait()
        self.assertEqual(self.rmem(), self.before)

    def test_so_does_one_whose_input_is_a_socket_as_under_sshd(self):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            agent = subprocess.Popen(nodes.AGENT_COMMAND, stdin=theirs, stdout=theirs)
            theirs.close()
            request = {"do": "write", "values": {MTU: "1400", RMEM: ONE}, "interface": "left"}
            ours.sendall(nodes.agent_archive() + json.dumps(request).encode() + b"\n")
            self.begun()
            ours.shutdown(socket.SHUT_WR)
            self.go()
            agent.wait()
        self.assertEqual(self.rmem(), self.before)

    def test_an_agent_that_sets_a_value_has_the_time_to_end(self):
        node = self.start()
        node.tell("write", values={MTU: "1400", RMEM: ONE}, interface="left")
        self.begun()
        self.go()
        with mock.patch.object(node._process, "wait", wraps=node._process.wait) as wait:
            node.stop()
        limit = (*wait.call_args_list[0].args, *wait.call_args_list[0].kwargs.values())[0]
        self.assertGreater(limit, 2 * node_settings.LIMIT_SECONDS)

    # --- two agents

    def test_values_of_a_second_agent_wait_for_the_first_to_end(self):
        first, second = self.start(), self.start()
        first.tell("write", values={MTU: "1400", RMEM: ONE}, interface="left")
        self.begun()
        second.tell("write", values={RMEM: OTHER}, interface="left")
        self.assertFalse(select.select([second._process.stdout], [], [], 1.0)[0])
        self.go()
        self.assertEqual(first.answer(), {"refused": {}})
        self.assertEqual(second.answer(), {"refused": {}})
        self.assertEqual(self.rmem(), OTHER)

    def test_the_wait_for_another_agent_has_an_end_and_a_reason(self):
        with mock.patch.object(node_agent, "front_end_gone", return_value=False):
            with node_agent.turn(), self.assertRaisesRegex(node_settings.Refused, "ss -xap"):
                with node_agent.turn(0.0):
                    self.fail("two agents at once")
            with node_agent.turn(0.0):
                pass

    # --- slow values

    def limits(self, work):
        """The longest wait for an answer."""
        real, found = select.select, []

        def noted(read, write, error, limit):
            found.append(limit)
            return real(read, write, error, limit)
        with mock.patch.object(nodes.select, "select", noted):
            work()
        return max(found)

    def test_each_value_that_is_undone_has_its_time(self):
        node = self.start()
        now = node.ask("read", names=[RMEM, TSO], interface="left")["values"]
        limit = self.limits(lambda: self.assertEqual(record.put_back(node, now), {}))
        self.assertGreater(limit, 2 * 2 * node_settings.LIMIT_SECONDS + node_agent.TURN_SECONDS)

    def test_each_value_that_a_run_sets_has_its_time(self):
        node = self.start()
        control = control_logic.ControlLogic([node], None, mock.Mock())
        limit = self.limits(lambda: control.prepare([RMEM, TSO]))
        self.assertGreater(limit, 2 * node_settings.LIMIT_SECONDS)
        limit = self.limits(lambda: control.set_kernel_parameters({RMEM: ONE, TSO: "0"}))
        self.assertGreater(limit, 2 * 2 * node_settings.LIMIT_SECONDS + node_agent.TURN_SECONDS)
        control.set_kernel_parameters({RMEM: "default", TSO: "default"})


if __name__ == "__main__":
    result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False).result
    if result.skipped:
        print(f"sluice-skips {len(result.skipped)}", flush=True)  # tools/test adds them up
    sys.exit(not result.wasSuccessful())
