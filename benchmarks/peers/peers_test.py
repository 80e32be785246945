#!/usr/bin/env python3
"""Tests of what is read from the output of others' programs: of recorded outputs, and of those programs that are installed."""
import json
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import iperf3  # noqa: E402
import libfabric_pingpong  # noqa: E402
import netpipe  # noqa: E402
import perftest  # noqa: E402
import qperf  # noqa: E402
import ucx  # noqa: E402

QPERF = "tcp_lat:\n    latency  =  17.1 us\ntcp_bw:\n    bw  =  1.36 GB/sec\nquit:\n"
NETPIPE = "Send and receive buffers are 16384 and 131072 bytes\nNow starting the main loop\n  0:      64 bytes   3571 times -->     30.94 Mbps in      15.78 usec\n"

UCX = ("[1700000000.123456] [host:123:0] parser.c:1911 UCX WARN unused env variables: UCX_HOME, UCX_ROOT\n"
       "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n"
       "1000,0.336,0.370,0.380,165.16,164.00,2706003,2706003\n")
LIBFABRIC = ("bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
             "64      100     =100     12k         0.50s      0.03    2480.91       0.00\n")
RULE = "-" * 87 + "\n"
PERFTEST_LATENCY = (RULE + " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n"
                    " 8       20          20.35          82.27        25.69    \t       29.52       \t10.36  \t\t82.27   \t\t82.27  \n" + RULE)
PERFTEST_BANDWIDTH = (RULE + " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
                      " 65536      20               44.09              27.88  \t\t   0.000446\n" + RULE)
PERFTEST_DURATION = " #bytes        #iterations       t_avg[usec]    tps average\n 64            5000           12.50          40000.00\n"


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
        output = json.dumps({"end": {"sum_sent": {"bits_per_second": 9e9}, "sum_received": {"bits_per_second": 8e9},
                                     "cpu_utilization_percent": {"host_total": 30.0, "remote_total": 45.0}}})
        self.assertEqual(iperf3.figures(output), {"bytes_per_second": 1e9, "cpu_seconds_per_gb": 0.75})

    def test_ucx_is_read_by_the_names_of_its_columns_below_its_warnings(self):
        row = ucx.last_csv_row(UCX)
        self.assertEqual(ucx.figures(row, "tag_lat", 64), {"bytes_per_second": 164.0 * 2**20, "one_way_ns": {"p50": 336.0, "mean": 380.0}})
        self.assertEqual(ucx.figures(row, "tag_bw", 2**20)["seconds"]["p50"], 1 / 164.0)
        with self.assertRaises(SystemExit):
            ucx.last_csv_row("UCX ERROR no transport, at all\n")

    def test_libfabric_says_microseconds_of_one_way(self):
        self.assertAlmostEqual(libfabric_pingpong.microseconds_per_transfer(LIBFABRIC), 2480.91)
        with self.assertRaises(SystemExit):
            libfabric_pingpong.microseconds_per_transfer("fi_getinfo: no data available\n")

    def test_perftest_is_read_at_the_median_the_average_and_the_average_of_a_duration(self):
        self.assertEqual(perftest.figures(perftest.row_of(PERFTEST_LATENCY, 8), latency=True), {"one_way_ns": {"p50": 25690.0}})
        self.assertEqual(perftest.figures(perftest.row_of(PERFTEST_BANDWIDTH, 65536), latency=False), {"bytes_per_second": 27.88 * 2**20})
        self.assertEqual(perftest.figures(perftest.row_of(PERFTEST_DURATION, 64), latency=True), {"one_way_ns": {"p50": 12500.0}})
        for broken in ([64.0, 5000.0, float("nan"), 1.0], [64.0, 5000.0, 1.0, 0.0]):
            with self.assertRaises(SystemExit):
                perftest.figures(broken, latency=False)


class Installed(unittest.TestCase):
    """The programs themselves, briefly: whether their output still is what was recorded."""

    def ask(self, program, package, *arguments):
        if shutil.which(program) is None:
            self.skipTest(f"{program} is not installed (Debian package {package})")
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), arguments[0])
        done = subprocess.run([sys.executable, "-B", script, *arguments[1:]], capture_output=True, text=True, timeout=120, check=False)
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
        self.check_rate(self.ask("ucx_perftest", "ucx-utils", "ucx.py", "--transport", "tcp", "--test", "tag_bw", "--size", "1048576", "--iterations", "20"))

    def test_libfabric(self):
        self.check_latency(self.ask("fi_pingpong", "libfabric-bin", "libfabric_pingpong.py", "--iterations", "100"))


if __name__ == "__main__":
    unittest.main()
