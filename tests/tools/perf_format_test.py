#!/usr/bin/env python3
"""What `sluice perf` prints: the formats, perftest's text to the letter, other names, flags that are near."""
import csv
import io
import json
import os
import re

import command

RULE = "-" * 87
# Lines of perftest 4.5, taken from its own output over soft-RoCE (figures replaced by classes of characters).
BANDWIDTH_HEADER = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
BANDWIDTH_ROW = r"^ (\d+) +(\d+) {2,}([\d.]+) {2,}([\d.]+) *\t\t   (\d+\.\d{6}) *$"
LATENCY_HEADER = (" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
                  "   99% percentile[usec]   99.9% percentile[usec] ")
LATENCY_ROW = r"^ (\d+) +(\d+) {10}([\d.]+) +([\d.]+) +([\d.]+) +\t {7}([\d.]+) +\t([\d.]+) *\t\t([\d.]+) *\t\t([\d.]+) *$"
ROWS_OF_PERFTEST = (
    (BANDWIDTH_ROW, " 65536      20               44.09              27.88  \t\t   0.000446"),
    (BANDWIDTH_ROW, " 131072     20               50.22              27.69  \t\t   0.000222"),
    (LATENCY_ROW, " 2       20          2298.02        11819.02      6014.76  \t       6080.96     \t2204.15\t\t11819.02 \t\t11819.02"),
    (LATENCY_ROW, " 8       20          20.35          82.27        25.69    \t       29.52       \t10.36  \t\t82.27   \t\t82.27  "),
)
DURATION_HEADER = " #bytes        #iterations       t_avg[usec]    tps average"


def row_of(text):
    return text.splitlines()[-2]


class Perftest(command.CommandTest):
    def linked(self, name):
        path = self.file(name)
        if os.path.islink(path):
            return path
        os.symlink(command.BINARY, path)
        return path

    def run_link(self, name, *arguments, expect=0):
        # Instead of the binary itself, which the shell is given first.
        done = self.run_command(*arguments, expect=expect, within=("sh", "-c", 'shift; exec "$0" "$@"', self.linked(name)))
        return done

    def test_a_link_named_after_a_test_of_perftest_runs_it_and_prints_its_text(self):
        titles = {"ib_write_bw": "RDMA_Write BW Test", "ib_read_bw": "RDMA_Read BW Test", "ib_send_bw": "Send BW Test"}
        for name, title in titles.items():
            with self.subTest(name=name):
                lines = self.run_link(name, "--self", "--transport", "shm", "-s", "4K", "-n", "20").stdout.splitlines()
                self.assertEqual(lines[0], RULE)
                self.assertEqual(lines[1], " " * 20 + title)
                self.assertEqual(lines[2], " Dual-port       : OFF\t\tDevice         : shm")
                self.assertIn(" local address: LID 0000 QPN 000000 PSN 000000", lines)  # printf's own way with zeroes
                self.assertEqual(lines[-3], BANDWIDTH_HEADER)
                self.assertRegex(lines[-2], BANDWIDTH_ROW)
                self.assertEqual(re.match(BANDWIDTH_ROW, lines[-2]).groups()[:3], ("4096", "20", "0.00"))
                self.assertEqual(lines[-1], RULE)
        titles = {"ib_write_lat": "RDMA_Write Latency Test", "ib_read_lat": "RDMA_Read Latency Test", "ib_send_lat": "Send Latency Test"}
        for name, title in titles.items():
            with self.subTest(name=name):
                lines = self.run_link(name, "--self", "--transport", "shm", "-n", "50").stdout.splitlines()
                self.assertEqual(lines[1], " " * 20 + title)
                self.assertEqual(lines[-3], LATENCY_HEADER)
                self.assertRegex(lines[-2], LATENCY_ROW)
                low, high, typical = (float(x) for x in re.match(LATENCY_ROW, lines[-2]).groups()[2:5])
                self.assertLessEqual(low, typical)
                self.assertLessEqual(typical, high)

    def test_rows_that_perftest_itself_printed_have_the_form_that_is_asked_of_ours(self):
        for form, row in ROWS_OF_PERFTEST:
            self.assertRegex(row, form)

    def test_atomics_have_names_too(self):
        for name in ("ib_atomic_bw", "ib_atomic_lat"):
            done = self.run_link(name, "--self", "--transport", "tcp", expect=2)
            self.assertIn("'tcp' has no atomics", done.stderr)

    def test_a_link_with_our_own_prefix_prints_the_table(self):
        done = self.run_link("sluice_send_lat", "--self", "--transport", "shm", "-n", "20")
        self.assertIn("copies/byte", done.stdout)

    def test_a_latency_by_duration_has_the_columns_that_perftest_gives_it(self):
        done = self.run_command("perf", "write_lat", "--self", "--transport", "shm", "-D", "0.1", "--format", "perftest")
        self.assertEqual(done.stdout.splitlines()[-3], DURATION_HEADER)
        self.assertRegex(row_of(done.stdout), r"^ 2             \d+ +[\d.]+ +[\d.]+ *$")

    def test_gigabits_are_eight_bytes_of_a_billion_each(self):
        path = self.file("both.json")
        done = self.run_command("perf", "write_bw", "--self", "--transport", "shm", "-s", "1M", "-n", "50", "--format", "perftest", "--report_gbits", "--json", path)
        self.assertIn("BW average[Gb/sec]", done.stdout)
        with open(path, encoding="utf-8") as file:
            rate = json.load(file)["results"][0]["bytes_per_second"]
        self.assertAlmostEqual(float(row_of(done.stdout).split()[3]), rate * 8 / 1e9, delta=0.01)

    def test_all_sizes_are_rows_of_one_table(self):
        done = self.run_command("perf", "send_bw", "--self", "--transport", "shm", "-a", "-n", "5", "--format", "perftest")
        rows = [line for line in done.stdout.splitlines() if re.match(BANDWIDTH_ROW, line)]
        self.assertEqual([int(row.split()[0]) for row in rows], [2 ** exponent for exponent in range(1, 24)])

    def test_flags_of_perftest_that_have_no_effect_warn_once_and_are_refused_under_strict(self):
        arguments = ["perf", "send_bw", "--self", "--transport", "shm", "-n", "20", "-d", "rxe0", "-Q", "1", "-F", "-N", "-c", "RC"]
        done = self.run_command(*arguments)
        self.assertEqual([line.split(" has no effect")[0] for line in done.stderr.splitlines()], ["sluice perf: --ib-dev", "sluice perf: --cq-mod"])
        done = self.run_command(*arguments, "--strict", expect=2)
        self.assertIn("--ib-dev", done.stderr)
        self.assertEqual(done.stdout, "")
        self.run_command("perf", "send_bw", "--self", "--transport", "shm", "-n", "20", "-F", "-N", "--strict")


    def test_flags_of_ours_that_have_no_effect_beside_others_are_told_likewise(self):
        done = self.run_command("perf", "send_lat", "tcp://127.0.0.1:1", "--bind", "127.0.0.1", expect=1)
        self.assertEqual(done.stderr.splitlines()[0], "sluice perf: --bind has no effect: it is where a server listens")
        # Nothing listens there: refused before anything is opened.
        for flags in (("--pin", "off"), ("--bind", "127.0.0.1"), ("--port", "7")):
            done = self.run_command("perf", "send_lat", "tcp://127.0.0.1:1", *flags, "--strict", expect=2)
            self.assertIn(flags[0], done.stderr)
        self.run_command("perf", "send_bw", "--self", "--transport", "shm", "-n", "20", "-t", "16", "--pin", "off", "--strict")
        for flags in (("--port", "7"), ("--bind", "127.0.0.1")):
            done = self.run_command("perf", "send_lat", "--self", "--transport", "tcp", "-n", "5", *flags)
            self.assertIn(f"sluice perf: {flags[0]} has no effect: the two ends of --self meet", done.stderr)

    def test_another_machine_is_not_reached_by_shared_memory(self):
        # Figures of this machine would pass for those of the way to it.
        done = self.run_command("perf", "send_lat", "worker3", "--transport", "shm", "-p", "1", "--strict", expect=2)
        self.assertIn("HOST", done.stderr)
        self.assertIn("within this machine", done.stderr)
        for host in ("localhost", "127.0.0.1", "::1", os.uname().nodename):
            self.assertNotIn("no effect", self.run_command("perf", "send_lat", host, "--transport", "shm", "-p", "1", expect=1).stderr)
        done = self.run_command("perf", "send_lat", "--transport", "shm", "--bind", "127.0.0.1", "--strict", expect=2)
        self.assertIn("--bind", done.stderr)


class Formats(command.CommandTest):
    LOAD = ("perf", "send_bw", "--self", "--transport", "tcp", "-n", "5", "-a")
    SIZES = [2 ** exponent for exponent in range(1, 24)]

    def test_json_is_one_document_with_every_size(self):
        document = json.loads(self.run_command(*self.LOAD, "--format", "json").stdout)
        self.assertEqual(document["schema"], "sluice.perf/1")
        self.assertEqual([result["size_bytes"] for result in document["results"]], self.SIZES)

    def test_ndjson_is_a_line_for_each_size_as_it_is_measured(self):
        results = [json.loads(line) for line in self.run_command(*self.LOAD, "--format", "ndjson").stdout.splitlines()]
        self.assertEqual([result["size_bytes"] for result in results], self.SIZES)
        self.assertEqual({(result["schema"], result["type"]) for result in results}, {("sluice.perf/1", "result")})

    def test_csv_has_a_header_and_the_figures_of_the_json(self):
        path = self.file("same.json")
        rows = list(csv.DictReader(io.StringIO(self.run_command(*self.LOAD, "--format", "csv", "--json", path).stdout)))
        with open(path, encoding="utf-8") as file:
            results = json.load(file)["results"]
        self.assertEqual([int(row["size_bytes"]) for row in rows], self.SIZES)
        for row, result in zip(rows, results):
            self.assertNotIn(None, row)
            self.assertNotIn(None, row.values())
            self.assertEqual(row["test"], "send_bw")
            self.assertEqual(row["transport"], "tcp")
            for column, name in (("p50_ns", "p50"), ("p99_9_ns", "p99_9"), ("stdev_ns", "stdev"), ("max_ns", "max")):
                self.assertAlmostEqual(float(row[column]), result["latency_ns"][name], delta=1e-3)
            for name in ("bytes_per_second", "messages_per_second", "cpu_ns_per_byte", "copied_bytes_per_byte", "verified_bytes"):
                self.assertAlmostEqual(float(row[name]), result[name], delta=abs(result[name]) * 1e-9)

    def test_stdout_that_takes_nothing_is_a_failure(self):
        for form in ("text", "csv", "ndjson", "perftest", "json"):
            with self.subTest(form=form):
                done = self.through_shell(f"perf send_lat --self --transport shm -n 20 --format {form} > /dev/full")
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("stdout", done.stderr)

    def through_shell(self, arguments):
        return command.subprocess.run(["sh", "-c", f'exec "$0" {arguments}', command.BINARY], capture_output=True, text=True,
                                      timeout=command.LIMIT_SECONDS, env=command.environment(), check=False)


class Distributions(command.CommandTest):
    LOAD = ("send_lat", "--self", "--transport", "shm", "-n", "2000")

    def test_every_row_says_its_path_and_a_handover_that_nobody_read_says_so(self):
        header, row = self.run_command("perf", "send_lat", "--self", "-n", "20").stdout.splitlines()
        self.assertTrue(header.endswith("   path"))
        self.assertEqual(row.split()[-1], "shm")
        told = lambda *more: self.run_command("perf", "exchange_bw", "--self", "--transport", "shm", "-s", "64K", "-n", "20", *more).stdout
        self.assertIn("nobody read the bytes", told())
        self.assertNotIn("nobody read", told("--consume"))
        self.assertNotIn("nobody read", told("--into"))

    def test_percentiles_of_any_rank_are_in_the_json_in_the_table_and_in_csv(self):
        latency = self.perf(*self.LOAD, "--percentiles", "0.001,50,90,99.99,100")["results"][0]["latency_ns"]
        self.assertEqual(latency["p0_001"], latency["min"])
        self.assertEqual(latency["p100"], latency["max"])
        self.assertLessEqual(latency["min"], latency["p50"])
        self.assertLessEqual(latency["p50"], latency["p90"])
        self.assertLessEqual(latency["p90"], latency["p99_99"])
        table = self.run_command("perf", *self.LOAD, "--percentiles", "90,99.99").stdout.splitlines()
        self.assertTrue(table[0].endswith("   90% percentile[usec]   99.99% percentile[usec]"))
        self.assertEqual(len(table[1].split()), 13)
        row, = csv.DictReader(io.StringIO(self.run_command("perf", *self.LOAD, "--format", "csv", "--percentiles", "50,90,99.99").stdout))
        self.assertEqual(list(row)[-2:], ["p90_ns", "p99_99_ns"])
        self.assertLessEqual(float(row["p50_ns"]), float(row["p90_ns"]))

    def test_a_histogram_has_every_sample(self):
        result, = self.perf(*self.LOAD, "--histogram")["results"]
        bins = result["histogram_ns"]
        self.assertEqual(sum(each["count"] for each in bins), 2000)
        self.assertLessEqual(bins[0]["from"], result["latency_ns"]["min"])
        self.assertGreater(bins[-1]["to"], result["latency_ns"]["max"])
        lines = self.run_command("perf", *self.LOAD, "-H").stdout.splitlines()[2:]
        self.assertEqual(sum(int(line.split()[3]) for line in lines), 2000)
        self.assertEqual(max(len(line.split()[4]) for line in lines), 60)

    def test_perftest_lists_every_latency_and_ours_lists_the_longest_too(self):
        lines = self.run_command("perf", *self.LOAD[:4], "-n", "30", "-H", "--format", "perftest").stdout.splitlines()
        first = lines.index("#, usec")
        self.assertEqual([line.split(",")[0] for line in lines[first + 1:first + 31]], [str(i) for i in range(1, 31)])
        self.assertEqual(lines[first + 31:first + 33], [RULE, LATENCY_HEADER])
        self.assertRegex(lines[first + 33], LATENCY_ROW)
        longest = float(lines[first + 30].split()[1])
        self.assertAlmostEqual(longest, float(re.match(LATENCY_ROW, lines[first + 33]).group(4)), delta=longest / 1e4 + 0.01)


class Flags(command.CommandTest):
    def assert_usage(self, arguments, *parts):
        done = self.run_command("perf", *arguments, expect=2)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for part in (*parts, "example"):
            self.assertIn(part, done.stderr)

    def test_an_unknown_flag_names_the_one_that_is_near(self):
        for wrong, right in (("--itres", "--iters"), ("--transprot=tcp", "--transport"), ("--dur", "--duration"), ("--tx_depth", "--tx-depth"),
                             ("--formt", "--format")):
            with self.subTest(wrong=wrong):
                self.assert_usage(["send_lat", "--self", wrong], wrong.split("=")[0], f"did you mean {right}?")
        self.assert_usage(["send_lat", "--self", "--zzzzzzzz"], "--zzzzzzzz", "is no flag;")
        self.assert_usage(["send_lat", "--self", "--corupt"], "--corupt")

    def test_what_cannot_be_in_that_format_is_refused(self):
        self.assert_usage(["send_lat", "--self", "--format", "xml"], "--format", "xml")
        self.assert_usage(["exchange_bw", "--self", "--format", "perftest"], "--format", "exchange_bw")
        self.assert_usage(["send_bw", "--self", "--report_gbits"], "--report_gbits", "--format perftest")
        self.assert_usage(["send_lat", "--self", "--format", "csv", "--json", "-"], "--json", "stdout")
        for ranks in ("0", "101", "50,,90", "x", "50,50", ""):
            self.assert_usage(["send_lat", "--self", "--percentiles", ranks], "--percentiles")
        self.assert_usage(["send_lat", "--self", "--percentiles", "90", "--format", "perftest"], "--percentiles", "perftest")
        self.assert_usage(["send_lat", "--self", "-H", "--format", "csv"], "--histogram", "csv")
        self.assert_usage(["send_bw", "--self", "-H", "--format", "perftest"], "--histogram", "perftest")
        self.assert_usage(["send_lat", "--self", "-c", "UD"], "--connection", "UD")
        self.assert_usage(["send_lat", "--self", "-e", "--wait", "spin"], "--wait", "--events")


if __name__ == "__main__":
    command.main()
