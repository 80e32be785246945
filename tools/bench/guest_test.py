#!/usr/bin/env python3
"""Tests of how `sluice bench` waits for its guest. The guest is a fake: a real one hangs once in
hours."""
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path[:0] = [os.path.dirname(os.path.realpath(__file__)),
                os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "benchmarks")]

import guest  # noqa: E402


class Lab:
    """Runs for so many waits, or until it is ended; `each` is called in each of them."""

    def __init__(self, waits, each=lambda: None):
        self.waits, self.each, self.ended = waits, each, False

    def wait(self, timeout=None):
        if self.ended:
            return 130
        if self.waits == 0:
            return 0
        assert timeout is not None, "it would wait for ever"
        self.waits -= 1
        self.each()
        raise subprocess.TimeoutExpired("lab", timeout)

    def terminate(self):
        self.ended = True


class Waiting(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.rounds = os.path.join(folder.name, "rounds.json")
        self.seconds, self.said = 0, []

    def clock(self):
        """Each look at it is a minute later."""
        self.seconds += 60
        return self.seconds

    def write_round(self):
        with open(self.rounds, "w", encoding="utf-8") as file:
            file.write("{}")
        os.utime(self.rounds, ns=(0, self.seconds))  # each differs from the one before

    def wait_for(self, lab):
        return guest.wait_for(lab, self.rounds, self.said.append, self.clock)

    def test_a_guest_that_finishes_rounds_may_take_hours(self):
        lab = Lab(1000, self.write_round)
        self.assertEqual(self.wait_for(lab), 0)
        self.assertFalse(lab.ended)
        self.assertEqual(self.said, [])

    def test_a_guest_without_a_round_for_half_an_hour_is_ended(self):
        lab = Lab(1000)
        self.assertEqual(self.wait_for(lab), 130)
        self.assertTrue(lab.ended)
        self.assertIn("no round for 30 minutes", self.said[0])

    def test_a_guest_that_stops_in_the_middle_is_ended(self):
        lab = Lab(1000, lambda: lab.waits > 500 and self.write_round())
        self.assertEqual(self.wait_for(lab), 130)
        self.assertLess(lab.waits, 500)
        self.assertGreater(lab.waits, 400)


if __name__ == "__main__":
    unittest.main()
