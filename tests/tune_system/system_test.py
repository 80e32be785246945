#!/usr/bin/env python3
"""`sluice tune system` on real network namespaces: it measures, chooses and leaves nothing changed, also after a crash."""
import contextlib
import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import unittest

import modules

sys.path.insert(0, os.path.join(modules.HERE, "..", "tools"))
import wire

LIMIT_SECONDS = 240  # of a hang
PR_SET_CHILD_SUBREAPER = 36
RMEM, WMEM, SCALING = "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.tcp_window_scaling"
TEST = """
[test]
start = 4096
end = 16384
fac2 = true
trials = 1
seconds = 0.002
"""
# Two nodes of one network namespace, that of this test: what is set there outlives the command.
LOCAL = TEST + f"""
[[parameter]]
name = "{RMEM}"
start = 4096
end = 262144
[[parameter]]
name = "{SCALING}"
values = [0, 1]
[front]
address = "127.0.0.1"
[[node]]
name = "n1"
address = "127.0.0.2"
reach = "REACH"
[[node]]
name = "n2"
address = "127.0.0.3"
"""


def snapshot():
    """TCP's parameters in this network namespace, without those that list the kernel's modules."""
    found = {}
    for name in sorted(os.listdir("/proc/sys/net/ipv4")):
        if name.startswith("tcp_") and "available" not in name and name != "tcp_fastopen_key":
            with contextlib.suppress(OSError), open(f"/proc/sys/net/ipv4/{name}", encoding="ascii") as file:
                found[name] = file.read()
    return found


class System(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        cls.wire = wire.Wire()
        cls.addClassCleanup(cls.wire.close)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-tune-system.")
        self.addCleanup(folder.cleanup)
        self.folder, self.cache = folder.name, os.path.join(folder.name, "cache")
        self.before = snapshot()
        self.addCleanup(self.audit)

    def audit(self):
        self.assertEqual(snapshot(), self.before)
        # Orphans end when their input does; whoever is left after that hangs.
        orphans = {int(pid) for pid in self.children(os.getpid())} - {self.wire._holder.pid}
        for pid in orphans:
            os.waitpid(pid, 0)
        self.assertFalse(os.path.exists(os.path.join(self.cache, "system-undo.jsonl")))

    @staticmethod
    def children(pid):
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return file.read().split()

    def file(self, text, name="system.toml"):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def start(self, *arguments):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        process = subprocess.Popen([sys.executable, "-B", modules.PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   stdin=subprocess.DEVNULL, env=dict(environment, SLUICE_CACHE_DIR=self.cache))
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        return process

    def run_tool(self, *arguments, expect=0):
        process = self.start(*arguments)
        out, err = process.communicate(timeout=LIMIT_SECONDS)
        self.assertEqual(process.returncode, expect, f"{arguments}\n{out}\n{err}")
        return out, err

    def local(self, reach="local"):
        return self.file(LOCAL.replace("REACH", reach))

    def run_until_changed(self, *arguments):
        """A run that has just measured a setting which is not the default."""
        process = self.start("--config", self.local(), "--algorithm", "rusan", *arguments)
        for line in process.stderr:
            if "4096 8192 8192" in line:
                return process
        self.fail("the run ended before it had changed anything")

    # --- labs

    def test_a_lab_is_tuned_and_its_result_kept_by_workload(self):
        config = self.file(TEST + f'[[parameter]]\nname = "{RMEM}"\nvalues = [4096, 131072]\nform = "first"\n'
                                  f'[[parameter]]\nname = "{SCALING}"\nvalues = [0]\n[[parameter]]\nname = "net.core.rmem_max"\nvalues = [65536]\n')
        report = os.path.join(self.folder, "report")
        out, err = self.run_tool("--lab", "2", "--config", config, "--workload", "one", "--algorithm", "rusan", "--report", report)
        self.assertIn("net.core.rmem_max", err)
        self.assertIn("set it on the machine itself", err)
        self.assertIn("times the default", out)
        self.choose({}, "two")
        self.assertEqual(self.run_tool("--results")[0].split(), ["one", "two"])
        with open(os.path.join(self.cache, "system", "one.json"), encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual(result["nodes"], ["front", "n1", "n2"])
        self.assertEqual([sorted(int(size) for size in table["best"]) for table in result["tables"]], [[4096, 8192, 16384]] * 2)
        self.assertEqual({len(result["against_default"][which]) for which in ("default", "chosen")} - {0}, {3})
        names = os.listdir(report)
        for name in ("result.json", "curves.gp", "default-and-chosen-default.raw.dat", "default-and-chosen-chosen.bezier.dat"):
            self.assertIn(name, names)

    def test_the_test_tool_measures_tcp_and_udp_over_both_families(self):
        few = ("--start", "1K", "--end", "2K", "--fac2", "--trials", "1", "--seconds", "0.002")
        report = os.path.join(self.folder, "report")
        for words in (("--ipv6", "--mode", "bidir", "--report", report), ("--transport", "udp", "--ipv6"), ("--mode", "stream", "--pairs", "2")):
            with self.subTest(words):
                out, _ = self.run_tool("--test", "--lab", "1", *few, *words)
                lines = out.splitlines()
                times = (2 if "bidir" in words else 1) * (2 if "--pairs" in words else 1)
                self.assertEqual([int(line.split()[0]) for line in lines[:2]], [1024 * times, 2048 * times])
                self.assertTrue(all(float(field) > 0 for line in lines[:2] for field in line.split()[1:5]))
                self.assertIn("half of it from", lines[2])

        self.assertEqual(sorted(os.listdir(report)), ["bidir-tcp.bezier.dat", "bidir-tcp.raw.dat", "curves.gp"])

    def test_without_the_cache_a_walk_through_200_mb_arrives_whole(self):
        out, _ = self.run_tool("--test", "--lab", "1", "--nocache", "--start", "64K", "--end", "64K", "--fac2", "--trials", "1", "--repeats", "3", "--rate", "none")
        self.assertEqual(out.splitlines()[0].split()[0], "65536")

    def test_the_test_tool_compares_every_byte_and_files_in_both_directions(self):
        out, _ = self.run_tool("--test", "--lab", "1", "--integrity", "--end", "32", "--repeats", "5")
        self.assertEqual([line.split()[-2:] for line in out.splitlines()], [["0", "failures"]] * 16)
        np_out = os.path.join(self.folder, "np.out")
        out, _ = self.run_tool("--test", "--lab", "1", "--rate", "none", "--mode", "file", "--file-bytes", "5M", "--start", "64K", "--end", "128K",
                               "--trials", "1", "--np-out", np_out)
        self.assertEqual([line.split()[:2] for line in out.splitlines()], [["65536", "there"], ["65536", "back"], ["131072", "there"], ["131072", "back"]])
        with open(np_out, encoding="utf-8") as file:
            self.assertEqual(file.read(), out)

    # --- what was changed

    def test_a_run_that_was_killed_is_undone_by_hand(self):
        process = self.run_until_changed()
        process.kill()
        process.wait()
        self.assertNotEqual(snapshot(), self.before)
        _, err = self.run_tool("--config", self.local(), expect=1)
        self.assertIn("--undo` first", err)
        # What a crash in the middle of a line leaves.
        with open(os.path.join(self.cache, "system-undo.jsonl"), "a", encoding="utf-8") as file:
            file.write('{"node": "front", "rea')
        out, err = self.run_tool("--undo")
        self.assertIn("never made", err)
        self.assertIn(f"n1: {RMEM} = ", out)
        self.assertEqual(snapshot(), self.before)
        self.assertIn("nothing to undo", self.run_tool("--undo")[0])

    def test_namespaces_of_a_lab_need_no_undoing(self):
        process = self.start("--lab", "1", "--config", self.file(LOCAL.partition("[front]")[0]), "--algorithm", "rusan")
        for line in process.stderr:
            if "4096 8192 8192" in line:
                break
        process.kill()
        process.wait()
        out, _ = self.run_tool("--undo")
        self.assertIn("n1: its network namespace ended with the run", out)

    def test_values_of_an_earlier_boot_are_forgotten(self):
        self.choose({RMEM: "4096 16384 16384"})
        self.run_tool("--config", self.local(), "--workload", "w", "--apply")
        path = os.path.join(self.cache, "system-undo.jsonl")
        with open(path, encoding="utf-8") as file:
            entries = [dict(json.loads(line), boot="an earlier one") for line in file]
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in entries)
        out, _ = self.run_tool("--undo")
        self.assertIn("front: it was booted since", out)
        self.assertNotEqual(snapshot(), self.before)  # as on a machine where somebody set them anew
        with open("/proc/sys/net/ipv4/tcp_rmem", "w", encoding="ascii") as file:
            file.write(entries[0]["before"])

    def test_a_run_that_is_interrupted_undoes_by_itself(self):
        process = self.run_until_changed()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT_SECONDS)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, err)
        self.assertIn("is undone", err)

    def test_a_node_that_is_gone_in_the_middle_is_named_and_the_others_are_undone(self):
        process = self.run_until_changed()
        agents = self.children(process.pid)  # front, n1, n2
        os.kill(int(agents[2]), signal.SIGKILL)
        _, err = process.communicate(timeout=LIMIT_SECONDS)
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("node n2 does not answer", err)

    def test_two_runs_at_once_are_refused(self):
        process = self.run_until_changed()
        _, err = self.run_tool("--undo", expect=1)
        self.assertIn("another `sluice tune system` runs", err)
        process.terminate()
        process.communicate(timeout=LIMIT_SECONDS)

    def test_what_was_changed_elsewhere_is_not_undone_here(self):
        self.choose({RMEM: "4096 16384 16384"})
        self.run_tool("--config", self.local(), "--workload", "w", "--apply")
        out, _ = self.run_tool_there("--undo", expect=1)
        self.assertIn("another network namespace", out)
        self.run_tool("--undo")

    def run_tool_there(self, *arguments, expect):
        done = subprocess.run([*self.wire.there, sys.executable, "-B", modules.PROGRAM, *arguments], capture_output=True, text=True,
                              env=dict(os.environ, SLUICE_CACHE_DIR=self.cache), timeout=LIMIT_SECONDS, check=False)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout, done.stderr

    def choose(self, values, workload="w"):
        """As if a run had chosen these."""
        path = os.path.join(self.cache, "system", workload + ".json")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "workload": workload, "chosen": values}, file)

    # --- fleets

    def test_a_result_is_set_on_a_fleet_and_taken_back(self):
        ssh = ("--ssh", shlex.quote(os.path.join(modules.HERE, "stand_in.sh")))
        config = self.local("ssh:root@n1")
        self.choose({RMEM: "4096 16384 16384", SCALING: "default"})
        out, _ = self.run_tool("--config", config, "--workload", "w", "--apply", *ssh)
        self.assertIn("n1: 1 values set and read back", out)
        with open("/proc/sys/net/ipv4/tcp_rmem", encoding="ascii") as file:
            self.assertEqual(file.read().split(), ["4096", "16384", "16384"])
        self.assertIn(f"n1: {RMEM} = ", self.run_tool("--undo")[0])

    def test_a_dry_run_contacts_nobody(self):
        self.choose({RMEM: "4096 16384 16384"})
        for words in (("--apply", "--workload", "w"), ()):
            out, _ = self.run_tool("--config", self.local("ssh:root@n1"), "--ssh", "/nowhere/ssh", "--dry-run", *words)
            self.assertIn("n1: /nowhere/ssh root@n1 AGENT", out)
            self.assertIn(f"sysctl -w {RMEM}='4096 16384 16384'", out)

    def test_a_node_that_cannot_be_reached_is_named_before_anything_is_changed(self):
        _, err = self.run_tool("--config", self.local("ssh:unreachable"), "--ssh", os.path.join(modules.HERE, "stand_in.sh"), expect=1)
        self.assertIn("node n1 does not answer: its agent ended with status 255", err)

    def test_a_result_that_the_kernel_must_not_get_is_refused(self):
        self.choose({RMEM: "4096 16384 8192"})
        _, err = self.run_tool("--config", self.local(), "--workload", "w", "--apply", expect=1)
        self.assertIn("not ascending", err)
        _, err = self.run_tool("--config", self.local(), "--workload", "none", "--apply", expect=2)
        self.assertIn("kept: w", err)

    def test_a_buffer_above_the_maximum_of_net_core_is_refused_if_the_original_rule_is_asked_for(self):
        config = self.file("within_core = true\n" + LOCAL.replace("REACH", "local").replace("262144", "536870912"))
        _, err = self.run_tool("--config", config, expect=2)
        self.assertIn("net.core.rmem_max", err)

    # --- the library's own thresholds

    def test_thresholds_of_the_library_are_measured_by_its_own_program_and_change_nothing(self):
        program = self.file('#!/bin/sh\ncase $SLUICE_TUNING in *tcp_eager_bytes=4096*) ns=1000;; *) ns=2000;; esac\n'
                            'echo "{\\"latency_ns\\": {\\"p50\\": $ns}}"\n', "sluice")
        os.chmod(program, 0o755)
        config = self.file(f'workload = "library"\n[test]\ntool = "library"\nprogram = "{program}"\nstart = 4096\nend = 8192\nfac2 = true\n'
                           '[[parameter]]\nname = "sluice.tcp_eager_bytes"\nvalues = [64, 4096, 65536]\n')
        out, _ = self.run_tool("--config", config)
        self.assertIn("2.000 times the default", out)
        out, _ = self.run_tool("--config", config, "--apply", "--workload", "library")
        self.assertIn("SLUICE_TUNING=defaults,tcp_eager_bytes=4096", out)
        self.file("#!/bin/sh\necho broken >&2\nexit 3\n", "sluice")
        _, err = self.run_tool("--config", config, expect=1)
        self.assertIn("failed: broken", err)

    # --- what is shown

    def test_what_cannot_be_set_is_shown_with_the_reason(self):
        out, _ = self.run_tool("--show", "--interface", "left")
        lines = {line.split()[0]: line for line in out.splitlines()}
        for name, part in (("net.core.rmem_max", "refused: a network namespace may only read it"), ("net.ipv4.tcp_mem", "the machine's own counts"),
                           ("interface.ring_rx", "Operation not supported"), ("interface.rx_usecs", "Operation not supported"),
                           ("interface.speed", "hardware"), ("net.ipv4.tcp_stack", "no such value"), ("interface.mtu", "1500"),
                           ("interface.tso", "can be set"), (RMEM, "can be set")):
            self.assertIn(part, lines[name])

    def test_an_interface_is_set_and_put_back(self):
        config = self.file(TEST + '[front]\naddress = "127.0.0.1"\ninterface = "left"\n[[node]]\nname = "n1"\naddress = "127.0.0.2"\n'
                                  'interface = "left"\n')
        self.choose({"interface.mtu": "9000", "interface.tso": "0"})
        self.run_tool("--config", config, "--workload", "w", "--apply")
        self.assertIn("mtu 9000", wire.ip("link", "show", "left"))
        self.run_tool("--undo")
        self.assertIn("mtu 1500", wire.ip("link", "show", "left"))


if __name__ == "__main__":
    result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False).result
    if result.skipped:
        print(f"sluice-skips {len(result.skipped)}", flush=True)  # tools/test adds them up
    sys.exit(not result.wasSuccessful())
