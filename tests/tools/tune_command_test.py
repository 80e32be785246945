#!/usr/bin/env python3
"""`sluice tune`: what it measures is kept, used, explained, and measured anew where it cannot be trusted."""
import json
import os
import tempfile

import command


class Tune(command.CommandTest):
    def setUp(self):
        super().setUp()
        kept = tempfile.TemporaryDirectory(prefix="sluice-tune.")
        self.addCleanup(kept.cleanup)
        self.cache = kept.name

    def run_here(self, *arguments, **extra):
        return self.run_command(*arguments, **dict({"SLUICE_CACHE_DIR": self.cache}, **extra))

    def tuning(self, **extra):
        return json.loads(self.run_here("info", "--json", **extra).stdout)["tuning"]

    def test_nothing_is_measured_or_written_unasked(self):
        tuning = self.tuning()
        self.assertEqual(tuning["file_state"], "none")
        self.assertTrue(all(knob["source"] == "default" for knob in tuning["thresholds"]))
        explained = self.run_here("info", "--explain").stdout
        self.assertIn("sluice tune", explained)
        self.run_here("tune", "--dry-run")
        self.assertEqual(os.listdir(self.cache), [])

    def test_what_was_measured_is_used_and_explained(self):
        self.run_here("tune")
        [name] = os.listdir(self.cache)
        self.assertEqual(os.stat(os.path.join(self.cache, name)).st_mode & 0o777, 0o600)
        tuning = self.tuning()
        self.assertEqual(tuning["file_state"], "read")
        for knob in tuning["thresholds"]:
            self.assertEqual(knob["source"], "probe")
            self.assertTrue(knob["why"])
            self.assertGreaterEqual(knob["value"], knob["least"])
            self.assertLessEqual(knob["value"], knob["most"])
        lines = [line for line in self.run_here("info", "--explain").stdout.splitlines() if line.startswith("threshold ")]
        self.assertEqual(len(lines), len(tuning["thresholds"]))
        self.assertTrue(all(tuning["probed_at"] in line for line in lines))
        self.assertIn("nothing to do", self.run_here("tune", "--if-needed").stdout)

        # Refused, said, and measured anew.
        with open(os.path.join(self.cache, name), "w", encoding="utf-8") as file:
            file.write("garbage")
        refused = self.run_here("info", "--explain")
        self.assertIn("is not used", refused.stderr)
        self.assertIn("refused", refused.stdout)
        self.assertIn("measuring anew", self.run_here("tune", "--if-needed").stderr)
        self.assertEqual(self.tuning()["file_state"], "read")

    def test_the_environment_overrides_and_says_so(self):
        knobs = {knob["name"]: knob for knob in self.tuning(SLUICE_TUNING="spin_ns=0,tcp_eager_bytes=64K")["thresholds"]}
        self.assertEqual(knobs["spin_ns"]["value"], 0)
        self.assertEqual(knobs["tcp_eager_bytes"]["value"], 65536)
        self.assertEqual(knobs["tcp_eager_bytes"]["source"], "environment")
        self.assertEqual(knobs["shm_eager_bytes"]["source"], "default")

    def test_thresholds_carry_messages_of_any_size(self):
        for transport, setting in (("shm", "shm_eager_bytes=64,shm_eager_sleeping_bytes=64"),
                                   ("shm", "shm_eager_bytes=64,shm_eager_sleeping_bytes=64K"),
                                   ("shm", "shm_eager_bytes=64K"),
                                   ("tcp", "tcp_eager_bytes=64"), ("tcp", "tcp_eager_bytes=64K")):
            for size in ("30000", "65536", "1048576"):
                for waiting in ((), ("--events",)):
                    self.run_here("perf", "send_bw", "--self", "--transport", transport, "-s", size, "-n", "64", "--verify", *waiting,
                                  SLUICE_TUNING=f"{setting},stream_copy_bytes=256K")

    def test_batches_carry_messages_of_any_size(self):
        for frames in ("1", "7", "92"):
            for size in ("64", "65536", "1048576"):
                self.run_here("perf", "send_bw", "--self", "--transport", "udp", "-s", size, "-n", "40", "--verify", SLUICE_TUNING=f"l2_batch_frames={frames}")

    def test_what_goes_past_the_caches_arrives_in_one_place_and_in_many(self):
        for depth in ("1", "80"):
            for reach in ("256K", "2M"):
                self.run_here("perf", "exchange_bw", "--self", "--transport", "shm", "--into", "--consume", "-s", "300001", "-n", "200", "-t", depth, "--verify",
                              SLUICE_TUNING=f"stream_copy_bytes={reach}")

    def test_a_secret_rules_out_no_path_that_is_measured(self):
        secret = os.path.join(self.cache, "secret")
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write("sixteen bytes and more\n")
        told = self.run_here("tune", "--dry-run", SLUICE_L2_SECRET_FILE=secret).stdout
        self.assertIn("tcp_eager_bytes", told)
        self.assertNotIn("second process", told)
        # What the second process says of itself reaches whoever asked.
        done = self.run_here("tune", "--dry-run", expect=1, SLUICE_L2_SECRET_FILE="/nowhere/secret")
        self.assertIn("/nowhere/secret", done.stderr)

    def test_a_place_that_cannot_be_written_is_named(self):
        done = self.run_here("tune", expect=1, SLUICE_CACHE_DIR="/proc/nowhere")
        self.assertIn("/proc/nowhere", done.stderr)

    def test_a_wrong_setting_stops_the_program(self):
        done = self.run_here("perf", "send_lat", "--self", expect=1, SLUICE_TUNING="spin=3")
        for part in ("SLUICE_TUNING", "spin=3", "for example"):
            self.assertIn(part, done.stderr)


if __name__ == "__main__":
    command.main()
