#!/usr/bin/env python3
"""`sluice completion` and `sluice manual`: bash completes with the script, and the pages have every flag that --help has."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import command

COMMANDS = ("perf", "demo", "broker", "dump", "info", "doctor", "explain", "tune", "proxy", "graph", "lab", "bench", "completion", "manual", "version")
# man(7)
MACROS = {"TH", "SH", "TP", "B", "PP"}


class Manual(command.CommandTest):
    def complete(self, *words, shell="bash"):
        """What bash offers for the last of `words`."""
        script = self.run_command("completion", shell).stdout
        if shell == "zsh":
            first, _, script = script.partition("\n")
            self.assertEqual(first, "autoload -U +X bashcompinit && bashcompinit")
        ask = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sluice; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "--norc", "-c", script + ask, "bash", "sluice", *words], capture_output=True, text=True, check=True, timeout=60)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_commands_flags_and_their_values_are_completed(self):
        for shell in ("bash", "zsh"):
            self.assertEqual(set(self.complete("", shell=shell)), set(COMMANDS))
        self.assertEqual(set(self.complete("do")), {"doctor"})
        self.assertIn("--transport", self.complete("perf", "--t"))
        self.assertEqual(set(self.complete("perf", "send_")), {"send_lat", "send_bw"})
        self.assertEqual(set(self.complete("doctor", "--need", "")), {"shm", "rdma", "kmod", "l2", "udp", "tcp"})

    def test_a_page_has_every_flag_of_the_help(self):
        for name in COMMANDS:
            page = self.run_command("manual", name).stdout
            self.assertTrue(page.startswith(f".TH sluice-{name} 1 "), page[:80])
            macros = {re.match(r"\.(\S*)", line).group(1) for line in page.splitlines() if line.startswith((".", "'"))}
            self.assertLessEqual(macros, MACROS)
            if name in ("lab", "bench"):
                self.assertIn(f"sluice {name} \\-\\-help", page)
                continue
            flags = re.findall(r"(?:^|[\s,])(--[a-z][a-z_0-9-]*)(?=[,\s{])", "\n".join(line[:28] for line in self.run_command(name, "--help").stdout.splitlines() if line.startswith("  -")))
            self.assertIn("--help", flags)
            for flag in flags:
                self.assertIn(flag.replace("-", "\\-"), page)

    def test_all_pages_are_written_into_a_folder(self):
        folder = pathlib.Path(self.file("man"))
        self.addCleanup(shutil.rmtree, folder, True)
        self.expected_files.clear()
        self.run_command("manual", "--all", str(folder))
        self.assertEqual({path.name for path in folder.iterdir()}, {"sluice.1"} | {f"sluice-{name}.1" for name in COMMANDS})
        for name in COMMANDS:
            self.assertIn(f".B {name}\n", (folder / "sluice.1").read_text(encoding="utf-8"))
        self.assertIn("another folder", self.run_command("manual", "--all", "/proc/no", expect=1).stderr)
        shutil.rmtree(folder)

    def test_lab_and_bench_have_help_without_their_python_part(self):
        # A copy of the binary alone: no runfiles beside it, and none named.
        alone = os.path.join(self.folder, "alone")
        self.addCleanup(shutil.rmtree, alone, True)
        os.makedirs(os.path.join(alone, "bin"))
        copy = shutil.copy(os.path.realpath(command.BINARY), os.path.join(alone, "bin/sluice"))
        settings = {name: value for name, value in command.environment().items() if not name.startswith("RUNFILES")}
        tree = pathlib.Path(os.path.realpath(__file__)).parents[2]
        for name, verbs in (("lab", ("", "run", "shell", "prepare", "headers", "fault")), ("bench", ("",))):
            with self.subTest(name):
                done = subprocess.run([copy, name, "--help"], capture_output=True, text=True, env=settings, timeout=60, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertTrue(done.stdout.startswith(f"usage: sluice {name} "), done.stdout)
                self.assertIn(f"SLUICE_{name.upper()}_HOME", done.stdout)
                own = "".join(subprocess.run([sys.executable, "-B", str(tree / f"tools/{name}/{name}.py"), *verb.split(), "--help"], capture_output=True,
                                             text=True, env=settings, timeout=60, check=True).stdout for verb in verbs)
                flags = set(re.findall(r"--[a-z][a-z-]+", own)) - {"--help"}
                self.assertGreater(len(flags), 8)
                self.assertEqual({flag for flag in flags if flag not in done.stdout}, set())
                self.assertEqual({verb for verb in verbs if verb not in done.stdout}, set())
                done = subprocess.run([copy, name, "run"], capture_output=True, text=True, env=settings, timeout=60, check=False)
                self.assertEqual(done.returncode, 77)
                self.assertIn("is in none of", done.stderr)

    def test_what_is_not_there_is_said(self):
        self.assertIn("'perv' is no command", self.run_command("manual", "perv", expect=2).stderr)
        self.assertIn("fish", self.run_command("completion", "fish", expect=2).stderr)


if __name__ == "__main__":
    command.main()
