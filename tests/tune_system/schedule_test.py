#!/usr/bin/env python3
"""Sizes, repeats and columns are NetPIPE's, and so is what is derived from them."""
import math
import sys
import unittest

import modules
import curve
import netpipe_schedule as schedule

# Of Debian's NPtcp 3.7.2: NPtcp -u 4200000 -n 3; awk '{print $1}' np.out.
NETPIPE = [int(size) for size in """
1 2 3 4 6 8 12 13 16 19 21 24 27 29 32 35 45 48 51 61 64 67 93 96 99 125 128 131 189 192 195 253 256 259 381 384 387 509
512 515 765 768 771 1021 1024 1027 1533 1536 1539 2045 2048 2051 3069 3072 3075 4093 4096 4099 6141 6144 6147 8189 8192
8195 12285 12288 12291 16381 16384 16387 24573 24576 24579 32765 32768 32771 49149 49152 49155 65533 65536 65539 98301
98304 98307 131069 131072 131075 196605 196608 196611 262141 262144 262147 393213 393216 393219 524285 524288 524291
786429 786432 786435 1048573 1048576 1048579 1572861 1572864 1572867 2097149 2097152 2097155 3145725 3145728 3145731
4194301 4194304 4194307""".split()]
# What gnuplot 5.4 makes of PEAK: set logscale x; set samples 5; set table "smooth"; plot "peak" smooth bezier.
PEAK = [(1, 1.0), (4, 3.0), (16, 2.0), (64, 8.0), (256, 4.0)]
# It takes the sizes as they are, gnuplot 4 took their logarithms; the rates are the same.
SMOOTHED_BY_GNUPLOT = [1.0, 2.39453125, 3.8125, 5.20703125, 4.0]


def row(size, times, **more):
    return dict({"bytes": size, "size": size, "trials": times, "repeats": 3, "failures": 0, "lost": 0}, **more)


class Schedule(unittest.TestCase):
    def test_the_sizes_are_those_of_netpipe(self):
        self.assertEqual(list(schedule.sizes(1, 4200000)), NETPIPE)

    def test_without_neighbours_the_increment_doubles_at_every_second_step(self):
        self.assertEqual(list(schedule.sizes(1, 100, 0)), [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96])
        self.assertEqual(list(schedule.sizes(4096, 20000, 0)), [4096, 6144, 8192, 12288, 16384])
        self.assertEqual(list(schedule.powers_of_two(1000, 9000)), [1000, 2000, 4000, 8000])

    def test_a_trial_takes_as_many_messages_as_fill_its_time_and_three_at_least(self):
        self.assertEqual(schedule.repeats(schedule.FIRST_GUESS_SECONDS), 24999)  # as C's own division
        self.assertEqual(schedule.repeats(0.0501), 4)
        self.assertEqual(schedule.repeats(0.5), 3)
        self.assertEqual(schedule.repeats(0.5, constant=17), 17)

    def test_a_line_has_the_columns_of_np_out(self):
        # printf "%9d %9.3lf %9.3lf %9.3lf %7.2lf"
        self.assertEqual(schedule.np_out_line(row(1000, [8e-6, 10e-6, 12e-6])), "     1000     0.800     0.667     1.000   10.00")
        self.assertEqual(schedule.np_out_line(row(64, [1e-6], integrity=True)), "       64 bytes      3 times        0 failures")
        self.assertNotIn("0.512", schedule.np_out_line(row(64, [1e-6], failures=1)))

    def test_a_file_in_these_columns_or_in_those_of_the_older_version_is_read(self):
        self.assertEqual(schedule.parsed_np_out("     1000     0.800     0.667     1.000   10.00\n"), [(1000, 0.8)])
        [(size, rate)] = schedule.parsed_np_out("      93 101.990166   0.00000696\n")
        self.assertEqual((size, round(rate, 9)), (93, 0.101990166))


class Derived(unittest.TestCase):
    def test_the_latency_is_the_mean_of_the_first_ten_sizes(self):
        rows = [row(size, [1e-6 * (at + 1), 3e-6 * (at + 1)]) for at, size in enumerate(NETPIPE[:12])]
        self.assertAlmostEqual(curve.latency_us(rows), 2 * 5.5)

    def test_half_of_the_power_lies_between_two_sizes(self):
        # Half of 8 is 4, a third of the way from 2 to 8 between 16 and 64 on a logarithmic axis.
        self.assertEqual(curve.half_power_bytes(PEAK), round(16 * 4 ** (1 / 3)))
        self.assertEqual(curve.half_power_bytes([(64, 5.0), (128, 6.0)]), 64)

    def test_a_curve_is_saturated_where_it_stays_near_its_bandwidth(self):
        self.assertEqual(curve.saturation_bytes([(1, 1.0), (2, 9.5), (4, 5.0), (8, 9.4), (16, 9.6), (32, 9.5)]), 8)
        self.assertIsNone(curve.saturation_bytes([(1, 1.0), (2, 10.0), (4, 5.0)]))

    def test_the_smoothed_curve_is_that_of_gnuplot(self):
        smooth = curve.bezier(PEAK, samples=5)
        for (size, rate), (control, _), expected in zip(smooth, PEAK, SMOOTHED_BY_GNUPLOT):
            self.assertAlmostEqual(size, control, places=9)  # since the sizes are evenly spaced logarithms
            self.assertAlmostEqual(rate, expected, places=9)

    def test_a_curve_of_more_than_a_thousand_points_is_smoothed(self):
        smooth = curve.bezier([(size, 7.0) for size in range(1, 1601)])
        self.assertEqual(len(smooth), curve.SMOOTH_POINTS)
        self.assertTrue(all(math.isclose(rate, 7.0, rel_tol=1e-6) for _, rate in smooth))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
