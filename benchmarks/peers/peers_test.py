#!/usr/bin/env python3
"""Tests of what is read from the output of others' programs: of recorded outputs, and of those
programs that are installed."""
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import downloaded  # noqa: E402
import iceoryx2  # noqa: E402
import install  # noqa: E402
import iperf3  # noqa: E402
import libfabric_pingpong  # noqa: E402
import netpipe  # noqa: E402
import perftest  # noqa: E402
import qperf  # noqa: E402
import ucx  # noqa: E402

QPERF = "tcp_lat:\n    latency  =  17.1 us\ntcp_bw:\n    bw  =  1.36 GB/sec\nquit:\n"
NETPIPE = (
    "Send and receive buffers are 16384 and 131072 bytes\nNow starting the main loop\n  0:      64"
    " bytes   3571 times -->     30.94 Mbps in      15.78 usec\n")

UCX = (
    "[1700000000.123456] [host:123:0] parser.c:1911 UCX WARN unused env variables: UCX_HOME,"
    " UCX_ROOT\n"
    "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n"
    "1000,0.336,0.370,0.380,165.16,164.00,2706003,2706003\n")
LIBFABRIC = ("bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
             "64      100     =100     12k         0.50s      0.03    2480.91       0.00\n")
RULE = "-" * 87 + "\n"
PERFTEST_LATENCY = (
    RULE
    + " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]   "
    " t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n 8       20          20.35 "
    "         82.27        25.69    \t       29.52       \t10.36  \t\t82.27   \t\t82.27  \n"
    + RULE)
PERFTEST_BANDWIDTH = (
    RULE
    + " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
    " 65536      20               44.09              27.88  \t\t   0.000446\n"
    + RULE)
PERFTEST_DURATION = (
    " #bytes        #iterations       t_avg[usec]    tps average\n 64            5000          "
    " 12.50          40000.00\n")


class Peers(unittest.TestCase):
    def test_qperf_says_its_unit_with_each_figure(self):
        self.assertAlmostEqual(qperf.figure(QPERF, "latency"), 17100.0)
        self.assertAlmostEqual(qperf.figure(QPERF, "bw"), 1.36e9)
        for broken in ("", "latency = 3 parsecs", "    bw  =  1.36 GB/sec"):
            with self.assertRaises(SystemExit):
                qperf.figure(broken, "latency")

    def test_netpipe_gives_half_a_round_trip_of_the_size_that_was_asked_for(self):
        nanoseconds, rate = netpipe.figures(NETPIPE, 64)
        self.assertAlmostEqual(nanoseconds, 15780.0)
        self.assertAlmostEqual(rate, 64 / 15.78e-6)
        with self.assertRaises(SystemExit):
            netpipe.figures(NETPIPE, 128)

    def test_iperf3_is_read_at_the_receiver_with_the_cpu_of_both_ends(self):
        output = json.dumps(
            {
                "end": {
                    "sum_sent": {"bits_per_second": 9e9}, "sum_received": {"bits_per_second": 8e9},
                    "cpu_utilization_percent": {"host_total": 30.0, "remote_total": 45.0}}})
        self.assertEqual(
            iperf3.figures(output), {"bytes_per_second": 1e9, "cpu_seconds_per_gb": 0.75})

    def test_ucx_is_read_by_the_names_of_its_columns_below_its_warnings(self):
        row = ucx.last_csv_row(UCX)
        self.assertEqual(
            ucx.figures(row, "tag_lat", 64),
            {"bytes_per_second": 164.0 * 2**20, "one_way_ns": {"p50": 336.0, "mean": 380.0}})
        self.assertEqual(ucx.figures(row, "tag_bw", 2**20)["seconds"]["p50"], 1 / 164.0)
        with self.assertRaises(SystemExit):
            ucx.last_csv_row("UCX ERROR no transport, at all\n")

    def test_libfabric_says_microseconds_of_one_way(self):
        self.assertAlmostEqual(libfabric_pingpong.microseconds_per_transfer(LIBFABRIC), 2480.91)
        with self.assertRaises(SystemExit):
            libfabric_pingpong.microseconds_per_transfer("fi_getinfo: no data available\n")

    def test_perftest_is_read_at_the_median_the_average_and_the_average_of_a_duration(self):
        self.assertEqual(
            perftest.figures(perftest.row_of(PERFTEST_LATENCY, 8), latency=True),
            {"one_way_ns": {"p50": 25690.0}})
        self.assertEqual(
            perftest.figures(perftest.row_of(PERFTEST_BANDWIDTH, 65536), latency=False),
            {"bytes_per_second": 27.88 * 2**20})
        self.assertEqual(
            perftest.figures(perftest.row_of(PERFTEST_DURATION, 64), latency=True),
            {"one_way_ns": {"p50": 12500.0}})
        for broken in ([64.0, 5000.0, float("nan"), 1.0], [64.0, 5000.0, 1.0, 0.0]):
            with self.assertRaises(SystemExit):
                perftest.figures(broken, latency=False)


class Downloaded(unittest.TestCase):
    """Peers that Debian does not have, in a cache folder of the test's own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        changed = unittest.mock.patch.dict(os.environ, {"XDG_CACHE_HOME": self.folder})
        changed.start()
        self.addCleanup(changed.stop)

    def place(self, path, content="#!/bin/sh\n"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        os.chmod(path, 0o755)

    def run_script(self, *arguments):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), arguments[0])
        return subprocess.run(
            [sys.executable, "-B", script, *arguments[1:]], capture_output=True, text=True,
            timeout=120, check=False)

    def test_a_peer_that_is_not_installed_says_so_with_the_command_that_installs_it(self):
        for arguments, what in (
            (
                ("iceoryx2.py", "--size", "64"),
                "iceoryx2 0.10.0 is not installed: benchmarks/peers/install.py iceoryx2"),
            (
                ("ucx.py", "--release", "1.22"),
                "UCX 1.22.0 is not installed: benchmarks/peers/install.py ucx")
        ):
            done = self.run_script(*arguments)
            self.assertEqual((done.returncode, done.stdout, done.stderr.strip()), (77, "", what))

    def test_ucx_of_another_version_is_not_taken_for_the_one_that_was_asked_for(self):
        self.place(downloaded.ucx_perftest())
        self.place(
            os.path.join(os.path.dirname(downloaded.ucx_perftest()), "ucx_info"),
            "#!/bin/sh\necho '# Library version: 1.13.1'\n",
        )
        done = self.run_script("ucx.py", "--release", "1.22")
        self.assertEqual(done.returncode, 1)
        self.assertIn("loads another library:\n# Library version: 1.13.1", done.stderr)

    def test_iceoryx2_gets_the_flags_and_leaves_no_file_of_a_run_that_has_ended(self):
        self.place(
            downloaded.iceoryx2_pingpong(),
            "#!/bin/sh\ntouch /dev/shm/${2}of_this_test\nshift 2\necho \"$@\"\nexit 4\n",
        )
        gone = subprocess.Popen(["true"])
        gone.wait()
        old = f"/dev/shm/{iceoryx2.PREFIX}{gone.pid}_of_this_test"
        self.place(old)
        done = self.run_script("iceoryx2.py", "--size", "64")
        self.assertEqual((done.returncode, done.stdout), (4, "--size 64\n"))
        self.assertEqual(
            [name for name in os.listdir("/dev/shm") if name.endswith("of_this_test")], [])

    def test_files_of_a_run_that_goes_on_are_left_alone(self):
        names = [
            "/dev/shm/bench_iceoryx2_12_a", "/dev/shm/bench_iceoryx2_13_a",
            "/dev/shm/bench_iceoryx2_x", "/dev/shm/other_12_a"]
        self.assertEqual(iceoryx2.leftovers(names, alive=lambda number: number == 13), names[:1])

    def test_cargo_that_is_too_old_is_refused_with_what_to_do(self):
        self.assertEqual(install.version_of("cargo 1.95.0 (f2d3ce0bd 2026-03-21)\n"), (1, 95))
        self.assertEqual(install.version_of("cargo 0.66.0\n"), (0, 66))
        tools = os.path.join(self.folder, "tools")
        for version, fails in (("0.66.0", True), ("1.88.0", True), ("1.89.0", False)):
            self.place(os.path.join(tools, "cargo"), f"#!/bin/sh\necho 'cargo {version}'\n")
            with unittest.mock.patch.dict(os.environ, {"PATH": tools + ":/usr/bin:/bin"}):
                if fails:
                    with self.assertRaisesRegex(
                        install.Trouble, f"{version} is older than 1.89.*cargo-web"
                    ):
                        install.check_cargo()
                else:
                    install.check_cargo()

    def test_a_peer_that_is_there_is_not_fetched_again_and_unknown_ones_are_named(self):
        self.place(downloaded.ucx_perftest())
        with unittest.mock.patch.dict(install.INSTALLERS, {"ucx": self.fail}):
            self.assertEqual(install.main(["ucx"]), 0)
        done = self.run_script("install.py", "ucc")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no peer 'ucc'; there are ucx, iceoryx2", done.stderr)

    def test_a_wheel_with_another_checksum_is_not_installed(self):
        if importlib.util.find_spec("pip") is None:
            self.skipTest("pip is not installed (Debian package python3-pip)")
        wheel = os.path.join(self.folder, "libucx_cu12-1.22.0-py3-none-any.whl")
        self.place(wheel, "not what was pinned")
        self.assertNotEqual(
            hashlib.sha256(b"not what was pinned").hexdigest(), downloaded.UCX_SHA256)
        said = io.StringIO()
        with unittest.mock.patch.dict(
            os.environ, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self.folder}
        ), contextlib.redirect_stderr(said), unittest.mock.patch.object(
            install, "run", self.quietly
        ):
            self.assertEqual(install.main(["ucx"]), 1)
        self.assertIn("UCX 1.22.0 is not installed", said.getvalue())
        self.assertIn("HASHES", self.said)
        self.assertEqual(os.listdir(downloaded.folder()), [])

    def quietly(self, command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        self.said = done.stdout + done.stderr
        if done.returncode != 0:
            raise install.Trouble("pip failed")


class Installed(unittest.TestCase):
    """The programs themselves, briefly: whether their output still is what was recorded."""

    def ask(self, program, package, *arguments):
        if shutil.which(program) is None:
            self.skipTest(f"{program} is not installed (Debian package {package})")
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), arguments[0])
        done = subprocess.run(
            [sys.executable, "-B", script, *arguments[1:]], capture_output=True, text=True,
            timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        [line] = done.stdout.splitlines()
        return json.loads(line)

    def check_latency(self, answer):
        self.assertEqual(answer["size_bytes"], 64)
        self.assertTrue(1 < answer["one_way_ns"]["p50"] < 10e9, answer)

    def check_rate(self, answer):
        self.assertTrue(1e4 < answer["bytes_per_second"] < 1e13, answer)

    def test_iperf3(self):
        answer = self.ask("iperf3", "iperf3", "iperf3.py", "--seconds", "1")
        self.check_rate(answer)
        self.assertGreater(answer["cpu_seconds_per_gb"], 0)

    def test_qperf(self):
        self.check_latency(self.ask("qperf", "qperf", "qperf.py", "tcp_lat"))
        self.check_rate(self.ask("qperf", "qperf", "qperf.py", "tcp_bw", "--size", "65536"))

    def test_netpipe(self):
        self.check_latency(self.ask("NPtcp", "netpipe-tcp", "netpipe.py"))

    def test_ucx(self):
        self.check_latency(self.ask("ucx_perftest", "ucx-utils", "ucx.py", "--iterations", "1000"))
        self.check_rate(
            self.ask(
                "ucx_perftest", "ucx-utils", "ucx.py", "--transport", "tcp", "--test", "tag_bw",
                "--size", "1048576", "--iterations", "20"))

    def downloaded(self, which, *arguments):
        if "TEST_TMPDIR" in os.environ:  # Bazel's: what is in a user's cache is no input of a test
            self.skipTest("run by hand: python3 -B benchmarks/peers/peers_test.py")
        if not downloaded.installed(which):
            self.skipTest(
                f"{downloaded.PROGRAMS[which][0]} is not installed: {downloaded.command(which)}")
        return self.ask(downloaded.PROGRAMS[which][1](), which, *arguments)

    def test_ucx_1_22(self):
        for test in ("tag_lat", "ucp_am_lat", "am_lat", "ucp_put_lat", "put_lat"):
            with self.subTest(test=test):
                self.check_latency(
                    self.downloaded(
                        "ucx", "ucx.py", "--release", "1.22", "--test", test, "--iterations", "1000"
                    ))
        self.check_latency(
            self.downloaded(
                "ucx", "ucx.py", "--release", "1.22", "--wait", "sleep", "--iterations", "100"))

    def test_iceoryx2(self):
        for wait in ("spin", "listener", "waitset"):
            for touch in ("word", "page", "line"):
                with self.subTest(wait=wait, touch=touch):
                    answer = self.downloaded(
                        "iceoryx2", "iceoryx2.py", "--wait", wait, "--touch", touch, "--iterations",
                        "200")
                    self.check_latency(answer)
                    self.assertIs(answer["verified"], True)

    def test_iceoryx2_is_slower_by_a_delay_and_gives_no_figure_for_a_flipped_bit(self):
        slow = self.downloaded(
            "iceoryx2", "iceoryx2.py", "--iterations", "200", "--slow-ns", "2000000")
        self.assertGreaterEqual(slow["one_way_ns"]["p50"], 1e6)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "iceoryx2.py")
        done = subprocess.run(
            [sys.executable, "-B", script, "--iterations", "200", "--corrupt"], capture_output=True,
            text=True, timeout=120, check=False)
        self.assertEqual((done.returncode, done.stdout), (4, ""))
        self.assertIn("payload did not verify: 1 wrong words", done.stderr)

    def test_libfabric(self):
        self.check_latency(
            self.ask("fi_pingpong", "libfabric-bin", "libfabric_pingpong.py", "--iterations", "100")
        )


if __name__ == "__main__":
    unittest.main()
