#!/usr/bin/env python3
"""This machine instead of a guest: which device is taken and why, and what of the contract a command on the host gets. A faked sysfs."""
import json
import os
import pathlib
import signal
import tempfile
import unittest
from unittest import mock

import modules
import host
import machine
import options
from trouble import NOTHING_TO_RUN_ON, USAGE, Trouble

ADDRESSES = {"eth0": "192.0.2.1", "eth1": "192.0.2.2"}


class Choice(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.sysfs, self.devices = pathlib.Path(folder.name) / "sys", pathlib.Path(folder.name) / "dev"
        (self.sysfs / "class").mkdir(parents=True)
        (self.devices / "infiniband").mkdir(parents=True)

    def add(self, name, number=0, states=("4: ACTIVE",), interface="eth0", node=True):
        for port, state in enumerate(states, 1):
            folder = self.sysfs / "class/infiniband" / name / "ports" / str(port)
            (folder / "gid_attrs/ndevs").mkdir(parents=True)
            (folder / "state").write_text(state + "\n", encoding="ascii")
            (folder / "gid_attrs/ndevs/0").write_text(interface + "\n", encoding="ascii")
        verbs = self.sysfs / f"class/infiniband_verbs/uverbs{number}"
        verbs.mkdir(parents=True)
        (verbs / "ibdev").write_text(name + "\n", encoding="ascii")
        if node:
            (self.devices / f"infiniband/uverbs{number}").touch()

    def find(self):
        return host.find(self.sysfs, self.devices, lambda interface: ADDRESSES.get(interface, ""))

    def choose(self, *arguments):
        return host.choose(options.parse(["run", *arguments, "--", "true"]), self.find)

    def test_a_device_with_an_active_port_is_preferred_to_a_guest(self):
        self.add("mlx5_0")
        device, why = self.choose()
        self.assertEqual((device.name, device.port, device.interface, device.address), ("mlx5_0", 1, "eth0", "192.0.2.1"))
        self.assertEqual(why, "mlx5_0 has an active port on eth0")
        self.assertEqual(self.choose("--kernel", "host")[0].name, "mlx5_0")

    def test_the_first_that_works_is_taken_and_its_active_port(self):
        self.add("mlx5_0", 0, states=("1: DOWN",))
        self.add("mlx5_1", 1, states=("1: DOWN", "4: ACTIVE"), interface="eth1")
        device, _ = self.find()
        self.assertEqual((device.name, device.port, device.address), ("mlx5_1", 2, "192.0.2.2"))

    def test_without_a_device_a_guest_is_booted(self):
        self.assertEqual(self.choose(), (None, "this machine has no RDMA device"))

    def test_each_device_that_does_not_do_says_why(self):
        self.add("mlx5_0", 0, states=("1: DOWN",))
        self.add("mlx5_1", 1, interface="eth7")
        self.add("mlx5_2", 2, node=False)
        device, why = self.choose()
        self.assertIsNone(device)
        self.assertEqual(why, "mlx5_0 has no active port; mlx5_1 has no interface with an IPv4 address; mlx5_2 cannot be used: /dev/infiniband/uverbs2 may not be opened")

    def test_the_host_asked_for_and_not_able_is_refused_with_the_reason(self):
        with self.assertRaisesRegex(Trouble, "no RDMA device; leave --kernel out") as caught:
            self.choose("--kernel", "host")
        self.assertEqual(caught.exception.code, NOTHING_TO_RUN_ON)

    def test_what_only_a_guest_can_do_means_a_guest(self):
        self.add("mlx5_0")
        for arguments in (["--nodes", "2"], ["--nodes", "2", "--net", "loss=1%"], ["--driver", "rxe"], ["--memory", "1G"], ["--cpus", "2"]):
            with self.subTest(arguments=arguments):
                device, why = self.choose(*arguments)
                self.assertIsNone(device)
                self.assertIn("needs a guest", why)
                with self.assertRaisesRegex(Trouble, "needs a guest.*example: sluice lab") as caught:
                    self.choose("--kernel", "host", *arguments)
                self.assertEqual(caught.exception.code, USAGE)
        self.assertIsNone(host.choose(options.parse(["shell"]), self.find)[0])


class Execution(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        log = mock.patch.object(host, "KERNEL_LOG", os.fspath(self.folder / "no log"))
        log.start()
        self.addCleanup(log.stop)
        machine.adopt_orphans()

    def run_it(self, *command, timeout="1m", artifacts=""):
        parsed = options.parse(["run", "--timeout", timeout, *(["--artifacts", artifacts] if artifacts else []), "--", *command])
        said = []
        code = host.HostRun(parsed, host.Device("mlx5_0", 1, "eth0", "192.0.2.1"), lambda text, always=False: said.append(text)).execute()
        return code, " ".join(said)

    def test_the_command_gets_its_environment_and_its_status_comes_back(self):
        out = self.folder / "out"
        with mock.patch.dict(os.environ, {"SLUICE_LAB_PEER": "stale"}):
            code, _ = self.run_it("sh", "-c", f'echo $SLUICE_LAB_NODE $SLUICE_LAB_ADDRESS $SLUICE_LAB_DEVICE "$SLUICE_LAB_PEER" >"{out}"; exit 41')
        self.assertEqual((code, out.read_text(encoding="ascii")), (41, "1 192.0.2.1 mlx5_0 \n"))
        self.assertEqual(self.run_it("sh", "-c", "kill -9 $$")[0], 137)

    def test_a_report_that_cannot_be_written_does_not_hide_the_status(self):
        artifacts = self.folder / "artifacts"
        (artifacts / "run.json").mkdir(parents=True)
        with self.assertRaisesRegex(Trouble, "cannot write to .*/artifacts: .*; the run's status was 41: "):
            self.run_it("sh", "-c", "exit 41", artifacts=os.fspath(artifacts))

    def test_what_it_leaves_running_is_ended_and_counted(self):
        artifacts = os.fspath(self.folder / "artifacts")
        code, said = self.run_it("sh", "-c", "sleep 1000 & setsid sleep 1000 & exit 0", artifacts=artifacts)
        self.assertEqual(code, 0)
        self.assertIn("2 processes were left", said)
        self.assertIn("not judged", said)
        with self.assertRaises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        report = json.loads((self.folder / "artifacts/run.json").read_text(encoding="utf-8"))
        self.assertEqual((report["exit"], report["kernel"], report["processes_left"], report["log_judged"]), (0, "host", 2, False))

    def test_it_is_ended_at_its_deadline(self):
        code, said = self.run_it("sleep", "1000", timeout="1s")
        self.assertEqual(code, 124)
        self.assertIn("not finished after 1 s", said)

    def test_a_status_of_its_own_is_no_deadline(self):
        # timeout(1) says the same, and is common in test scripts.
        with mock.patch.object(host, "_read_log", lambda _: ""):
            code, said = self.run_it("sh", "-c", "exit 124")
        self.assertEqual(code, 124)
        self.assertNotIn("not finished", said)
        with mock.patch.object(host, "_read_log", lambda _: "BUG: sleeping function called\n"):
            self.assertEqual(self.run_it("sh", "-c", "exit 124")[0], 99)

    def test_a_signal_ends_it(self):
        code, _ = self.run_it("sh", "-c", f"kill -TERM {os.getpid()}; sleep 1000")
        self.assertEqual(code, 128 + signal.SIGTERM)

    def test_a_kernel_that_complains_fails_the_run(self):
        with mock.patch.object(host, "_open_log", lambda: None), mock.patch.object(host, "_read_log", lambda _: "fine\nBUG: sleeping function called\n"):
            code, said = self.run_it("true")
        self.assertEqual(code, 99)
        self.assertIn("BUG: sleeping function", said)


if __name__ == "__main__":
    modules.main()
