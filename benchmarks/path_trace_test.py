#!/usr/bin/env python3
"""Tests of path_trace.py on text as function_graph writes it. The tracing itself runs in a guest:
sluice bench --only path_trace."""
import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import path_trace  # noqa: E402

# Two processors at once, a call that sends nothing, a switch, an interrupt's mark and a module's
# function.
TRACE = """# tracer: function_graph
#
# CPU  DURATION                  FUNCTION CALLS
# |     |   |                     |   |   |   |
 0)               |  __x64_sys_sendto() {
 0)               |    __sys_sendto() {
 1)               |  __x64_sys_sendmsg() {
 0)   1.112 us    |      sockfd_lookup_light();
 1) + 10.5 us     |    netlink_sendmsg();
 1)   2.000 us    |  }
 ------------------------------------------
 0)   tcp_pi-123   =>   <idle>-0
 ------------------------------------------
 0)               |      dev_hard_start_xmit() {
 0)   0.650 us    |        veth_xmit [veth]();
 0)   0.650 us    |        netif_rx();
 0)   9.000 us    |      }
 0)   9.000 us    |    }
 0)   9.000 us    |  }
 1)               |  do_idle() {
 1)   9.000 us    |    schedule();
 1)   9.000 us    |  }
"""


class PathTrace(unittest.TestCase):
    def test_gives_each_call_its_functions_whatever_the_other_processor_does(self):
        calls = path_trace.trees(TRACE)
        self.assertEqual(calls[1], ["__x64_sys_sendmsg", "netlink_sendmsg"])
        self.assertEqual(
            calls[0][:4],
            ["__x64_sys_sendto", "__sys_sendto", "sockfd_lookup_light", "dev_hard_start_xmit"])
        self.assertEqual(len(calls), 2)

    def test_counts_functions_until_the_driver_of_calls_that_sent_a_frame(self):
        calls = [
            ["a", "b", path_trace.DRIVER, "c"], ["a", "b", "c", path_trace.DRIVER],
            ["a", "x", path_trace.DRIVER], ["netlink", "x"]]
        self.assertEqual(
            path_trace.judged(calls, True),
            {"kernel_functions": 2, "functions_in_all": 4, "sends": 3, "path": ["a", "b"]})
        self.assertIsNone(path_trace.judged([["netlink"]], False))


if __name__ == "__main__":
    unittest.main()
