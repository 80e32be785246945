#!/usr/bin/env python3
"""`sluice completion` and `sluice manual`: bash completes with the script, and the pages have every flag that --help has."""
import contextlib
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import unittest

import command

COMMANDS = ("perf", "demo", "broker", "dump", "info", "doctor", "explain", "profile", "tune", "proxy", "graph", "lab", "bench", "completion", "manual", "version")
# man(7)
MACROS = {"TH", "SH", "TP", "B", "PP", "nf", "fi"}


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
        self.assertEqual(set(self.complete("doctor", "--need", "")), {"shm", "rdma", "kmod", "l2", "xdp", "udp", "tcp"})

    def test_flags_of_the_python_programs_are_completed(self):
        self.assertEqual(set(self.complete("lab", "--no")), {"--nodes", "--node"})
        self.assertEqual(set(self.complete("lab", "s")), {"shell"})
        self.assertEqual(set(self.complete("bench", "--re")), {"--replace", "--report"})
        self.assertEqual(set(self.complete("tune", "")), {"-h", "--help", "--if-needed", "--dry-run", "system"})
        self.assertEqual(set(self.complete("tune", "system", "--i")), {"--interface", "--integrity", "--ipv6"})

    @unittest.skipUnless(shutil.which("zsh"), "no zsh; tools/setup --shells")
    def test_zsh_completes_as_it_is_typed(self):
        path = f"{self.bin_with_sluice()}:{os.environ['PATH']}"
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update(TERM="dumb", COLUMNS="200", PATH=path)
            os.execvp("zsh", ["zsh", "-f", "-i"])
        self.addCleanup(self.reap)
        self.addCleanup(os.close, terminal)

        def types(text, expected):
            os.write(terminal, text)
            got = b""
            while expected not in got:
                self.assertTrue(select.select([terminal], [], [], 120)[0], got)  # a hang
                got += os.read(terminal, 65536)

        types(b"autoload -U compinit && compinit -D; source <(sluice completion zsh); echo rea''dy\n", b"ready\r\n")
        types(b"sluice doc\t", b"doctor ")
        types(b"--n\t", b"--need ")
        types(b"\x15sluice perf send_\t\t", b"send_lat")
        os.write(terminal, b"\x15exit\n")

    @staticmethod
    def reap():
        """The shell, and what its <(...) began: orphans become ours."""
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)

    def bin_with_sluice(self):
        folder = os.path.join(self.folder, "bin")
        self.addCleanup(shutil.rmtree, folder, True)
        os.mkdir(folder)
        os.symlink(os.path.realpath(command.BINARY), os.path.join(folder, "sluice"))
        return folder

    def test_a_page_has_every_flag_of_the_help(self):
        for name in COMMANDS:
            page = self.run_command("manual", name).stdout
            self.assertTrue(page.startswith(f".TH sluice-{name} 1 "), page[:80])
            macros = {re.match(r"\.(\S*)", line).group(1) for line in page.splitlines() if line.startswith((".", "'"))}
            self.assertLessEqual(macros, MACROS)
            lines = self.run_command(name, "--help").stdout.splitlines()
            if name in ("lab", "bench"):
                flags = self.complete(name, "--")  # which another test compares with what Python reads
                self.assertGreater(len(flags), 8)
            else:
                flags = re.findall(r"(?:^|[\s,])(--[a-z][a-z_0-9-]*)(?=[,\s{])", "\n".join(line[:28] for line in lines if line.startswith("  -")))
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

    def test_python_programs_have_help_without_their_python_part(self):
        # A copy of the binary alone: no runfiles beside it, and none named.
        alone = os.path.join(self.folder, "alone")
        self.addCleanup(shutil.rmtree, alone, True)
        os.makedirs(os.path.join(alone, "bin"))
        copy = shutil.copy(os.path.realpath(command.BINARY), os.path.join(alone, "bin/sluice"))
        settings = {name: value for name, value in command.environment().items() if not name.startswith("RUNFILES")}
        tree = pathlib.Path(os.path.realpath(__file__)).parents[2]
        for name, verbs in (("lab", ("", "run", "shell", "prepare", "headers", "fault")), ("bench", ("",)), ("tune system", ("",))):
            file = name.replace(" ", "_")
            with self.subTest(name):
                done = subprocess.run([copy, *name.split(), "--help"], capture_output=True, text=True, env=settings, timeout=60, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertTrue(done.stdout.startswith(f"usage: sluice {name} "), done.stdout)
                self.assertIn(f"SLUICE_{file.upper()}_HOME", done.stdout)
                own = "".join(subprocess.run([sys.executable, "-B", str(tree / f"tools/{file}/{file}.py"), *verb.split(), "--help"], capture_output=True,
                                             text=True, env=settings, timeout=60, check=True).stdout for verb in verbs)
                flags = set(re.findall(r"--[a-z][a-z0-9-]+", own)) - {"--help"}
                self.assertGreater(len(flags), 8)
                self.assertEqual({flag for flag in flags if flag not in done.stdout}, set())
                self.assertEqual({verb for verb in verbs if verb not in done.stdout}, set())
                done = subprocess.run([copy, *name.split(), "run"], capture_output=True, text=True, env=settings, timeout=60, check=False)
                self.assertEqual(done.returncode, 77)
                self.assertIn("is in none of", done.stderr)

    def test_what_is_not_there_is_said(self):
        self.assertIn("'perv' is no command", self.run_command("manual", "perv", expect=2).stderr)
        self.assertIn("fish", self.run_command("completion", "fish", expect=2).stderr)
        # The example is of that command, and of none where there is none.
        for name in ("explain", "completion", "manual", "version"):
            self.assertRegex(self.run_command(name, "--frob", expect=2).stderr, f"example: .*sluice {name}")
        self.assertIn("`sluice --help` lists all", self.run_command(expect=2).stderr)


if __name__ == "__main__":
    command.main()
