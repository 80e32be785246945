#!/usr/bin/env python3
"""A configuration that is wrong is refused with its place, before anything is started; so are values that the kernel would take."""
import copy
import os
import sys
import tempfile
import unittest

import modules
import command_line
import configuration
import lab
import parameters
from parameter_computation import DEFAULT
from trouble import USAGE, Trouble

RIGHT = {
    "workload": "file-transfer", "algorithm": "rusan",
    "test": {"mode": "stream", "start": 1024, "end": 65536, "trials": 2, "seconds": 0.1},
    "parameter": [{"name": "net.ipv4.tcp_rmem", "start": 4096, "end": 16384},
                  {"name": "net.ipv4.tcp_wmem", "values": ["4096 87380 8388608"]},
                  {"name": "net.ipv4.tcp_window_scaling", "values": [0, 1]}],
    "front": {"address": "192.0.2.1", "interface": "eth0"},
    "node": [{"name": "n1", "address": "192.0.2.2", "reach": "ssh:root@n1"}, {"name": "n2", "address": "192.0.2.3", "reach": "netns:two"}],
}


def changed(path, value):
    """RIGHT with something else at "node.0.address"."""
    data = copy.deepcopy(RIGHT)
    *steps, last = path.split(".")
    at = data
    for step in steps:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[last] = value
    return data


class Configuration(unittest.TestCase):
    def refused(self, data, *parts):
        with self.assertRaises(Trouble) as caught:
            configuration.checked(data, "file.toml")
        self.assertEqual(caught.exception.code, USAGE)
        for part in ("file.toml", *parts):
            self.assertIn(part, str(caught.exception))

    def test_what_is_right_is_taken_and_completed(self):
        asked = configuration.checked(RIGHT)
        self.assertEqual(asked["space"]["net.ipv4.tcp_rmem"], ["4096 4096 4096", "4096 8192 8192", "4096 16384 16384", DEFAULT])
        self.assertEqual(asked["space"]["net.ipv4.tcp_window_scaling"], ["0", "1", DEFAULT])
        self.assertEqual(asked["test"]["transport"], "tcp")
        self.assertEqual(asked["cluster"]["nodes"][1], {"name": "n2", "address": "192.0.2.3", "reach": "netns:two", "interface": None})

    def test_unknown_keys_are_named(self):
        for path in ("wrokload", "test.szie", "front.adress", "node.0.user", "parameter.0.stop"):
            with self.subTest(path):
                self.refused(changed(path, 1), "unknown key '" + path.rpartition(".")[2] + "'", "there are")

    def test_values_out_of_range_are_refused(self):
        for path, value, part in (
                ("test.trials", 0, "from 1 to 1000"), ("test.trials", True, "from 1 to 1000"), ("test.seconds", 0, "from 0.001"),
                ("test.end", 512, "below start"), ("test.mode", "sprint", "pingpong"), ("test.transport", "sctp", "tcp, udp"),
                ("test.nocache", 1, "neither true nor false"), ("algorithm", "magic", "halving, descent"), ("within_core", 1, "neither true nor false"), ("workload", "../etc", "file-transfer"),
                ("parameter.0.start", 0, "from 1"), ("parameter.0.end", 2048, "from 4096"), ("parameter.0.end", 1 << 40, "1073741824"),
                ("parameter.2.values", [0, 2], "from 0 to 1"), ("parameter.2.values", [], "no list"), ("parameter.2.values", [1, "1"], "twice"),
                ("parameter.0.name", "net.ipv4.tcp_magic", "--show"), ("parameter.0.name", "interface.speed", "shown, not set"),
                ("parameter.0.name", "net.ipv4.tcp_sack", "give `values`"), ("parameter.1.name", "net.ipv4.tcp_rmem", "twice"),
                ("parameter", [], "[[parameter]]"), ("node", 3, "[[node]]"), ("node", [], "at least one"),
                ("node.0.address", "n1.example", "no IP address"), ("node.0.reach", "telnet:n1", "ssh:USER@HOST"),
                ("node.0.reach", "ssh:-oProxyCommand=x", "ssh:USER@HOST"), ("node.0.name", "n2", "two nodes have the name n2"),
                ("node.0.address", "192.0.2.3", "two nodes have the address"), ("node.0.address", "2001:db8::1", "one family")):
            with self.subTest(path, value=value):
                self.refused(changed(path, value), part)

    def test_a_triple_that_breaks_the_rule_is_refused_though_the_kernel_takes_it(self):
        for text, part in (("4096 87380", "no triple"), ("4096 8388608 87380", "not ascending"), ("0 1 2", "out of range"), ("a b c", "no triple"),
                           ("4096 87380 99999999999", "out of range")):
            with self.subTest(text):
                self.refused(changed("parameter.1.values", [text]), "net.ipv4.tcp_wmem", part)
        self.assertEqual(parameters.parse_triple("4096 87380 8388608", most=8388608), (4096, 87380, 8388608))
        with self.assertRaisesRegex(parameters.WrongValue, "net.core"):
            parameters.parse_triple("4096 87380 8388608", most=4194304)

    def test_a_triple_is_pinned_or_only_its_first_is_raised(self):
        self.assertEqual(parameters.pinned(65536), "4096 65536 65536")
        self.assertEqual(parameters.pinned(2048), "2048 2048 2048")
        self.assertEqual(parameters.raised(8192, "4096 131072 6291456"), "8192 131072 6291456")
        self.assertEqual(parameters.raised(1 << 20, "4096 131072 524288"), "1048576 1048576 1048576")
        self.assertTrue(parameters.is_pinned("4096 65536 65536"))
        self.assertFalse(parameters.is_pinned("4096 131072 6291456"))

    def test_a_number_is_given_to_the_kernel_as_it_was_meant(self):
        # The kernel takes 010 for octal, and other digits than ASCII for none.
        for name, text, meant in (("net.ipv4.tcp_keepalive_time", "010", "10"),
                                  ("net.ipv4.tcp_sack", "01", "1"),
                                  ("net.ipv4.tcp_rmem", "010 020 030", "10 20 30")):
            self.assertEqual(parameters.REGISTRY[name].checked(text), meant)
        for name, text in (("net.ipv4.tcp_keepalive_time", "\u0661\u0660"),
                           ("net.ipv4.tcp_rmem", "4096 \u0661\u0660\u0660\u0660\u0660 87380")):
            with self.assertRaises(parameters.WrongValue):
                parameters.REGISTRY[name].checked(text)

    def test_an_mtu_without_ipv6_is_refused(self):
        mtu = parameters.REGISTRY["interface.mtu"]
        self.assertEqual(mtu.checked("1280"), "1280")
        with self.assertRaisesRegex(parameters.WrongValue, "1280 .*IPv6 addresses"):
            mtu.checked("1279")
        table = configuration.checked({"lab": {"mtu": 576}})["cluster"]["lab"]
        lab.Lab(table)
        with self.assertRaisesRegex(Trouble, "mtu.* 1280 or more, or IPv4") as caught:
            lab.Lab(table, ipv6=True)
        self.assertEqual(caught.exception.code, USAGE)

    def test_settings_without_bound_are_refused(self):
        data = changed("parameter", [{"name": name, "start": 1, "end": 1 << 30} for name in ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.tcp_mem")])
        self.refused(data, "settings are more than")

    def test_a_cluster_is_a_lab_or_nodes(self):
        self.refused(dict(RIGHT, lab={"nodes": 2}), "either [lab]")
        self.refused({"lab": {"nodes": 65}}, "[lab].nodes")
        self.refused({"lab": {"rate": "fast"}}, "[lab].rate")
        self.refused({"node": RIGHT["node"]}, "[front]")

    def test_the_library_is_measured_by_itself_on_this_machine(self):
        own = {"parameter": [{"name": "sluice.spin_ns", "values": [0, 60000]}]}
        self.refused(own, "tool = \"library\"")
        self.refused(dict(own, test={"tool": "library"}, lab={"nodes": 1}), "leave [lab]")
        self.assertEqual(configuration.checked(dict(own, test={"tool": "library"}))["cluster"]["nodes"], [])

    def test_a_datagram_has_its_limit(self):
        self.refused({"test": {"transport": "udp", "start": 1, "end": 65506}}, "65507")

    def test_a_file_that_is_no_toml_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "wrong.toml")
            with open(path, "wb") as file:
                file.write(b"workload = \xff\xfe")
            for wrong, part in ((path, "is no TOML"), (os.path.join(folder, "none.toml"), "No such file")):
                with self.assertRaisesRegex(Trouble, part) as caught:
                    configuration.read(wrong)
                self.assertIn(wrong, str(caught.exception))


class CommandLine(unittest.TestCase):
    def test_what_is_wrong_is_said_with_an_example(self):
        for words, part in ((["--lab", "two"], "--lab"), (["--frob"], "--frob"), (["--rate", "1gbit"], "--lab"), (["--trials", "3"], "[test]"),
                            (["--test", "--start", "1X"], "64K"),
                            (["--test", "--undo"], "not allowed"),
                            (["--undo", "--ssh", "ssh -p 2222"], "from the record")):
            with self.subTest(words), self.assertRaises(Trouble) as caught:
                command_line.parse(words)
            self.assertEqual(caught.exception.code, USAGE)
            self.assertIn(part, str(caught.exception))
            self.assertIn("sluice tune system", str(caught.exception))

    def test_the_command_line_overrides_the_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write('workload = "one"\nalgorithm = "rusan"\n[lab]\nnodes = 3\n')
            file.flush()
            asked = command_line.asked(command_line.parse(["--config", file.name, "--workload", "two", "--lab", "5"]))
        self.assertEqual((asked["workload"], asked["algorithm"], asked["cluster"]["lab"]["nodes"]), ("two", "rusan", 5))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
