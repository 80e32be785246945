#!/usr/bin/env python3
"""`sluice graph`: what it makes it reads, its plans are complete, and wrong files are told with the remedy."""
import json

import command


class Graph(command.CommandTest):
    def made(self, *flags):
        path = self.file("graph.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.run_command("graph", "make", *flags).stdout)
        return path

    def test_a_network_is_made_checked_and_planned(self):
        path = self.made("--model", "lstm", "--workers", "2", "--servers", "2")
        checked = self.run_command("graph", "check", path).stdout
        self.assertIn("4 processes", checked)
        self.assertIn("28 views, 0 crossings", checked)
        text = self.run_command("graph", "plan", path, "--instructions").stdout
        for words in ("weights/layer1/weight", "view worker0 ahead", "in place of", "estimated step", "await"):
            self.assertIn(words, text)
        plan = json.loads(self.run_command("graph", "plan", "--json", path).stdout)
        self.assertEqual(plan["schema"], "sluice.graph.plan/1")
        self.assertEqual({delivery["route"] for delivery in plan["deliveries"]}, {"view"})
        together = sum(process["bytes"] for process in plan["processes"])
        # Without a reader afterwards the weights are updated in place: each model once, each gradient once.
        self.assertEqual(together, 3 * 66_022_000 * 4)
        apart = json.loads(self.run_command("graph", "plan", "--json", "--apart", path).stdout)
        self.assertGreater(sum(process["bytes"] for process in apart["processes"]), together)

    def test_other_hosts_are_crossed_to(self):
        path = self.made("--model", "gru", "--hosts", "--layers", "4", "--verify")
        self.assertIn("0 views, 22 crossings", self.run_command("graph", "check", path).stdout)

    def test_more_workers_are_estimated(self):
        lines = self.run_command("graph", "scale", "--model", "alexnet", "--hosts", "--compute-us", "500000",
                                 "--scale", "1,4,64").stdout.splitlines()
        rows = [line.split() for line in lines[1:]]
        self.assertEqual([row[0] for row in rows], ["1", "4", "64"])
        self.assertEqual(rows[0][3], "1.00")
        for before, after in zip(rows, rows[1:]):
            self.assertGreater(float(after[2]), float(before[2]))
            self.assertLess(float(after[4].rstrip("%")), float(before[4].rstrip("%")))

    def test_split_tensors_scale_further(self):
        def speed_up(*flags):
            return float(self.run_command("graph", "scale", "--hosts", "--compute-us", "500000", "--scale", "1,16", *flags)
                         .stdout.splitlines()[2].split()[3])
        self.assertGreater(speed_up("--split"), 1.5 * speed_up())
        self.assertIn("give one of them", self.run_command("graph", "scale", "--split", "--layers", "2", expect=1).stderr)

    def test_wrong_files_are_told_with_the_remedy(self):
        path = self.made("--model", "gru")
        with open(path, encoding="utf-8") as file:
            graph = json.load(file)
        for change, words in (
                (lambda g: g["edges"][0].pop("shape"), "has no shape"),
                (lambda g: g["edges"][0].update(dtype="float33"), "'float33' is unknown"),
                (lambda g: g["edges"][0].pop("delay"), "has a cycle"),
                (lambda g: g["nodes"][0].update(process="nobody"), "is placed in 'nobody'")):
            wrong = json.loads(json.dumps(graph))
            change(wrong)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(wrong, file)
            for action in ("check", "plan"):
                done = self.run_command("graph", action, path, expect=1)
                self.assertTrue(done.stderr.startswith("sluice graph: "), done.stderr)
                self.assertIn(words, done.stderr)
                self.assertEqual(done.stdout, "")
        self.assertIn("cannot be opened", self.run_command("graph", "check", "/nowhere", expect=1).stderr)
        self.assertIn("name the FILE", self.run_command("graph", "plan", expect=2).stderr)
        self.assertIn("example", self.run_command("graph", "draw", expect=2).stderr)

    def test_what_an_action_does_not_use_is_refused_and_not_ignored(self):
        path = self.made("--json")
        for arguments, words in (
                (("make", "alexnet"), "FILE: 'make' does not use it; it is for plan, check"),
                (("scale", path), "FILE: 'scale' does not use it; it is for plan, check"),
                (("scale", "--workers", "8"), "--workers: 'scale' does not use it; it is for make"),
                (("make", "--scale", "8"), "--scale: 'make' does not use it; it is for scale"),
                (("check", path, "--json"), "--json: 'check' does not use it; it is for plan"),
                (("plan", path, "--model", "gru"), "--model: 'plan' does not use it; it is for make")):
            done = self.run_command("graph", *arguments, expect=2)
            self.assertIn(words, done.stderr)
            self.assertIn("example", done.stderr)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    command.main()
