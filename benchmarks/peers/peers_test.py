#!/usr/bin/env python3
"""Tests of what is read from the output of others' programs; the outputs are recorded."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import iperf3  # noqa: E402
import netpipe  # noqa: E402
import qperf  # noqa: E402

QPERF = "tcp_lat:\n    latency  =  17.1 us\ntcp_bw:\n    bw  =  1.36 GB/sec\nquit:\n"
NETPIPE = "Send and receive buffers are 16384 and 131072 bytes\nNow starting the main loop\n  0:      64 bytes   3571 times -->     30.94 Mbps in      15.78 usec\n"


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


if __name__ == "__main__":
    unittest.main()
