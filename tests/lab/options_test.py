#!/usr/bin/env python3
"""The command line of `sluice lab`: what is taken, and that a wrong one is refused in one line with an example."""
import os
import unittest

import modules
import options
from trouble import USAGE, Trouble


class CommandLine(unittest.TestCase):
    def refused(self, *arguments):
        with self.assertRaises(Trouble) as caught:
            options.parse(list(arguments))
        self.assertEqual(caught.exception.code, USAGE)
        text = str(caught.exception)
        self.assertNotIn("\n", text)
        self.assertIn("example: sluice lab", text)
        return text

    def test_defaults_are_those_of_the_manual(self):
        run = options.parse(["run", "--", "true"])
        self.assertEqual((run.kernel, run.memory, run.cpus, run.timeout, run.nodes, run.net, run.artifacts), ("auto", 3072, 2, 600, 1, "", ""))

    def test_a_person_at_a_shell_is_not_cut_off_after_minutes(self):
        self.assertEqual(options.parse(["shell"]).timeout, 24 * 3600)

    def test_what_follows_the_dashes_is_the_command_as_it_is(self):
        command = ["sh", "-c", "exit 3", "--nodes", "2", "--", "", "ü \n'\""]
        self.assertEqual(options.parse(["run", "--cpus", "1", "--", *command]).command, command)

    def test_units_are_understood(self):
        run = options.parse(["run", "--memory", "512M", "--timeout", "90s", "--", "true"])
        self.assertEqual((run.memory, run.timeout), (512, 90))
        self.assertEqual(options.parse(["run", "--timeout", "2h", "--", "true"]).timeout, 7200)

    def test_wrong_values_are_named(self):
        for flag, value in (("--memory", "3"), ("--memory", "1M"), ("--memory", "-3G"), ("--memory", "9999999G"), ("--cpus", "0"), ("--cpus", "65"),
                            ("--cpus", "two"), ("--memory-nodes", "0"), ("--memory-nodes", "9"), ("--timeout", "0s"), ("--timeout", "10"), ("--timeout", "1d"), ("--nodes", "3"), ("--kernel", "linux")):
            with self.subTest(flag=flag, value=value):
                self.assertIn(value, self.refused("run", f"{flag}={value}", "--", "true"))

    def test_user_mode_linux_has_one_cpu(self):
        for kernel in ("uml", "uml-debug"):
            self.assertEqual(options.parse(["run", "--kernel", kernel, "--", "true"]).cpus, 1)
            self.assertEqual(options.parse(["run", "--kernel", kernel, "--cpus", "1", "--", "true"]).cpus, 1)
            self.assertIn("one CPU", self.refused("run", "--kernel", kernel, "--cpus", "2", "--", "true"))

    def test_a_guest_has_memory_nodes_of_equal_size(self):
        self.assertEqual(options.parse(["run", "--", "true"]).memory_nodes, 1)
        self.assertEqual(options.parse(["run", "--memory-nodes", "2", "--", "true"]).memory_nodes, 2)
        self.assertIn("one memory node", self.refused("run", "--kernel", "uml", "--memory-nodes", "2", "--", "true"))
        self.assertIn("--memory-nodes needs a guest", self.refused("run", "--kernel", "host", "--memory-nodes", "2", "--", "true"))

    def test_soft_iwarp_is_refused_where_the_kernel_has_none(self):
        self.assertIn("--kernel uml", self.refused("run", "--kernel", "tcg", "--driver", "siw", "--", "true"))
        self.assertEqual(options.parse(["run", "--kernel", "uml", "--driver", "siw", "--", "true"]).driver, "siw")
        self.assertIn("mlx5", self.refused("run", "--driver", "mlx5", "--", "true"))

    def test_a_kernel_is_prepared_by_its_name(self):
        self.assertEqual(options.parse(["prepare"]).kernel, "tcg")
        self.assertEqual(options.parse(["prepare", "--kernel", "uml"]).kernel, "uml")
        self.assertEqual(options.parse(["prepare", "--kernel", "tcg-debug"]).kernel, "tcg-debug")
        self.assertEqual(options.parse(["prepare", "--kernel", "tcg-6.12"]).kernel, "tcg-6.12")
        self.refused("prepare", "--kernel", "auto")

    def test_the_debug_kernel_for_emulation_has_several_cpus_and_soft_iwarp(self):
        run = options.parse(["run", "--kernel", "tcg-debug", "--driver", "siw", "--", "true"])
        self.assertEqual((run.cpus, run.driver), (2, "siw"))

    def test_headers_are_those_of_a_kernel_that_is_prepared(self):
        self.assertEqual(options.parse(["headers"]).kernel, "tcg")
        self.assertEqual(options.parse(["headers", "--kernel", "uml-debug"]).kernel, "uml-debug")
        self.refused("headers", "--kernel", "host")

    def test_flags_that_do_not_exist_are_refused_by_name(self):
        for flag in ("--speed", "--tim", "--artifact"):
            with self.subTest(flag=flag):
                self.assertIn(flag, self.refused("run", flag, "5", "--", "true"))

    def test_something_must_be_asked(self):
        self.refused()
        self.refused("fly")
        self.assertIn("no command", self.refused("run"))
        self.assertIn("no command", self.refused("run", "--"))
        self.refused("run", "true")
        self.assertIn("takes no command", self.refused("prepare", "--", "true"))

    def test_a_wire_and_a_peer_need_two_nodes(self):
        self.assertIn("--nodes 2", self.refused("run", "--peer", "true", "--", "true"))
        self.assertIn("--nodes 2", self.refused("run", "--net", "loss=1%", "--", "true"))
        run = options.parse(["run", "--nodes", "2", "--peer", "rping -s", "--net", "delay=1.5ms,loss=0.5%", "--", "true"])
        self.assertEqual((run.peer, run.net), ("rping -s", "delay 1.5ms loss 0.5%"))

    def test_a_card_is_of_two_nodes_and_of_a_kernel_that_has_its_driver(self):
        self.assertEqual(options.parse(["run", "--kernel", "tcg", "--nodes", "2", "--card", "vmxnet3", "--", "true"]).card, "vmxnet3")
        self.assertEqual(options.parse(["run", "--", "true"]).card, "virtio")
        for arguments in (["--kernel", "tcg"], ["--nodes", "2"], ["--nodes", "2", "--kernel", "uml"], ["--nodes", "2", "--kernel", "tcg-debug"]):
            with self.subTest(arguments=arguments):
                self.assertIn("--card needs", self.refused("run", *arguments, "--card", "vmxnet3", "--", "true"))

    def test_what_netem_would_misread_is_refused(self):
        for text in ("", "loss", "loss=1", "loss=101%", "loss=1%,loss=2%", "delay=1", "delay=1ms;reboot", "speed=1%", "reorder=5%", "loss=1%,", "loss=$(id)%"):
            with self.subTest(text=text):
                self.refused("run", "--nodes", "2", f"--net={text}", "--", "true")

    def test_faults_are_known_and_complete(self):
        self.assertEqual(options.parse(["fault", "link-down"]).what, ["link-down"])
        self.assertEqual(options.parse(["fault", "--node", "2", "mtu", "1024"]).what, ["mtu", "1024"])
        for arguments in (["mtu"], ["mtu", "big"], ["mtu", "1", "2"], ["link-down", "now"], ["explode"], []):
            with self.subTest(arguments=arguments):
                self.refused("fault", *arguments)

    def test_the_artifacts_folder_is_absolute_and_its_own(self):
        self.assertEqual(options.parse(["run", "--artifacts", "out", "--", "true"]).artifacts, os.path.abspath("out"))
        self.refused("run", "--artifacts", "/", "--", "true")


if __name__ == "__main__":
    modules.main()
