#!/usr/bin/python3
"""ONNX models as pipelines: each operator is a node, each tensor between operators an edge, stages
are balanced or as a file says; and what cannot be converted is told with the remedy."""
import itertools
import math
import sys

import conversion
import onnx_models as models
from conversion import by_name, command
from onnx_models import FLOAT, INT64, TensorProto, helper, node, value

import graph_json  # of plugins/models
import model as neutral  # of plugins/models
import pipeline  # of plugins/models


class Pipeline(conversion.ConversionTest):
    def write(self, proto, name="model.onnx"):
        path = self.file(name)
        with open(path, "wb") as file:
            file.write(proto if isinstance(proto, bytes) else proto.SerializeToString())
        return path

    def converted(self, proto, *arguments):
        return self.checked(self.write(proto), "--as", "pipeline", *arguments)

    def refused(self, proto, *arguments, words):
        said = self.convert(self.write(proto), "--as", "pipeline", "--stages", "1", *arguments,
                            expect=1)
        for word in words:
            self.assertIn(word, said)

    def test_operators_are_nodes_and_tensors_are_edges(self):
        graph, said = self.converted(models.residual(), "--stages", "1", "--dim", "batch=3")
        edges = {edge["name"]: (edge["from"], edge["to"], edge["dtype"], edge["shape"])
                 for edge in graph["edges"]}
        image = [3, 4, 8, 8]
        self.assertEqual(edges, {
            "image": ("input/image", ["conv", "add"], "float32", image),
            "conv": ("conv", ["norm"], "float32", image),
            "norm": ("norm", ["relu"], "float32", image),
            "relu": ("relu", ["add", "output/relu"], "float32", image),
            "add": ("add", ["resized"], "float32", image),
            "resized": ("resized", ["flat"], "float32", [3, 4, 16, 16]),
            "flat": ("flat", ["scaled"], "float32", [3, 1024]),
            "scaled": ("scaled", ["scores"], "float32", [3, 1024]),
            "scores": ("scores", ["output/scores"], "float32", [3, 10])})
        nodes = by_name(graph["nodes"])
        self.assertEqual([nodes[name]["op"] for name in ("conv", "norm", "flat")],
                         ["Conv", "BatchNormalization", "Reshape"])
        activation = 4 * math.prod(image)
        self.assertEqual(nodes["conv"]["touched_bytes"], 2 * activation + 4 * 4 * 4 * 9)
        self.assertEqual(nodes["norm"]["touched_bytes"], 2 * activation + 4 * 4 * 4)
        self.assertEqual(nodes["add"]["touched_bytes"], 3 * activation)
        self.assertEqual(nodes["flat"]["touched_bytes"], 2 * 4 * 3 * 1024 + 2 * 8)
        self.assertEqual({name for name, entry in nodes.items() if entry.get("in_place")},
                         {"relu", "add", "flat", "scaled"})
        self.assertFalse([entry for entry in graph["nodes"] if "compute_us" in entry])
        self.assertIn("0 views, 0 crossings", said)

    def test_stages_of_vgg16_cross_where_they_are_cut(self):
        for stages in (2, 5):
            graph, said = self.converted(models.vgg16(), "--stages", str(stages),
                                         "--dim", "batch=8", "--hosts")
            self.assertEqual([process["name"] for process in graph["processes"]],
                             [f"stage{i}" for i in range(stages)])
            # A chain: one tensor crosses each cut.
            self.assertIn(f"0 views, {stages - 1} crossings", said)
            order = [node["process"] for node in graph["nodes"]
                     if node["op"] not in ("input", "output")]
            self.assertEqual(order, sorted(order))
        # Without hosts they are views.
        on_one_host = self.converted(models.vgg16(), "--stages", "5", "--dim", "batch=8")[1]
        self.assertIn("4 views, 0 crossings", on_one_host)

    def test_bytes_of_all_weights_are_touched_once(self):
        proto = models.vgg16()
        weights = 4 * sum(math.prod(tensor.dims) for tensor in proto.graph.initializer)
        self.assertEqual(weights, 4 * 138_357_544)
        graph, _ = self.converted(proto, "--stages", "3", "--dim", "batch=2")
        input_bytes = 4 * 2 * 3 * 224 * 224  # no operator makes it
        passed = sum(
            conversion.edge_bytes(edge)
            * (1 + len([r for r in edge["to"] if not r.startswith("output/")]))
            for edge in graph["edges"]) - input_bytes
        self.assertEqual(sum(entry.get("touched_bytes", 0) for entry in graph["nodes"]),
                         weights + passed)

    def test_no_cut_is_better_balanced(self):
        def cost_of(costs, chosen):
            return max(sum(cost for cost, stage in zip(costs, chosen) if stage == each)
                       for each in set(chosen))
        for costs in ([5, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5, 6, 7], [9, 1, 1, 9], [0, 0, 0, 7],
                      [4, 0, 0, 0, 0], [3, 3, 3, 3, 3, 3, 3, 3]):
            for stages in range(1, len(costs) + 1):
                chosen = pipeline.cut(costs, stages)
                self.assertEqual(sorted(set(chosen)), list(range(stages)), (costs, chosen))
                self.assertEqual(chosen, sorted(chosen))
                best = min(
                    cost_of(costs, [sum(place >= cut for cut in cuts)
                                    for place in range(len(costs))])
                    for cuts in itertools.combinations(range(1, len(costs)), stages - 1))
                self.assertEqual(cost_of(costs, chosen), best, (costs, stages, chosen))

    def test_weights_and_outputs_decide_the_cut(self):
        def first_stage(graph):
            return [entry["name"] for entry in graph["nodes"] if entry["process"] == "stage0"]
        # Of the weights w1 is the largest by far: its layer is a stage of its own, before the other
        # four operators.
        graph, _ = self.converted(models.mlp(), "--stages", "2", "--dim", "batch=1")
        self.assertEqual(first_stage(graph), ["input/image", "h1"])
        # With 100,000 samples the outputs weigh more: 102 MB of h1 and of r1 before 130 MB of the
        # others.
        graph, _ = self.converted(models.mlp(), "--stages", "2", "--dim", "batch=100000")
        self.assertEqual(first_stage(graph), ["input/image", "h1", "r1"])

    def test_a_file_says_the_placement(self):
        place = self.file("placement")

        def placed(text, *arguments, **more):
            with open(place, "w", encoding="utf-8") as file:
                file.write(text)
            path = self.write(models.residual())
            run = self.convert if more else self.checked
            return run(path, "--as", "pipeline", "--stages", "3", "--dim", "batch=2",
                       "--placement", place, *arguments, **more)
        graph, said = placed("# the ends\ninput/*  stage2\nre*\tstage1\n* stage0\n",
                             "--host-names", "a,b,c")
        self.assertEqual({entry["name"]: entry["process"] for entry in graph["nodes"]}, {
            "input/image": "stage2", "conv": "stage0", "norm": "stage0", "relu": "stage1",
            "add": "stage0", "resized": "stage1", "flat": "stage0", "scaled": "stage0",
            "scores": "stage0", "output/relu": "stage0", "output/scores": "stage0"})
        # image, norm, relu, add, resized
        self.assertIn("0 views, 5 crossings", said)
        self.assertIn("no pattern for the node 'norm'",
                      placed("input/* stage0\nconv stage0\n", expect=1))
        self.assertIn("'conx*' of the placement places no node",
                      placed("conx* stage0\n* stage1\n", expect=1))
        for line in ("* stage3", "stage0", "* ps0"):
            self.assertIn("line 1 of the placement", placed(line + "\n", expect=1))

    def test_hosts_get_stages_that_follow_each_other(self):
        def hosts(*arguments):
            graph, _ = self.converted(models.vgg16(), "--stages", "4", "--dim", "batch=1",
                                      *arguments)
            return [process["host"] for process in graph["processes"]]
        self.assertEqual(hosts(), ["host"] * 4)
        self.assertEqual(hosts("--hosts"), ["host-of-stage0", "host-of-stage1",
                                            "host-of-stage2", "host-of-stage3"])
        self.assertEqual(hosts("--host-names", "a,b"), ["a", "a", "b", "b"])
        self.refused(models.mlp(), "--dim", "batch=1", "--host-names", "a,b",
                     words=["2 hosts for 1 processes"])

    def test_symbolic_dimensions_need_values(self):
        self.refused(models.mlp(), words=["'image'", "'batch'", "--dim batch=8"])
        self.refused(models.mlp(), "--dim", "batch=4", "--dim", "bach=8",
                     words=["--dim bach=8 names no dimension", "batch"])
        nameless = models.model([node("Relu", ["x"], "y")],
                                [value("x", [None, 4])], [value("y", [None, 4])])
        self.refused(nameless, words=["'x.0'", "--dim x.0=8"])
        graph, _ = self.converted(nameless, "--stages", "1", "--dim", "x.0=5")
        self.assertEqual(graph["edges"][1]["shape"], [5, 4])

    def test_sizes_may_be_arithmetic(self):
        proto = models.model(
            [helper.make_node("Ours", ["x"], ["y"], "ours", domain="ours"),
             node("Relu", ["y"], "z")],
            [value("x", ["batch", "a name"])],
            [value("z", None)],
            value_info=[value("y", ["2*batch + 1", "a name"])])
        graph, _ = self.converted(proto, "--stages", "1", "--dim", "batch=3", "--dim", "a name=5")
        self.assertEqual({edge["name"]: edge["shape"] for edge in graph["edges"]},
                         {"x": [3, 5], "y": [7, 5], "z": [7, 5]})
        self.assertEqual(by_name(graph["nodes"])["ours"]["op"], "ours.Ours")

    def test_the_data_of_weights_is_not_needed(self):
        # 141 GB, elsewhere.
        proto = models.model(
            [node("MatMul", ["x", "w"], "y")],
            [value("x", ["batch", 265_000])],
            [value("y", ["batch", 133_000])],
            [models.elsewhere("w", [265_000, 133_000])])
        graph, _ = self.converted(proto, "--stages", "1", "--dim", "batch=2")
        self.assertEqual(by_name(graph["nodes"])["y"]["touched_bytes"],
                         4 * (265_000 * 133_000 + 2 * 265_000 + 2 * 133_000))
        # Data that is there is not needed either.
        same, _ = self.converted(models.vgg16(), "--stages", "2", "--dim", "batch=2")
        small = models.vgg16(
            lambda name, dims: TensorProto(name=name, data_type=FLOAT, dims=dims))
        self.assertEqual(self.converted(small, "--stages", "2", "--dim", "batch=2")[0], same)

    def test_an_operator_with_bodies_is_one_node(self):
        graph, _ = self.converted(models.choice(), "--stages", "1", "--dim", "batch=2")
        edges = {edge["name"]: (edge["from"], edge["to"]) for edge in graph["edges"]}
        self.assertEqual(edges, {
            "x": ("input/x", ["doubled"]),
            "flag": ("input/flag", ["chosen"]),
            "doubled": ("doubled", ["chosen"]),
            "chosen": ("chosen", ["y"]),
            "y": ("y", ["output/y"])})
        # Both bodies' weights, what it reads, and what it makes.
        self.assertEqual(by_name(graph["nodes"])["chosen"]["touched_bytes"],
                         2 * 4 * 64 + 2 * 4 * 16 + 1)

    def test_nodes_in_any_order_are_sorted(self):
        proto = models.residual()
        nodes = list(proto.graph.node)[::-1]
        wanted = self.converted(models.residual(), "--stages", "2", "--dim", "batch=2")[0]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        self.assertEqual(self.converted(proto, "--stages", "2", "--dim", "batch=2")[0], wanted)

    def test_operators_of_one_name_and_without_names(self):
        proto = models.model(
            [node("Relu", ["x"], "a", name="same"),
             node("Relu", ["a"], "b", name="same"),
             node("Relu", ["b"], "c", name="")],
            [value("x", [4])],
            [value("c", [4])])
        graph, _ = self.converted(proto, "--stages", "1")
        self.assertEqual([entry["name"] for entry in graph["nodes"]],
                         ["input/x", "same", "same/b", "Relu/c", "output/c"])

    def test_each_dtype_of_numbers_is_known_to_the_graph(self):
        numbers = [number for number in range(1, 17) if number != TensorProto.STRING]
        proto = models.model(
            [node("Identity", [f"x{number}"], f"y{number}") for number in numbers],
            [value(f"x{number}", [3], number) for number in numbers],
            [value(f"y{number}", [3], number) for number in numbers])
        graph, _ = self.converted(proto, "--stages", "1")
        self.assertEqual(
            [edge["dtype"] for edge in graph["edges"][:len(numbers)]],
            ["float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "bool", "float16",
             "float64", "uint32", "uint64", "complex64", "complex128", "bfloat16"])
        of_eight_bits = (17, 18, 19, 20, 24)
        inputs = [f"x{number}" for number in of_eight_bits]
        eighths = models.model(
            [helper.make_node("Ours", inputs, ["y"], "ours", domain="ours")],
            [value(f"x{number}", [3], number) for number in of_eight_bits],
            [value("y", [3])])
        graph, _ = self.converted(eighths, "--stages", "1")
        self.assertEqual({edge["dtype"][:7] for edge in graph["edges"]}, {"float8_", "float32"})

    def test_four_bits_are_for_weights_only(self):
        def quantised(**of_input):
            return models.model(
                [helper.make_node("Ours", ["x", "w"], ["y"], "ours", domain="ours")],
                [value("x", [5], **of_input)],
                [value("y", [4])],
                [models.elsewhere("w", [3, 5], 22)])
        graph, _ = self.converted(quantised(), "--stages", "1")
        self.assertEqual(by_name(graph["nodes"])["ours"]["touched_bytes"], 8 + 20 + 16)
        self.refused(quantised(dtype=22), words=["'x'", "int4", "cast it"])

    def test_what_is_no_tensor_of_numbers_is_refused(self):
        def of(dtype):
            return models.model([node("Identity", ["x"], "y")],
                                [value("x", [2], dtype)], [value("y", [2], dtype)])
        self.refused(of(TensorProto.STRING), words=["'x'", "string"])
        self.refused(of(99), words=["'x'", "number 99"])
        sequence = models.model(
            [node("SequenceConstruct", ["x", "x"], "s"), node("SequenceLength", ["s"], "y")],
            [value("x", [2])],
            [value("y", [], INT64)])
        self.refused(sequence, words=["'s'", "sequence"])
        sparse = models.mlp()
        sparse.graph.sparse_initializer.add().values.name = "holes"
        self.refused(sparse, words=["'holes'", "sparse"])

    def test_missing_and_impossible_shapes_are_refused(self):
        def of(kind, shape, inputs=("x",), **attributes):
            domain = "ours" if kind == "Ours" else ""
            made = helper.make_node(kind, list(inputs), ["y"], "op", domain=domain, **attributes)
            return models.model(
                [made, node("Identity", ["y"], "z")],
                [value("x", shape)],
                [value("z", None, INT64 if kind == "NonZero" else FLOAT)])
        self.refused(of("Ours", [2]), words=["'y'", "has no shape", "symbolic_shape_infer"])
        self.refused(of("NonZero", [2]), words=["has no shape"])
        self.refused(of("Relu", [2, 0]), words=["[2, 0], without elements"])
        self.refused(of("Relu", [1] * 9), words=["9 dimensions, and 8"])
        self.refused(of("Relu", [1 << 40, 1 << 40]), words=["2^63"])

    def test_types_that_contradict_each_other_end_in_one_line_at_most(self):
        proto = models.model([node("NonZero", ["x"], "y")],
                             [value("x", [2])], [value("y", [1, 2], FLOAT)])
        if models.onnx.__version__ != "1.12.0":  # later ones take the type that is declared
            return self.converted(proto, "--stages", "1")
        return self.refused(proto, words=["shapes cannot be inferred", "onnx.checker"])

    def test_graphs_that_are_none_are_refused(self):
        def of(*nodes):
            return models.model(list(nodes), [value("x", [2])], [value("z", [2])])
        cycle = of(node("Add", ["x", "c"], "a"), node("Relu", ["a"], "b"),
                   node("Relu", ["b"], "c"), node("Relu", ["x"], "z"))
        self.refused(cycle, words=["cycle of 3 operators", "'a' > 'b' > 'c'"])
        self.refused(of(node("Add", ["x", "nobody"], "z")),
                     words=["'z'", "'nobody'", "nothing makes"])
        self.refused(of(node("Relu", ["x"], "z"), node("Abs", ["x"], "z", name="again")),
                     words=["'again'", "exists already"])
        self.refused(of(node("Relu", ["x"], "z", name="n" * 256)), words=["name of 256 bytes"])
        self.refused(of(node("Relu", ["x"], "z", name="input/x")),
                     words=["two nodes would be named 'input/x'"])
        self.refused(models.mlp(), "--dim", "batch=1", "--stages", "7",
                     words=["6 operators", "--stages 6"])

    def test_more_nodes_than_a_graph_may_have_are_refused(self):
        nodes = [node("Relu", [f"t{i}"], f"t{i + 1}") for i in range(65_536)]
        proto = models.model(nodes, [value("t0", [1])], [value("t65536", [1])])
        self.refused(proto, words=["65538 nodes, and 65536 is the most"])

    def test_more_readers_or_clocks_than_a_graph_may_have_are_refused(self):
        def graph(processes, nodes, readers):
            made = graph_json.Graph("large")
            for i in range(processes):
                made.process(f"p{i}", "host")
            for i in range(nodes):
                made.node(f"n{i}", "p0", "op")
            made.edge("e", "n0", ["n1"] * readers, neutral.Tensor("e", "float32", (1,)))
            return made.document()
        for fits, too_many, words in (
                ((4096, 16384, 1), (4096, 16385, 1), "16385 nodes times 4096 processes"),
                ((1, 2, 1 << 20), (1, 2, (1 << 20) + 1), "1048577 readers"),
                ((4096, 1, 1), (4097, 1, 1), "4097 processes")):
            graph(*fits)
            with self.assertRaisesRegex(neutral.ModelError, words):
                graph(*too_many)

    def test_files_that_are_no_model_are_refused(self):
        whole = models.residual().SerializeToString()
        self.refused(b"", words=["no ONNX graph"])
        self.refused(b"\x7fELF" + bytes(100), words=["neither an ONNX model nor"])
        self.refused(b'{"schema": "sluice.graph/1"}', words=["neither an ONNX model nor"])
        self.refused(whole[:len(whole) // 2], words=["cut short"])
        # Of any damage there is one line at most.
        for byte in range(0, len(whole), len(whole) // 12):
            damaged = bytearray(whole)
            damaged[byte] ^= 0xff
            path = self.write(bytes(damaged))
            done = command.subprocess.run(
                [sys.executable, "-B", conversion.CONVERT, path,
                 "--as", "pipeline", "--stages", "1", "--dim", "batch=1"],
                capture_output=True, text=True, check=False)
            self.assertIn(done.returncode, (0, 1), done.stderr)
            self.assertRegex(done.stderr, r"\A(convert\.py: [^\n]+; [^\n]+\n)?\Z")


if __name__ == "__main__":
    sys.exit(command.main())
