#!/usr/bin/env python3
"""`sluice explain`: every code, and every counter of something that was refused, has a meaning and a remedy."""
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

    def test_every_counter_of_a_refusal_is_explained(self):
        counters = [line.split()[1] for line in self.run_command("info", "--counters").stdout.splitlines() if line.startswith("counter ")]
        refusals = [name for name in counters if re.search("refused|denied|silent|overdue", name)]
        self.assertGreater(len(refusals), 30)
        for name in refusals:
            self.explained(name)

    def test_nothing_is_explained_that_does_not_exist(self):
        counters = {line.split()[1] for line in self.run_command("info", "--counters").stdout.splitlines() if line.startswith("counter ")}
        listed = [line.split()[0] for line in self.run_command("explain").stdout.splitlines()]
        self.assertEqual(len(listed), len(set(listed)))
        self.assertEqual([name for name in listed if name not in counters and name not in CODES], [])

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
