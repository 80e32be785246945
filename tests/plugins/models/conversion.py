"""Runs plugins/models/convert.py as a user does, and gives what it writes to the built `sluice`.

A test script's arguments are the binary and convert.py.
"""
import json
import math
import os
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tools"))
CONVERT = os.path.abspath(sys.argv.pop(2)) if len(sys.argv) > 2 else ""
sys.path.append(os.path.dirname(CONVERT))
import command  # noqa: E402

BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "int64": 64, "bool": 8, "int8": 8}


def edge_bytes(edge):
    return math.prod(edge["shape"]) * BITS[edge["dtype"]] // 8


def crossings(graph):
    """Tensors that go to another process, once for each process: counted from the document
    alone."""
    process = {node["name"]: node["process"] for node in graph["nodes"]}
    return sum(len({process[reader] for reader in edge["to"]} - {process[edge["from"]]})
               for edge in graph["edges"])


class ConversionTest(command.CommandTest):
    def convert(self, *arguments, expect=0, **extra):
        """Its output; if it is expected to fail, its one line of error."""
        done = subprocess.run([sys.executable, "-B", CONVERT, *arguments], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, timeout=command.LIMIT_SECONDS,
                              env=command.environment(**extra), check=False)
        self.assertEqual(done.returncode, expect,
                         f"{arguments}\n{done.stdout[:500]}\n{done.stderr}")
        if expect == 0:
            self.assertEqual(done.stderr, "")
            return done.stdout
        self.assertEqual(done.stdout, "")
        # Cause, then remedy, on one line.
        self.assertRegex(done.stderr, r"\Aconvert\.py: [^\n]+; [^\n]+\n\Z")
        self.assertNotIn("Traceback", done.stderr)
        return done.stderr

    def checked(self, *arguments):
        """The graph, once `sluice graph check` has proven its plan, and what that said."""
        path = self.file("graph.json")
        pathlib.Path(path).write_text(self.convert(*arguments), encoding="utf-8")
        graph = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        said = self.run_command("graph", "check", path).stdout
        self.assertIn("No tensor is overwritten while a reader is left", said)
        self.assertIn(f"{len(graph['processes'])} processes, {len(graph['nodes'])} nodes, "
                      f"{len(graph['edges'])} edges", said)
        views = int(re.search(r"(\d+) views", said)[1])
        crossed = int(re.search(r"(\d+) crossings", said)[1])
        self.assertEqual(views + crossed, crossings(graph))
        return graph, said

    def plan(self):
        """Of the graph that was checked last."""
        path = os.path.join(self.folder, "graph.json")
        return json.loads(self.run_command("graph", "plan", "--json", path).stdout)


def by_name(entries):
    return {entry["name"]: entry for entry in entries}
