#!/usr/bin/env python3
"""Tests of interrupts.py on counters as the kernel writes them, and on a command that sleeps a
thousand times."""
import json
import os
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)

import interrupts  # noqa: E402

TABLE = """           CPU0       CPU1
 24:          1          2  IO-APIC   5-edge      ACPI:Ged
 25:          4          0 GICv3  27 Level     arch_timer
 31:         10          0 PCI-MSIX-0000:00:01.0   3-edge      virtio0-stats
LOC:        100         50   Local timer interrupts
RES:          7          0   Rescheduling interrupts
ERR:          3
"""
SLEEPS = (
    "import os, time, json\nfor _ in range(1000): time.sleep(1e-6)\nprint(json.dumps({'iterations':"
    " 500, 'verified': True}))")


class Interrupts(unittest.TestCase):
    def test_are_counted_by_kind_over_all_processors_without_the_numbers_of_their_names(self):
        self.assertEqual(
            interrupts.interrupts(TABLE), {"device": 17, "LOC": 150, "RES": 7, "ERR": 3})

    def test_of_a_message_are_the_difference_divided_by_the_messages(self):
        before = {"interrupts": {"LOC": 10, "RES": 0}, "softirqs": 5, "switches": 100}
        after = {"interrupts": {"LOC": 20, "RES": 90, "CAL": 0}, "softirqs": 105, "switches": 300}
        said = interrupts.per_message(before, after, 100)
        self.assertEqual(
            (
                said["interrupts_per_message"], said["softirqs_per_message"],
                said["switches_per_message"]),
            (1.0, 1.0, 2.0))
        self.assertEqual(said["interrupts_by_kind"], {"LOC": 0.1, "RES": 0.9})

    def test_stand_in_the_line_of_a_command_that_they_were_counted_over(self):
        command = [
            sys.executable, "-B", os.path.join(HERE, "interrupts.py"), "--per-iteration", "2", "--",
            sys.executable]
        ran = subprocess.run([*command, "-c", SLEEPS], capture_output=True, text=True, check=True)
        line = json.loads(ran.stdout)
        self.assertEqual((line["iterations"], line["verified"]), (500, True))
        self.assertGreater(line["switches_per_message"], 0.9)
        self.assertGreater(line["interrupts_per_message"], 0)
        self.assertEqual(
            subprocess.run(
                [*command, "-c", "raise SystemExit(4)"], capture_output=True, check=False
            ).returncode,
            4)


if __name__ == "__main__":
    unittest.main()
