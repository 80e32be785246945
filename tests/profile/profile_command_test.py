#!/usr/bin/env python3
"""`sluice profile`: a program is recorded and its end is passed on, recordings are shown and
advised on, and what cannot be is told with the remedy."""
import contextlib
import json
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
import command  # noqa: E402

PING_PONG = ("perf", "send_lat", "--self", "--transport", "shm", "-s", "64", "-n")


class Profile(command.CommandTest):
    def record(self, *program, expect=0, **extra):
        """The files, and what was said."""
        folder = self.file("recordings")
        done = self.run_command(
            "profile", "record", "-o", folder, "--", *program, expect=expect, **extra)
        files = sorted(str(path) for path in pathlib.Path(folder).iterdir())
        self.addCleanup(self.remove, folder, files)
        return files, done

    def remove(self, folder, files):
        for file in files:
            os.unlink(file)
        os.rmdir(folder)
        self.expected_files.discard("recordings")

    def test_a_program_is_recorded_shown_and_advised_on(self):
        files, done = self.record(command.BINARY, *PING_PONG, "3000")
        self.assertEqual(len(files), 2)
        self.assertIn("messages", done.stderr)
        shown = self.run_command("profile", "show", *files).stdout
        for words in ("message size", "computed before", "waited before", "process", "< 256 B"):
            self.assertIn(words, shown)
        advice = json.loads(
            self.run_command(
                "profile", "advise", "--json", "--rounds", "2", "--seconds", "2", *files
            ).stdout)
        self.assertEqual(advice["schema"], "sluice.profile/1")
        waiting = advice["answers"][0]
        self.assertEqual(
            [way["name"] for way in waiting["ways"]], ["latency", "low-cpu", "automatic"])
        self.assertIn(waiting["named"], ("latency", "low-cpu", "automatic"))
        self.assertTrue(waiting["reason"])
        text = self.run_command(
            "profile", "advise", "--rounds", "1", "--seconds", "1", *files
        ).stdout
        self.assertIn("advice: ", text)
        self.assertIn("reason: ", text)
        self.assertNotIn("was not recorded", text)
        alone = self.run_command(
            "profile", "advise", "--rounds", "1", "--seconds", "1", files[0]
        ).stdout
        self.assertIn("was not recorded: it answers when it did then", alone)
        again = self.run_command("profile", "advise", files[0], files[0], expect=1)
        self.assertIn("twice", again.stderr)

    def test_a_job_of_several_servers_and_workers_is_advised_on(self):
        job = ("demo", "--model", "tiny", "--modes", "zerocopy", "--paths", "shm", "--steps", "3")
        files, _ = self.record(command.BINARY, *job, "--servers", "2", "--workers", "3")
        self.assertGreaterEqual(len(files), 5)
        text = self.run_command(
            "profile", "advise", "--rounds", "1", "--seconds", "1", *files
        ).stdout
        self.assertIn("advice: ", text)
        self.assertRegex(text, "replayed [1-9][0-9]* messages of [0-9]+ contexts over shm: ")
        self.assertNotIn("was not recorded", text)

    def test_the_end_of_the_program_is_passed_on(self):
        files, done = self.record(
            "sh", "-c", f"{command.BINARY} {' '.join(PING_PONG)} 500 && exit 7", expect=7)
        self.assertEqual(len(files), 2)
        self.assertNotIn("nothing was recorded", done.stderr)

    def test_a_program_that_is_killed_leaves_what_it_had_recorded(self):
        # The kernel ends whichever of the two processes has used a second of processor time first.
        program = f"(ulimit -t 1; exec {command.BINARY} {' '.join(PING_PONG)} 200000000); exit 9"
        files, done = self.record("sh", "-c", program, expect=9)
        with contextlib.suppress(ChildProcessError):  # the other one is ours now
            while True:
                os.waitpid(-1, 0)
        self.assertEqual(len(files), 2)
        self.assertIn("its process was killed", done.stderr)
        self.assertIn("messages were kept", done.stderr)
        self.assertIn(
            "note: its process was killed", self.run_command("profile", "show", *files).stdout)
        self.assertIn(
            "advice: ",
            self.run_command("profile", "advise", "--rounds", "1", "--seconds", "1", *files).stdout)

    def test_a_signal_to_the_recorder_ends_the_program(self):
        folder = self.file("recordings")
        for number in (signal.SIGTERM, signal.SIGHUP):
            process = self.start(
                "profile", "record", "-o", folder, "--", "sh", "-c", "echo begun; exec sleep 1000")
            self.assertEqual(process.stdout.readline(), "begun\n")
            process.send_signal(number)
            errors = process.communicate(timeout=command.LIMIT_SECONDS)[1]
            self.assertEqual(process.returncode, 128 + number, errors)
            self.assertIn("nothing was recorded", errors)
        self.remove(folder, [])  # and no process is left: audit() looks

    def test_a_program_without_a_context_is_told(self):
        files, done = self.record("true", expect=1)
        self.assertEqual(files, [])
        self.assertIn("nothing was recorded: true opened no context of sluice", done.stderr)
        self.assertIn("set-user-id", done.stderr)
        self.run_command(
            "profile", "record", "-o", os.path.join(self.folder, "recordings"), "--", "false",
            expect=1)

    def test_a_program_that_is_not_there_is_told(self):
        _, done = self.record("/no/such/program", expect=127)
        self.assertIn("/no/such/program cannot be run: No such file", done.stderr)
        self.assertNotIn("nothing was recorded", done.stderr)
        self.assertIn("PROGRAM", self.run_command("profile", "record", expect=2).stderr)

    def test_a_folder_that_cannot_be_made_is_told(self):
        done = self.run_command(
            "profile", "record", "-o", "/proc/none/such", "--", "true", expect=1)
        self.assertIn("--output", done.stderr)
        path = self.file("file")
        pathlib.Path(path).write_text("", encoding="utf-8")
        self.assertIn(
            "is no folder",
            self.run_command("profile", "record", "-o", path, "--", "true", expect=1).stderr)

    def test_what_is_no_recording_is_told(self):
        path = pathlib.Path(self.file("file"))
        for content, words in (
            (b"", "is empty"),
            (b"#!/bin/sh\n", "is no recording"),
            (b"SLUICREC\x02\x00\x00\x00" + bytes(400), "version 2"),
        ):
            path.write_bytes(content)
            for action in ("show", "advise"):
                self.assertIn(
                    words, self.run_command("profile", action, str(path), expect=1).stderr)
        self.assertIn(
            "cannot be opened",
            self.run_command("profile", "show", "/no/such/file", expect=1).stderr)


if __name__ == "__main__":
    command.main()
