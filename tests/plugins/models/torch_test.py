#!/usr/bin/env python3
"""Programs that torch.export.save wrote are converted without PyTorch, of each version the same;
what cannot be is told with the remedy. exported/make.py made the programs."""
import json
import pathlib
import sys
import zipfile

import conversion
from conversion import by_name, command

import model  # of plugins/models
import sizes  # of plugins/models

EXPORTED = pathlib.Path(__file__).resolve().parent / "exported"
# version -> the batch's name
VERSIONS = {"2.5.1": "s0", "2.8.0": "s40", "2.15.0": "s40"}
BATCH_OF_WORDS = {"2.5.1": "s0", "2.8.0": "s46", "2.15.0": "s46"}


def of_kind(graph, kind):
    """Its one node: versions number their names differently."""
    found, = [entry for entry in graph["nodes"] if entry["op"].startswith(f"aten.{kind}.")]
    return found


class Torch(conversion.ConversionTest):
    def test_every_program_here_is_tested(self):
        self.assertEqual(
            {path.name for path in EXPORTED.glob("*.pt2")},
            {f"{name}-{version}.pt2" for name in ("residual", "words") for version in VERSIONS})

    def parameters(self, program):
        graph, said = self.checked(str(EXPORTED / program), "--as", "training", "--workers", "2")
        found = {edge["name"].split("/", 1)[1]: edge["shape"] for edge in graph["edges"]
                 if edge["name"].startswith("weights/")}
        self.assertIn(f"{4 * len(found)} views", said)
        return found

    def test_parameters_are_trained_and_buffers_are_not(self):
        wanted = {"conv.weight": [4, 4, 3, 3], "norm.weight": [4], "norm.bias": [4],
                  "head.weight": [10, 256], "head.bias": [10]}
        for version in VERSIONS:
            self.assertEqual(self.parameters(f"residual-{version}.pt2"), wanted, version)

    def test_a_weight_of_two_layers_is_one_and_a_frozen_one_is_none(self):
        wanted = {"last.weight": [50, 16], "mix.weight": [16, 16], "mix.bias": [16]}
        for version in VERSIONS:
            self.assertEqual(self.parameters(f"words-{version}.pt2"), wanted, version)

    def test_operators_are_nodes_of_their_modules(self):
        for version, batch in VERSIONS.items():
            graph, said = self.checked(str(EXPORTED / f"residual-{version}.pt2"),
                                       "--as", "pipeline", "--stages", "3",
                                       "--dim", f"{batch}=7", "--hosts")
            kinds = [entry["op"].split(".")[1] for entry in graph["nodes"]
                     if entry["op"].startswith("aten.")]
            same_names = [kind.strip("_")
                          .replace("native_batch_norm_legit_no_training", "batch_norm")
                          .replace("view", "flatten") for kind in kinds]
            self.assertEqual(same_names, ["conv2d", "batch_norm", "relu", "add", "split", "cat",
                                          "flatten", "linear", "topk"], version)
            edges = by_name(graph["edges"])
            self.assertEqual((edges["image"]["from"], edges["image"]["to"]),
                             ("input/image", ["conv/conv2d", of_kind(graph, "add")["name"]]))
            self.assertEqual((edges["conv2d"]["shape"], edges["linear"]["shape"]),
                             ([7, 4, 8, 8], [7, 10]))
            # The places of the three best are whole numbers; both outputs are read.
            last = [edge for edge in graph["edges"] if edge["to"][0].startswith("output/")]
            self.assertEqual([(edge["dtype"], edge["shape"]) for edge in last],
                             [("float32", [7, 3]), ("int64", [7, 3])])
            image, weights = 4 * 7 * 4 * 8 * 8, 4 * 4 * 4 * 3 * 3
            nodes = by_name(graph["nodes"])
            self.assertEqual(nodes["conv/conv2d"]["touched_bytes"], 2 * image + weights)
            self.assertEqual(nodes["head/linear"]["touched_bytes"],
                             4 * (256 * 10 + 10 + 7 * 256 + 7 * 10))
            # Both halves of the split, and their sum.
            self.assertEqual(of_kind(graph, "cat")["touched_bytes"], 2 * image)
            self.assertTrue(of_kind(graph, "add")["in_place"])
            self.assertNotIn("in_place", nodes["head/linear"])
            self.assertIn("0 views", said)

    def test_sizes_are_computed_and_held_against_the_range(self):
        for version, batch in BATCH_OF_WORDS.items():
            path = str(EXPORTED / f"words-{version}.pt2")
            two_stages = (path, "--as", "pipeline", "--stages", "2")
            graph, _ = self.checked(*two_stages, "--dim", f"{batch}=5")
            cat = of_kind(graph, "cat")["name"]
            self.assertEqual([edge["shape"] for edge in graph["edges"] if edge["from"] == cat],
                             [[10, 6, 16]])
            # The frozen weight, the buffer and the constant are with their readers.
            nodes = by_name(graph["nodes"])
            self.assertEqual(nodes["frozen/linear"]["touched_bytes"],
                             4 * (16 * 16 + 16 + 2 * 5 * 6 * 16))
            self.assertEqual(of_kind(graph, "mul")["touched_bytes"], 4 * (16 + 2 * 5 * 6 * 16))
            self.assertIn(f"--dim {batch}=8", self.convert(*two_stages, expect=1))
            self.assertIn("outside of 0 to 512",
                          self.convert(*two_stages, "--dim", f"{batch}=513", expect=1))
            self.assertIn(f"names no dimension of the model; it has: {batch}",
                          self.convert(*two_stages, "--dim", "batch=5", expect=1))

    def test_neither_pytorch_nor_onnx_is_needed(self):
        for name in ("torch", "onnx", "numpy"):
            text = f"raise ImportError('not here', name='{name}')\n"
            pathlib.Path(self.file(name + ".py")).write_text(text, encoding="ascii")
        self.convert(str(EXPORTED / "words-2.15.0.pt2"), "--as", "training", PYTHONPATH=self.folder)
        path = self.file("model.onnx")
        pathlib.Path(path).write_bytes(b"\x08\x07")
        said = self.convert(path, "--as", "training", expect=1, PYTHONPATH=self.folder)
        self.assertIn("install Debian's python3-onnx", said)

    def test_a_weight_may_have_the_name_of_a_tensor_or_any_other(self):
        def rename(document):
            spec = document["graph_module"]["signature"]["input_specs"][0]
            spec["parameter"]["parameter_name"] = name
        name = "linear"
        path = self.write_changed(rename)
        graph, _ = self.checked(path, "--as", "training")
        self.assertIn("weights/linear", by_name(graph["edges"]))
        self.checked(path, "--as", "pipeline", "--stages", "2", "--dim", "s40=2")
        name = "größe"  # also where the output is ASCII
        self.assertIn(r"weights/gr\u00f6\u00dfe", self.convert(
            self.write_changed(rename), "--as", "training", PYTHONIOENCODING="ascii"))

    def write_changed(self, change, program="residual-2.15.0.pt2"):
        """A program whose graph was changed."""
        path = self.file("changed.pt2")
        with zipfile.ZipFile(EXPORTED / program) as whole, zipfile.ZipFile(path, "w") as written:
            for entry in whole.infolist():
                data = whole.read(entry)
                if b'"graph_module"' in data:
                    document = json.loads(data)
                    change(document)
                    data = json.dumps(document).encode()
                written.writestr(entry.filename, data)
        return path

    def changed(self, change):
        """What the command says of it."""
        return self.convert(self.write_changed(change), "--as", "pipeline", "--stages", "1",
                            "--dim", "s40=2", expect=1)

    def test_schema_versions_that_nobody_has_seen_are_refused(self):
        for major in (6, 9):
            said = self.changed(lambda document, major=major:
                                document["schema_version"].update(major=major, minor=1))
            self.assertIn(f"schema version {major}.1, and 7 and 8 are known; "
                          "export it with torch 2.5", said)

    def test_what_is_no_tensor_is_refused(self):
        def nodes(document):
            return document["graph_module"]["graph"]["nodes"]

        def values(document):
            return document["graph_module"]["graph"]["tensor_values"]
        self.assertIn(
            "makes a number for the program out of 'conv2d'",
            self.changed(lambda document: nodes(document)[1].update(
                target="torch.ops.aten.item.default")))
        thing = {"as_custom_obj": {"name": "thing", "class_fqn": "a.B"}}
        self.assertIn(
            "passes the object 'thing'",
            self.changed(lambda document: nodes(document)[2]["inputs"].append(
                {"name": "object", "arg": thing})))
        self.assertIn(
            "'add' is of type number 77",
            self.changed(lambda document: values(document)["add"].update(dtype=77)))
        self.assertIn(
            "'add' would have an extent of -3",
            self.changed(lambda document: values(document)["add"]["sizes"].append({"as_int": -3})))
        self.assertIn(
            "'Whatever', which is not understood",
            self.changed(lambda document: values(document)["add"]["sizes"].append(
                {"as_expr": {"expr_str": "Whatever(Symbol('s40'))"}})))

    def test_graphs_that_are_not_as_the_schema_says_are_refused(self):
        def graph(document):
            return document["graph_module"]["graph"]
        for change in (
                lambda document: document.pop("graph_module"),
                lambda document: document.update(schema_version=8),
                lambda document: graph(document).update(nodes=[7]),
                lambda document: graph(document)["tensor_values"].pop("add"),
                lambda document: graph(document)["nodes"][0].update(inputs={"a": 1}),
                lambda document: document["graph_module"]["signature"].update(input_specs=[{}])):
            self.assertIn("save it again with torch 2.5", self.changed(change))
        self.assertIn(
            "cycle of 2 operators",
            self.changed(lambda document: graph(document)["nodes"][0]["inputs"].append(
                {"name": "more", "arg": {"as_tensor": {"name": "batch_norm"}}})))
        self.assertIn(
            "'nobody', which nothing makes",
            self.changed(lambda document: graph(document)["nodes"][0]["inputs"].append(
                {"name": "more", "arg": {"as_tensors": [{"name": "nobody"}]}})))

    def test_archives_that_are_no_exported_program_are_refused(self):
        path = self.file("other.pt2")

        def said(files):
            with zipfile.ZipFile(path, "w") as written:
                for name, text in files.items():
                    written.writestr(name, text)
            return self.convert(path, "--as", "training", expect=1)
        self.assertIn("as of torch.save, torch.jit.save",
                      said({"model/data.pkl": "", "model/constants.pkl": ""}))
        self.assertIn("2 exported programs",
                      said({"archive/models/a.json": "{}", "archive/models/b.json": "{}"}))
        self.assertIn("no JSON", said({"archive/models/model.json": "{"}))
        self.assertIn("no JSON", said({"archive/models/model.json": "[" * 100_000}))
        self.assertIn("not as its schema version says", said({"archive/models/model.json": "[]"}))
        whole = (EXPORTED / "residual-2.5.1.pt2").read_bytes()
        for size in range(2, len(whole), len(whole) // 12):
            pathlib.Path(path).write_bytes(whole[:size])
            self.assertIn("no whole archive", self.convert(path, "--as", "training", expect=1))

    def test_sizes_are_arithmetic_and_nothing_else(self):
        def value(text):
            return sizes.value_of(text, lambda name: {"s0": 5, "s1": 7}.get(name, name))
        for text, wanted in (
                ("12", 12),
                ("2*s0 - 1", 9),
                ("((s1 - 2)//2) + 1", 3),
                ("s0**2", 25),
                ("-s0 + s1", 2),
                ("s1 % s0", 2),
                ("Add(Mul(Integer(2), Symbol('s0', positive=True, integer=True)), Integer(-1))", 9),
                ("FloorDiv(Add(Symbol('s1'), Integer(-2)), Integer(2))", 2),
                ("Max(1, s0, s1)", 7),
                ("CeilDiv(s1, 2)", 4),
                ("Pow(Symbol('s0'), Integer(2))", 25),
                ("u0", "u0"),
                ("2*s0 + u0*s1", "u0")):
            self.assertEqual(value(text), wanted, text)
        for text in ("s0/2", "s0.x", "__import__('os')", "[s0]", "'s0'", "s0 if s1 else 1",
                     "(" * 90, "-" * 5000, "", "9**9**9", "s0//0", "Max()"):
            with self.assertRaises(model.ModelError, msg=text):
                value(text)


if __name__ == "__main__":
    sys.exit(command.main())
