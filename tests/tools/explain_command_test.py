#!/usr/bin/env python3
"""`sluice explain`: every code, and every counter, limit and variable has a meaning and a remedy."""
import json
import pathlib
import re

import command

CODES = ("kOk", "kTryAgain", "kNoMemory", "kUnsupported", "kInvalidArgument", "kWrongState", "kUnreachable", "kTimedOut", "kOutcomeUnknown", "kCancelled",
         "kAccessDenied", "kCorrupt", "kInternal")


class Explain(command.CommandTest):
    def explained(self, name):
        lines = self.run_command("explain", name).stdout.splitlines()
        self.assertEqual(lines[0], name)
        self.assertEqual([line.split()[0] for line in lines[1:]], ["means", "causes", "do"], name)
        for line in lines[1:]:
            self.assertRegex(line, r"^  \w+ +(-|\S.*\.)$")

    def test_every_code_is_explained(self):
        for name in CODES:
            self.explained(name)

    def counters(self):
        return [line.split()[1] for line in self.run_command("info", "--counters").stdout.splitlines() if line.startswith("counter ")]

    def counters_of_libraries(self):
        """Of what the command does not link: read from the sources."""
        names = []
        for folder in ("transport/collective", "plugins/grpc"):
            for path in pathlib.Path(folder).glob("*.cc"):
                names += re.findall(r'^Counter \w+\("([a-z0-9_.]+)"\)', path.read_text(encoding="utf-8"), re.MULTILINE)
        return names

    def listed(self):
        return [line.split()[0] for line in self.run_command("explain").stdout.splitlines()]

    def test_every_counter_is_explained(self):
        listed, counters = self.listed(), self.counters()
        self.assertGreater(len(counters), 150)
        self.assertEqual([name for name in counters if name not in listed], [])
        for name in [name for name in counters if re.search("refused|denied|silent|overdue", name)] + ["l2.frames_halved", "verbs.doorbells"]:
            self.explained(name)
        beside = self.counters_of_libraries()
        self.assertGreater(len(beside), 8)
        for name in beside:
            self.explained(name)
        # A room has all of its counters, each with the same three lines.
        lines = self.run_command("explain", "l2").stdout.splitlines()
        self.assertEqual(len(lines), 4 * sum(name.startswith("l2.") for name in counters))
        for line in lines:
            self.assertRegex(line, r"^(l2\.\w+|  (means|causes|do) +(-|\S.*\.))$")

    def test_every_limit_of_a_peer_is_explained(self):
        fields = [name.removeprefix("peer.refused_") for name in self.counters() if name.startswith("peer.refused_")]
        self.assertEqual(len(fields), 10)
        for field in fields:
            self.explained(f"PeerLimits::{field}")
            self.assertIn(f"peer.refused_{field}", self.run_command("explain", f"PeerLimits::{field}").stdout)

    def test_every_variable_is_explained(self):
        names = [setting["name"] for setting in json.loads(self.run_command("info", "--settings", "--json").stdout)["settings"]]
        self.assertGreater(len(names), 20)
        for name in names[:3]:
            self.explained(name)
        self.assertIn("ArenaOptions::limit_bytes", self.run_command("explain", "SLUICE_ARENA_LIMIT").stdout)
        self.assertIn("did you mean SLUICE_ARENA_LIMIT?", self.run_command("explain", "SLUICE_ARENA_LIMT", expect=2).stderr)

    def test_every_threshold_is_explained(self):
        out = self.run_command("info", "--explain").stdout
        names = re.findall(r"(?m)^threshold +(\w+) ", out)
        self.assertGreater(len(names), 5)
        for name in names:
            self.explained(name)
        self.assertIn("SLUICE_TUNING=spin_ns=VALUE, from 0", self.run_command("explain", "spin_ns").stdout)

    def test_nothing_is_explained_that_does_not_exist(self):
        counters, listed = self.counters() + self.counters_of_libraries(), self.listed()
        self.assertEqual(len(listed), len(set(listed)))
        self.assertEqual([name for name in listed if name not in counters and name not in CODES and "::" not in name and not name.startswith("RLIMIT_")], [])

    def test_a_room_is_explained_counter_by_counter(self):
        out = self.run_command("explain", "peer").stdout
        self.assertIn("peer.refused_wants\n  means", out)
        self.assertNotIn("session.", out)

    def test_an_unknown_name_is_refused_with_the_nearest(self):
        done = self.run_command("explain", "kTryagain", expect=2)
        self.assertIn("did you mean kTryAgain?", done.stderr)
        self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    command.main()
