#!/usr/bin/env python3
"""What `sluice perf` says beside its figures: `--title`, `--hist FILE`, `--progress`."""
import json
import os
import pathlib
import pty
import re
import shutil
import subprocess

import command

LOAD = ("perf", "send_lat", "--self", "--transport", "shm", "-n", "200")


class Titles(command.CommandTest):
    def test_a_title_is_in_the_table_in_json_and_in_plots(self):
        title = "eth0 & <MTU> 9000, ä"
        document, svg, script, data = self.file("result.json"), self.file("chart.svg"), self.file("chart.gp"), self.file("data")
        text = self.run_command(*LOAD, "--title", title, "--json", document, "--plot", svg, "--hist", data).stdout
        self.assertEqual(text.splitlines()[0], "# " + title)
        self.assertEqual(json.loads(pathlib.Path(document).read_text(encoding="utf-8"))["title"], title)
        self.assertIn("<title>eth0 &amp; &lt;MTU&gt; 9000, ä</title>", pathlib.Path(svg).read_text(encoding="utf-8"))
        self.assertEqual(pathlib.Path(data).read_text(encoding="utf-8").splitlines()[0], "# " + title)
        self.run_command(*LOAD, "--title", "it's", "--plot", script)
        self.assertIn("set title 'it''s' noenhanced", pathlib.Path(script).read_text(encoding="utf-8"))
        self.assertEqual(json.loads(self.run_command(*LOAD, "--title", title, "--format", "ndjson").stdout)["title"], title)
        self.assertNotIn("title", json.loads(self.run_command(*LOAD, "--format", "json").stdout))

    def test_each_line_of_a_batch_may_have_its_own(self):
        batch = self.file("batch")
        pathlib.Path(batch).write_text("send_lat --self --transport shm -n 20 --title 'one of them'\nsend_bw --self --transport shm -n 20\n", encoding="utf-8")
        document = json.loads(self.run_command("perf", "--batch", batch, "--format", "json", "--title", "both").stdout)
        self.assertEqual([document["title"], *(line["title"] for line in document["batch"]["lines"])], ["both", "one of them", "both"])

    def test_what_is_no_title_or_has_no_place_is_refused(self):
        for arguments, parts in ((["--title", ""], ("--title",)), (["--title", "a\nb"], ("--title", "no line")), (["--title", "x" * 201], ("200",)),
                                 (["--title", b"\xff\xfe"], ("UTF-8",)), (["--title", "x", "--format", "csv"], ("--title", "csv", "no place")),
                                 (["--title", "x", "--format", "perftest"], ("perftest",))):
            with self.subTest(arguments=arguments):
                done = self.run_command("perf", "send_lat", "--self", *arguments, expect=2)
                self.assertEqual(done.stdout, "")
                for part in ("--title", "example", *parts):
                    self.assertIn(part, done.stderr)
        self.assertIn("at a server", self.run_command("perf", "send_lat", "--title", "x", expect=2).stderr)


class Histograms(command.CommandTest):
    def blocks(self, *arguments):
        path = self.file("latencies")
        done = self.run_command(*arguments, "--hist", path)
        text = pathlib.Path(path).read_text(encoding="utf-8")
        head, *lines = re.split(r"(?m)^(?=# \w+ over )", text)
        self.assertEqual(len(head.splitlines()), 3)
        blocks = []
        for block in lines:
            name, *rows = block.strip().splitlines()
            blocks.append((name, [[float(word) for word in row.split()] for row in rows]))
        return blocks, text, done

    def test_each_size_has_a_block_whose_bins_hold_every_sample_once(self):
        blocks, text, done = self.blocks(*LOAD, "-s", "64", "--perturb", "3")
        self.assertEqual([name for name, _ in blocks], [f"# send_lat over shm, {size} bytes, 200 samples" for size in (61, 64, 67)])
        self.assertEqual(text.count("\n\n\n"), 2)
        self.assertEqual(len(done.stdout.splitlines()), 4)  # the table is as without it
        for _, rows in blocks:
            self.assertEqual(sum(row[2] for row in rows), 200)
            self.assertEqual(rows[-1][4], 1)
            for row in rows:
                self.assertLess(row[0], row[1])
                self.assertAlmostEqual(row[3], row[2] / 200, delta=1e-5)
            self.assertEqual([row[0] for row in rows], sorted(row[0] for row in rows))
        if shutil.which("gnuplot") is None:
            return
        drawn = subprocess.run(["gnuplot", "-e", f"set terminal svg; set logscale x; plot '{self.file('latencies')}' index 2 using 1:3 with steps"], capture_output=True, text=True, timeout=60, check=True)
        self.assertIn("<svg", drawn.stdout)

    def test_it_is_what_the_json_has_and_stands_beside_any_format(self):
        blocks, _, done = self.blocks(*LOAD, "-s", "64", "--histogram", "--format", "json")
        bins = json.loads(done.stdout)["results"][0]["histogram_ns"]
        self.assertEqual([row[2] for row in blocks[0][1]], [each["count"] for each in bins])
        for row, each in zip(blocks[0][1], bins):
            self.assertAlmostEqual(row[0], each["from"] / 1e3, delta=row[0] * 1e-4)
        for form in ("csv", "json", "perftest", "openmetrics"):
            blocks, _, done = self.blocks(*LOAD, "-s", "64", "--format", form)
            self.assertEqual(len(blocks), 1)
            self.assertNotIn("histogram_ns", done.stdout)
        for test in ("memcpy", "reg", "send_bw", "rpc_lat"):
            blocks, _, _ = self.blocks("perf", test, "--self", "-n", "20")
            self.assertEqual(sum(row[2] for row in blocks[0][1]), 20)

    def test_where_it_cannot_be_written_is_known_before_the_run(self):
        for path, why in (("/nowhere/x", "No such file"), ("-", "stdout"), ("", "empty")):
            done = self.run_command("perf", "send_lat", "--self", "--hist", path, expect=2)
            for part in ("--hist", why, "example"):
                self.assertIn(part, done.stderr)
        self.assertIn("at a server", self.run_command("perf", "send_lat", "--hist", os.path.join(self.folder, "x"), expect=2).stderr)
        self.run_command("perf", "send_lat", "--self", "--transport", "shm", "-n", "5", "--corrupt", "--hist", os.path.join(self.folder, "none"), expect=4)


def on_a_terminal(*arguments):
    """What stderr and stdout have, where the first is a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([command.BINARY, *arguments], stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL, text=True, env=command.environment()) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the last writer has closed it
                break
            if not piece:
                break
            said += piece
        out = process.stdout.read()
    os.close(ours)
    return said.decode(), out, process.returncode


class Progress(command.CommandTest):
    def test_elsewhere_than_on_a_terminal_nothing_is_said_unasked(self):
        for more in ((), ("--progress", "auto"), ("--progress", "never")):
            self.assertEqual(self.run_command(*LOAD, *more).stderr, "")

    def test_a_line_for_each_size_where_it_is_asked_for(self):
        done = self.run_command(*LOAD, "-s", "4K", "--perturb", "3", "--progress", "always")
        self.assertEqual(done.stderr.splitlines(), [f"sluice perf: send_lat {size} bytes ({at} of 3): 0 %" for at, size in enumerate((4093, 4096, 4099), 1)])
        self.assertEqual(len(done.stdout.splitlines()), 4)
        for test in ("memcpy", "reg"):
            self.assertIn(f"sluice perf: {test} 2097152 bytes: 0 %", self.run_command("perf", test, "-s", "2M", "-n", "5", "--progress", "always").stderr)

    def test_several_runs_are_counted(self):
        batch = self.file("batch")
        pathlib.Path(batch).write_text("send_lat --self --transport shm -n 20\n# x\nmemcpy -n 20 --progress never\n", encoding="utf-8")
        done = self.run_command("perf", "--batch", batch, "--progress", "always")
        self.assertEqual(done.stderr.splitlines(), ["sluice perf: [1/2] send_lat 2 bytes: 0 %"])
        done = self.run_command("perf", "all", "--self", "--transport", "tcp", "-n", "10", "--progress", "always")
        self.assertEqual([line.split()[2] for line in done.stderr.splitlines()], [f"[{at}/11]" for at in range(1, 12)])

    def test_on_a_terminal_one_line_is_written_over_and_taken_away(self):
        said, out, code = on_a_terminal(*LOAD[:-2], "-D", "0.6", "-s", "64")
        self.assertEqual((code, len(out.splitlines())), (0, 2), said)
        shown = said.split("\r\033[K")
        self.assertEqual((shown[0], shown[-1]), ("", ""))
        parts = [int(re.fullmatch(r"send_lat 64 bytes: (\d+) %", text).group(1)) for text in shown[1:-1] if text]
        self.assertGreaterEqual(len(parts), 2)
        self.assertEqual(parts, sorted(parts))
        self.assertGreater(parts[-1], 0)
        for more in (("--progress", "never"),):
            self.assertEqual(on_a_terminal(*LOAD, *more)[0], "")

    def test_another_word_is_refused(self):
        done = self.run_command(*LOAD, "--progress", "alway", expect=2)
        for part in ("--progress", "did you mean always?", "example"):
            self.assertIn(part, done.stderr)


if __name__ == "__main__":
    command.main()
