#!/usr/bin/env python3
"""The record has one holder, and the command says what is in place when it ends."""
import contextlib
import errno
import fcntl
import io
import json
import os
import signal
import sys
import tempfile
import unittest
from unittest import mock

import modules
import record
import tune_system
from trouble import FAILED, Interrupted, Trouble

RMEM = "net.ipv4.tcp_rmem"
OPTIONS = {"ssh": "ssh", "dry_run": False, "report": None}
ASKED = {"cluster": {}, "workload": "w", "test": {"ipv6": False}}
BEFORE, AFTER = "4096 131072 6291456", "4096 8192 8192"
RESULT = {"workload": "w", "algorithm": "rusan", "runs": 3, "settings": 2, "chosen": {RMEM: AFTER},
          "default": {RMEM: BEFORE}, "against_default": {"rounds": 0}, "refused": {}, "tables": []}


class Node:
    """One that a run has set a value on."""

    name, reach, interface, ssh = "n1", "new", None, "false"
    identity = {"boot": "b", "network": "4:1"}

    def __init__(self, *_):
        pass

    def start(self):
        return self

    def stop(self):
        pass


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-tune-system.")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = os.path.join(self.folder, record.FILE_NAME)
        self.patch(mock.patch.dict(os.environ, SLUICE_CACHE_DIR=self.folder))
        self.out, self.err = io.StringIO(), io.StringIO()
        self.patch(contextlib.redirect_stdout(self.out))
        self.patch(contextlib.redirect_stderr(self.err))
        for each in tune_system.SIGNALS:
            self.addCleanup(signal.signal, each, signal.getsignal(each))
            signal.signal(each, tune_system._interrupted)

    def patch(self, context):
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def write(self, *entries):
        usual = {"node": "n1", "reach": "new", "interface": None, "ssh": "false", "boot": "b",
                 "network": "4:1", "name": RMEM, "before": BEFORE, "after": AFTER}
        self.write_text("".join(json.dumps(dict(usual, **entry)) + "\n" for entry in entries))

    def write_text(self, text):
        made = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        with open(made, "w", encoding="ascii") as file:
            file.write(text)


class Held(InAFolder):
    def test_a_file_that_was_removed_before_it_was_locked_is_not_the_record(self):
        removed = []

        def flock(descriptor, how):
            if not removed:
                removed.append(os.unlink(self.path))  # as the run that held it does at its end
            fcntl_flock(descriptor, how)
        fcntl_flock = fcntl.flock
        with mock.patch.object(record.fcntl, "flock", flock):
            held = record.Record()
        self.addCleanup(held.close)
        held.add(Node(), {RMEM: ("1 2 3", "4 5 6")})
        self.assertEqual(len(held.entries()), 1)
        with self.assertRaisesRegex(Trouble, "another `sluice tune system` runs"):
            record.Record()

    def test_a_record_that_was_replaced_by_its_rest_is_still_held(self):
        held = record.Record()
        self.addCleanup(lambda: held.close())
        held.add(Node(), {RMEM: ("1 2 3", "4 5 6")})
        held.keep_only(held.entries())
        with self.assertRaisesRegex(Trouble, "another `sluice tune system` runs"):
            record.Record()

    def test_a_run_begins_with_the_record_that_it_found_empty(self):
        times = []

        class Crowded(record.Record):
            def __init__(this):
                times.append(this)
                if len(times) == 2:
                    self.write({})  # another run, --apply say, came and went
                super().__init__()
        with mock.patch.object(record, "Record", Crowded):
            with tune_system.empty_record() as held:
                self.assertEqual(held.entries(), [])

    def test_a_line_that_was_cut_short_does_not_stay_in_front_of_others(self):
        self.write_text('{"node": "n1", "rea')
        with tune_system.empty_record() as held:
            held.add(Node(), {RMEM: ("1 2 3", "4 5 6")})
            self.assertEqual(len(held.entries()), 1)

    def test_a_record_without_room_on_its_disk_says_so(self):
        held = record.Record()
        self.addCleanup(held.close)
        full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
        with mock.patch.object(record.os, "fsync", full):
            with self.assertRaisesRegex(Trouble, "No space left.*; make room"):
                held.add(Node(), {RMEM: ("1 2 3", "4 5 6")})

    def test_lines_of_a_node_that_is_gone_for_good_are_named(self):
        gone = {"reach": "ssh:nowhere"}
        self.write({}, dict(gone, node="n2"), dict(gone, node="n3"),
                   dict(gone, node="n2", name="net.ipv4.tcp_wmem"))
        self.assertEqual(tune_system.undo(), FAILED)
        text = self.out.getvalue()
        self.assertIn("gone for good", text)
        self.assertIn(f"{self.path}: 1, 2\n", text)  # the line of n1 is undone, and away
        with open(self.path, encoding="ascii") as file:
            self.assertEqual([json.loads(line)["node"] for line in file], ["n2", "n2", "n3"])


class Ended(InAFolder):
    """By a signal, or by a disk that is full."""

    def cluster(self, at_the_end=lambda: None):
        @contextlib.contextmanager
        def made_up(*_):
            yield [Node()]
            at_the_end()
        self.patch(mock.patch.object(tune_system, "cluster", made_up))

    @staticmethod
    def terminated(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)

    def test_values_of_apply_stay_after_a_signal_at_its_end_and_it_says_so(self):
        class Control:
            def __init__(self, _, __, held, ___):
                self._record = held

            def prepare(self, names):
                return names, {}

            def set_kernel_parameters(self, chosen):
                self._record.add(Node(), {name: ("1 2 3", value) for name, value in chosen.items()})

        self.cluster(self.terminated)
        self.patch(mock.patch.object(tune_system, "ControlLogic", Control))
        self.patch(mock.patch.object(tune_system.results, "kept", return_value=RESULT))
        with self.assertRaises(Interrupted) as caught:
            tune_system.apply(ASKED, OPTIONS)
        said = self.err.getvalue() + str(caught.exception)
        self.assertIn("--undo` takes them back", said)
        self.assertNotIn("undone", said)
        self.assertTrue(os.path.exists(self.path))
        self.assertEqual(caught.exception.code, 128 + signal.SIGTERM)

    def test_a_signal_in_the_middle_of_undo_is_no_failure_of_a_node(self):
        self.write({"reach": "local"})
        self.patch(mock.patch.object(record.nodes, "Node", Node))
        self.patch(mock.patch.object(record, "put_back", self.terminated))
        with self.assertRaises(Interrupted):
            tune_system.undo()
        self.assertIn("run `sluice tune system --undo` again", self.err.getvalue())
        with open(self.path, encoding="ascii") as file:
            self.assertEqual(len(file.readlines()), 1)

    def test_a_signal_while_a_run_undoes_waits_for_that(self):
        def tuned(_, __, held):
            held.add(Node(), {RMEM: ("1 2 3", "4 5 6")})
            return RESULT

        def undo(*arguments):
            self.terminated()
            return real(*arguments)
        real = record.undo
        self.cluster()
        self.patch(mock.patch.object(tune_system, "_tuned", tuned))
        self.patch(mock.patch.object(record, "undo", undo))
        with self.assertRaises(Interrupted):
            tune_system.tune(ASKED, OPTIONS)
        self.assertIn("what was changed is undone", self.err.getvalue())
        self.assertFalse(os.path.exists(self.path))

    def test_a_signal_is_said_and_is_the_exit_code(self):
        with mock.patch.object(tune_system, "run", self.terminated):
            self.assertEqual(tune_system.main(), 128 + signal.SIGTERM)
        self.assertEqual(self.err.getvalue(), "sluice tune system: ended by SIGTERM\n")

    def test_a_result_that_cannot_be_kept_is_printed_and_in_the_report(self):
        self.cluster()
        with open(os.path.join(self.folder, "system"), "w", encoding="ascii"):
            pass  # where the folder of results would be
        report = os.path.join(self.folder, "report")
        self.patch(mock.patch.object(tune_system, "_tuned", lambda *_: RESULT))
        with self.assertRaisesRegex(Trouble, "set SLUICE_CACHE_DIR"):
            tune_system.tune(ASKED, dict(OPTIONS, report=report))
        self.assertIn("workload w: rusan", self.out.getvalue())
        self.assertIn(AFTER, self.out.getvalue())
        self.assertTrue(os.path.exists(os.path.join(report, "result.json")))

    def test_a_full_disk_is_said_in_one_line(self):
        full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device", "/x/y"))
        with mock.patch.object(tune_system, "run", full):
            self.assertEqual(tune_system.main(), FAILED)
        self.assertIn("/x/y: No space left on device; look at", self.err.getvalue())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
