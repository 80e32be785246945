#!/usr/bin/env python3
"""Control logic with nodes, test tool and record that are made up: what is set, in which order, and what is recorded before."""
import sys
import unittest

import modules
from control_logic import ControlLogic, interval
from network_test_tool import NetworkTestTool, aggregate, rates
from parameter_computation import DEFAULT, ParameterComputation
from trouble import NodeLost, Trouble

RMEM, SCALING = "net.ipv4.tcp_rmem", "net.ipv4.tcp_window_scaling"


class Node:
    """A node in a dictionary. `log` is shared, so that the order of all is seen."""

    interface = None

    def __init__(self, name, values, log, refuses=()):
        self.name, self.address, self.values, self._log, self._refuses = name, "192.0.2.1", values, log, refuses
        self._answers = []

    def ask(self, do, within=0, **words):
        if do == "presence":
            return {name: (self.values.get(name), "" if name in self.values else "this kernel has no such value") for name in words["names"]}
        if do == "read":
            return {"values": {name: self.values[name] for name in words["names"]}, "refused": {}}
        self.tell(do, **words)
        return self.answer()

    def tell(self, do, **words):
        assert do == "write"
        self._log.append((self.name, dict(words["values"])))
        refused = {name: "made up" for name in words["values"] if name in self._refuses}
        self.values.update({name: value for name, value in words["values"].items() if name not in refused})
        self._answers.append({"refused": refused})

    def answer(self, within=0):
        return self._answers.pop(0)


class Record:
    def __init__(self, log):
        self._log = log

    def add(self, node, changes):
        if changes:
            self._log.append(("record", node.name, dict(changes)))


class Tool:
    """The rate follows from the values that the first node has."""

    granted = {}

    def __init__(self, nodes, rate):
        self._nodes, self._rate = nodes, rate

    def measure(self, buffers, effort):
        return {node.name: {1024: self._rate(node.values, buffers)} for node in self._nodes[1:]}


def cluster(rate, refuses=()):
    log = []
    nodes = [Node(name, {RMEM: f"4096 {default} 6291456", SCALING: "1", "socket.sndbuf": "0"}, log, refuses) for name, default in (("front", 131072), ("n1", 65536))]
    return log, nodes, ControlLogic(nodes, Tool(nodes, rate), Record(log), lambda text: None)


class Control(unittest.TestCase):
    def test_a_change_is_recorded_before_it_is_made_and_only_the_first_one(self):
        log, _, control = cluster(lambda values, _: 1.0)
        control.prepare([RMEM, SCALING])
        control.set_kernel_parameters({RMEM: "4096 8192 8192", SCALING: DEFAULT})
        control.set_kernel_parameters({RMEM: "4096 16384 16384", SCALING: "0"})
        self.assertEqual([entry for entry in log if "front" in entry], [
            ("record", "front", {RMEM: ("4096 131072 6291456", "4096 8192 8192")}), ("front", {RMEM: "4096 8192 8192"}),
            ("record", "front", {SCALING: ("1", "0")}), ("front", {RMEM: "4096 16384 16384", SCALING: "0"})])

    def test_the_default_is_what_each_node_had(self):
        _, nodes, control = cluster(lambda values, _: 1.0)
        control.prepare([RMEM])
        control.set_kernel_parameters({RMEM: "4096 8192 8192"})
        control.set_kernel_parameters({RMEM: DEFAULT})
        self.assertEqual([node.values[RMEM] for node in nodes], ["4096 131072 6291456", "4096 65536 6291456"])

    def test_what_a_node_has_already_is_not_set(self):
        log, _, control = cluster(lambda values, _: 1.0)
        control.prepare([SCALING])
        control.set_kernel_parameters({SCALING: "1"})
        self.assertEqual(log, [])

    def test_a_parameter_that_is_missing_is_left_out_with_the_reason(self):
        _, _, control = cluster(lambda values, _: 1.0)
        usable, refused = control.prepare(["net.ipv4.tcp_stack", RMEM])
        self.assertEqual(usable, [RMEM])
        self.assertEqual(refused, {"net.ipv4.tcp_stack": "front: this kernel has no such value"})

    def test_a_node_that_refuses_a_value_ends_the_run(self):
        _, _, control = cluster(lambda values, _: 1.0, refuses=(SCALING,))
        control.prepare([SCALING])
        with self.assertRaisesRegex(Trouble, "n1: .*window_scaling is not 0: made up"):
            control.set_kernel_parameters({SCALING: "0"})

    def test_socket_buffers_go_to_the_test_tool_and_to_no_kernel(self):
        log, _, control = cluster(lambda values, buffers: float(buffers.get("socket.sndbuf", 1)))
        control.prepare(["socket.sndbuf"])
        self.assertEqual(control.measure({"socket.sndbuf": "7"})["n1"], {1024: 7.0})
        self.assertEqual(log, [])

    def test_the_better_value_is_chosen_and_compared_in_turns(self):
        log, _, control = cluster(lambda values, _: 2.0 if values[RMEM] == "4096 8192 8192" else 1.0)
        control.prepare([RMEM])
        computation = ParameterComputation({RMEM: ["4096 8192 8192", "4096 16384 16384", DEFAULT]})
        result = control.tune(computation, "exhaustive")
        self.assertEqual(result["chosen"], {RMEM: "4096 8192 8192"})
        self.assertEqual((result["against_default"]["median"], result["against_default"]["rounds"]), (2.0, 7))
        order = [values[RMEM] for name, values in [entry for entry in log if entry[0] == "n1"][-7:]]
        self.assertEqual(set(order), {"4096 8192 8192", "4096 65536 6291456"})
        self.assertTrue(all(one != other for one, other in zip(order, order[1:])))

    def test_a_default_that_is_faster_stays(self):
        _, _, control = cluster(lambda values, _: 0.5 if values[RMEM] == "4096 8192 8192" else 1.0)
        control.prepare([RMEM])
        result = control.tune(ParameterComputation({RMEM: ["4096 8192 8192", DEFAULT]}), "rusan")  # which never tries it
        self.assertEqual(result["chosen"], {RMEM: DEFAULT})
        self.assertTrue(result["against_default"]["kept_default"])

    def test_an_interval_holds_its_median(self):
        middle, lower, upper = interval([1.0, 1.1, 0.9, 1.05, 1.2, 1.0, 1.02])
        self.assertTrue(0.9 <= lower <= middle <= upper <= 1.2)


class TestTool(unittest.TestCase):
    def test_pairs_of_a_node_add_up_to_the_slowest_of_each_trial(self):
        def row(times):
            return {"bytes": 1000, "size": 1000, "repeats": 5, "trials": times, "failures": 0, "lost": 1}
        self.assertEqual(aggregate([[row([1.0, 4.0])], [row([2.0, 3.0])]]),
                         [{"bytes": 2000, "size": 1000, "repeats": 5, "trials": [2.0, 4.0], "failures": 0, "lost": 2}])

    def test_a_changed_message_gives_no_figure(self):
        with self.assertRaisesRegex(Trouble, "arrived changed; no figure"):
            rates([{"bytes": 64, "size": 64, "trials": [1.0], "failures": 1}])

    def test_both_directions_of_a_file_count(self):
        rows = [{"bytes": 4096, "size": 4096, "file_bytes": 10 ** 9, "trials": [seconds], "failures": 0} for seconds in (8.0, 4.0)]
        self.assertEqual(rates(rows), {4096: 1.5})

    def test_a_node_whose_end_failed_is_named(self):
        class Front(Node):
            def ask(self, do, within=0, **words):
                return {"ends": [1, 2]} if do == "transmit" else {"failed": "another pair of this test has failed" if words["end"] == 1 else "it is gone"}

        class Far(Node):
            def ask(self, do, within=0, **words):
                return {"failed": "out of memory"} if do == "result" else {"end": 1, "port": 5}

        nodes = [Far("n1", {}, []), Far("n2", {}, [])]
        tool = NetworkTestTool(Front("front", {}, []), nodes, {"end": 64})
        with self.assertRaises(NodeLost) as caught:
            tool.measure()
        self.assertEqual(caught.exception.node, "n2")
        self.assertIn("it is gone (there: out of memory)", str(caught.exception))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
