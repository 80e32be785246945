#!/usr/bin/python3
"""ONNX models as training jobs: the same job as `sluice graph make` writes, with the parameters of
the model."""
import json
import math
import sys

import conversion
import onnx_models as models
from conversion import command


class Training(conversion.ConversionTest):
    def write(self, proto, name="model.onnx"):
        path = self.file(name)
        with open(path, "wb") as file:
            file.write(proto.SerializeToString())
        return path

    def parameters(self, graph):
        """name -> shape"""
        return {edge["name"].split("/", 1)[1]: edge["shape"] for edge in graph["edges"]
                if edge["name"].startswith("weights/")}

    def test_vgg16_is_the_job_that_sluice_makes(self):
        path = self.write(models.vgg16(), "vgg16.onnx")
        for flags in (("--workers", "2"), ("--workers", "3", "--servers", "4", "--hosts"),
                      ("--workers", "2", "--servers", "3", "--split", "--compute-us", "900")):
            made = self.run_command("graph", "make", "--model", "vgg16", *flags).stdout
            self.assertEqual(self.convert(path, "--as", "training", *flags), made, flags)

    def test_each_byte_of_each_parameter_is_fetched_and_sent_back(self):
        proto = models.mlp()
        wanted = {
            tensor.name: (list(tensor.dims),
                          math.prod(tensor.dims) * (2 if tensor.data_type == models.FLOAT16 else 4))
            for tensor in proto.graph.initializer}
        total = sum(size for _, size in wanted.values())
        graph, said = self.checked(self.write(proto), "--as", "training",
                                   "--workers", "2", "--servers", "2")
        self.assertEqual(self.parameters(graph),
                         {name: shape for name, (shape, _) in wanted.items()})
        sizes = {edge["name"]: conversion.edge_bytes(edge) for edge in graph["edges"]}
        for kind, times in (("weights/", 1), ("next/", 1), ("gradients/0/", 1),
                            ("gradients/1/", 1), ("made/1/", 1)):
            found = sum(size for name, size in sizes.items() if name.startswith(kind))
            self.assertEqual(found, total * times, kind)
        # Each of two workers maps five weights, and the servers map their gradients.
        self.assertIn("20 views, 0 crossings", said)
        # Weights are updated over themselves and gradients written over what was made: each model
        # once, each gradient once.
        rounded = sum(process["bytes"] for process in self.plan()["processes"])
        self.assertGreaterEqual(rounded, 3 * total)
        self.assertLess(rounded, 3 * total + 64 * len(sizes))

    def test_the_largest_parameter_has_a_server_for_itself(self):
        graph, _ = self.checked(self.write(models.mlp()), "--as", "training", "--servers", "2")
        homes = {edge["name"]: edge["from"] for edge in graph["edges"]
                 if edge["name"].startswith("weights/")}
        self.assertEqual([name for name, home in homes.items() if home == "ps0/publish"],
                         ["weights/w1"])

    def test_only_what_is_above_a_share_is_split(self):
        proto = models.model(
            [models.node("Mul", ["x", "six"], "a"), models.node("Add", ["a", "five"], "b")],
            [models.value("x", [1])],
            [models.value("b", None)],
            [models.zeros("six", [6, 1]), models.zeros("five", [5])])
        path = self.write(proto)
        # A share is 6 of 11 elements, then 3.
        for servers, wanted in (
                ("2", {"six": [6, 1], "five": [5]}),
                ("4", {"six/0": [3], "six/1": [3], "five/0": [2], "five/1": [3]})):
            graph = self.checked(path, "--as", "training", "--servers", servers, "--split")[0]
            self.assertEqual(self.parameters(graph), wanted)

    def test_a_parameter_without_elements_has_to_be_left_out(self):
        proto = models.mlp()
        proto.graph.initializer.append(models.zeros("nothing", [0, 4]))
        proto.graph.node.append(models.node("Add", ["scores", "nothing"], "sum"))
        path = self.write(proto)
        self.assertIn("leave it out with --freeze nothing",
                      self.convert(path, "--as", "training", "--split", expect=1))
        self.checked(path, "--as", "training", "--split", "--freeze", "nothing")

    def test_settings_and_statistics_are_not_trained(self):
        graph, _ = self.checked(self.write(models.residual()), "--as", "training")
        self.assertEqual(set(self.parameters(graph)),
                         {"conv.weight", "norm.scale", "norm.shift", "fc.weight", "fc.bias"})

    def test_frozen_parameters_stay_with_the_workers(self):
        path = self.write(models.residual())
        graph, _ = self.checked(path, "--as", "training",
                                "--freeze", "norm.*", "--freeze", "fc.bias")
        self.assertEqual(set(self.parameters(graph)), {"conv.weight", "fc.weight"})
        self.assertIn("--freeze nrom.* matches no parameter",
                      self.convert(path, "--as", "training", "--freeze", "nrom.*", expect=1))
        self.assertIn("no parameter to train",
                      self.convert(path, "--as", "training", "--freeze", "*", expect=1))

    def test_a_parameter_in_a_body_is_trained_too(self):
        graph, _ = self.checked(self.write(models.choice()), "--as", "training")
        self.assertEqual(self.parameters(graph), {"outer": [8, 8], "chosen/own": [8, 8]})

    def test_a_weight_that_nobody_reads_is_left_out(self):
        proto = models.mlp()
        proto.graph.initializer.append(models.zeros("forgotten", [100]))
        graph, _ = self.checked(self.write(proto), "--as", "training")
        self.assertNotIn("forgotten", self.parameters(graph))

    def test_more_edges_than_a_graph_may_have_are_refused(self):
        # Two edges for each parameter, and two more for each of its workers: 63 parameters fit, 65
        # do not.
        path = self.write(models.vgg16())
        graph = json.loads(self.convert(path, "--as", "training", "--workers", "2048"))
        self.assertEqual(len(graph["edges"]), 32 * 2 * 2049)
        proto = models.mlp()
        names = [f"more{i}" for i in range(60)]
        proto.graph.initializer.extend(models.zeros(name, [1]) for name in names)
        proto.graph.node.extend(
            models.node("Mul", ["scores" if i == 0 else f"m{i - 1}", name], f"m{i}")
            for i, name in enumerate(names))
        said = self.convert(self.write(proto), "--as", "training", "--workers", "2048", expect=1)
        self.assertIn(f"{130 * 2049} edges, and 262144 is the most", said)


if __name__ == "__main__":
    sys.exit(command.main())
