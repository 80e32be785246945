#!/usr/bin/env python3
"""Converts ONNX models and PyTorch's exported programs to dataflow graphs of schema sluice.graph/1
(docs/graph.md).

    # Parameters on servers, a step of each worker:
    convert.py vgg16.onnx --as training --workers 2 > job.json
    # The model's operators, in 4 processes:
    convert.py model.pt2 --as pipeline --stages 4 --dim s0=8 > pipeline.json
    sluice graph check pipeline.json

ONNX models need the Python package onnx (Debian's python3-onnx, or that of PyPI). Exported programs
need nothing.
Exit code: 0; 1 if the model cannot be converted; 2 for bad usage.
"""
import argparse
import json
import os
import pathlib
import sys

sys.dont_write_bytecode = True
import pipeline  # noqa: E402
import torch_reader  # noqa: E402
import training  # noqa: E402
from graph_json import Graph  # noqa: E402
from model import Dimensions, Model, ModelError  # noqa: E402

EXIT_MODEL, EXIT_USAGE = 1, 2
EXAMPLE = "convert.py model.onnx --as pipeline --stages 2"
# As `sluice graph make` has them; of processes, transport/graph has no more.
MOST_WORKERS, MOST_SERVERS, MOST_STAGES = 2_048, 64, 4_096
# Which options belong to which form.
OF_TRAINING = ("workers", "servers", "split", "compute_us", "freeze")
OF_PIPELINE = ("stages", "placement", "dim")


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        sys.stderr.write(f"convert.py: {message}; for example: {EXAMPLE}\n")
        sys.exit(EXIT_USAGE)


def whole(least: int, most: int):
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is no whole number from {least} to {most}")
        return int(text)
    return parse


def dimension(text: str) -> tuple[str, int]:
    name, equals, value = text.rpartition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=VALUE")
    return name, whole(1, (1 << 63) - 1)(value)


def microseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1e9:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 0 to 1e9")
    return value


def names(text: str) -> list[str]:
    found = text.split(",")
    if "" in found:
        raise argparse.ArgumentTypeError(f"'{text}' has an empty name")
    return found


def parser() -> Parser:
    made = Parser(prog="convert.py", description=__doc__,
                  formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("model", metavar="MODEL",
                      help="a .onnx file, or a .pt2 file of torch.export.save; its content decides")
    made.add_argument("--as", dest="form", choices=("training", "pipeline"), required=True,
                      help="training: the job that sluice graph make writes; "
                      "pipeline: each operator is a node")
    hosts = made.add_mutually_exclusive_group()
    hosts.add_argument("--hosts", action="store_true",
                       help="a host for each process, not one for all")
    hosts.add_argument("--host-names", type=names, metavar="A,B",
                       help="these hosts; each gets processes that follow each other")
    group = made.add_argument_group("training")
    group.add_argument("--workers", type=whole(1, MOST_WORKERS), metavar="N",
                       help="worker processes (1)")
    group.add_argument("--servers", type=whole(1, MOST_SERVERS), metavar="M",
                       help="server processes (1)")
    group.add_argument("--split", action="store_true", default=None,
                       help="parameters larger than a server's share are cut into pieces")
    group.add_argument("--freeze", action="append", metavar="PATTERN",
                       help="parameters that are not trained, such as 'encoder.*'; may be repeated")
    group.add_argument("--compute-us", type=microseconds, metavar="US",
                       help="a worker's computing in a step; unknown without it")
    group = made.add_argument_group("pipeline")
    group.add_argument("--stages", type=whole(1, MOST_STAGES), metavar="N",
                       help="processes, stage0 and so on")
    group.add_argument("--placement", metavar="FILE",
                       help="lines of PATTERN STAGE for node names, the first that matches "
                       "decides; without it the operators are cut into parts that follow each "
                       "other, balanced by bytes of weights and outputs")
    group.add_argument("--dim", type=dimension, action="append", metavar="NAME=VALUE",
                       help="the value of a symbolic dimension, such as batch=8; may be repeated")
    return made


def parsed(arguments: list[str]) -> argparse.Namespace:
    made = parser()
    options = made.parse_args(arguments)
    for option in OF_PIPELINE if options.form == "training" else OF_TRAINING:
        if getattr(options, option) is not None:
            made.error(f"--{option.replace('_', '-')} has no meaning with --as {options.form}")
    if options.form == "pipeline" and options.stages is None:
        made.error("--as pipeline needs --stages, the number of processes")
    return options


def read_model(path: str, dimensions: Dimensions, activations: bool) -> Model:
    with open(path, "rb") as file:
        if file.read(2) == b"PK":
            return torch_reader.read(path, dimensions)
        try:
            import onnx_reader  # only here: exported programs need no onnx
        except ImportError as error:
            raise ModelError(f"ONNX models need the Python package {error.name}, which "
                             f"{sys.executable} has not; install Debian's python3-onnx and run "
                             "this by /usr/bin/python3, or install onnx with pip") from None
        file.seek(0)
        return onnx_reader.read(file.read(), dimensions, activations)


def add_processes(graph: Graph, processes: list[str], options: argparse.Namespace):
    hosts = options.host_names or ["host"]
    if len(hosts) > len(processes):
        raise ModelError(f"--host-names has {len(hosts)} hosts for {len(processes)} processes; "
                         f"name {len(processes)} at most")
    for place, name in enumerate(processes):
        of_place = hosts[place * len(hosts) // len(processes)]
        graph.process(name, f"host-of-{name}" if options.hosts else of_place)


def converted(options: argparse.Namespace) -> dict:
    dimensions = Dimensions(dict(options.dim or []))
    graph = Graph(pathlib.Path(options.model).stem)
    model = read_model(options.model, dimensions, options.form == "pipeline")
    dimensions.check_asked()
    if options.form == "training":
        job = training.Job(options.workers or 1, options.servers or 1, bool(options.split),
                           options.compute_us or 0, tuple(options.freeze or ()))
        add_processes(graph, training.process_names(job), options)
        training.add_job(graph, model, job)
    else:
        placement = None
        if options.placement:
            text = pathlib.Path(options.placement).read_text(encoding="utf-8")
            placement = pipeline.Placement(text, options.stages)
        add_processes(graph, pipeline.process_names(options.stages), options)
        pipeline.add_pipeline(graph, model, options.stages, placement)
    return graph.document()


def main() -> int:
    options = parsed(sys.argv[1:])
    try:
        text = json.dumps(converted(options), indent=1)
    except ModelError as error:
        sys.stderr.write(f"convert.py: {options.model}: {error}\n")
        return EXIT_MODEL
    except UnicodeDecodeError:
        sys.stderr.write(f"convert.py: {options.placement} is no text; "
                         "write lines of PATTERN STAGE in UTF-8\n")
        return EXIT_MODEL
    except OSError as error:
        sys.stderr.write(f"convert.py: {error.filename} cannot be read ({error.strerror}); "
                         "name a file of this machine\n")
        return EXIT_MODEL
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough; the interpreter must not flush again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_MODEL
    return 0


if __name__ == "__main__":
    sys.exit(main())
