"""A model's own dataflow in stages: each operator is a node, each tensor between operators an edge.
Weights stay with the nodes that read them."""
import fnmatch

from graph_json import Graph
from model import Model, ModelError, Op, shown


class Placement:
    """Lines of "PATTERN STAGE", the first that matches a node's name decides; a line that begins
    with # is a comment."""

    def __init__(self, text: str, stages: int):
        names = process_names(stages)
        self._rules: list[tuple[str, int]] = []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            *pattern, stage = line.rsplit(None, 1)
            if not pattern or stage not in names:
                raise ModelError(f"line {number} of the placement is {shown(line)}; write a "
                                 f"pattern of node names and one of stage0 to {names[-1]}, for "
                                 "example: conv* stage0")
            self._rules.append((pattern[0].strip(), names.index(stage)))
        self._used: set[str] = set()

    def stage_of(self, node: str) -> int:
        for pattern, stage in self._rules:
            if fnmatch.fnmatchcase(node, pattern):
                self._used.add(pattern)
                return stage
        raise ModelError(f"the placement has no pattern for the node {shown(node)}; "
                         "end it with one for all others, for example: * stage0")

    def check_used(self):
        for pattern, _ in self._rules:
            if pattern not in self._used:
                raise ModelError(f"the pattern {shown(pattern)} of the placement places no node; "
                                 "take it out, or correct it: the first that matches decides")


def process_names(stages: int) -> list[str]:
    return [f"stage{i}" for i in range(stages)]


def weight_bytes(model: Model, op: Op) -> int:
    return sum(model.tensor(name).bytes for name in op.inputs if name in model.weights)


def readers_of(model: Model) -> dict[str, list[int]]:
    """Of each tensor that somebody makes or supplies, the operators that read it."""
    readers: dict[str, list[int]] = {}
    for place, op in enumerate(model.ops):
        for name in op.inputs:
            if name not in model.weights:
                readers.setdefault(name, []).append(place)
    return readers


def cut(costs: list[int], stages: int) -> list[int]:
    """The stage of each operator: contiguous, none empty, and the most expensive stage as cheap as
    can be."""
    if stages > len(costs):
        raise ModelError(f"the model has {len(costs)} operators, too few for {stages} stages; "
                         f"use --stages {len(costs)}")
    low, high = max(costs), sum(costs)
    while low < high:
        middle = (low + high) // 2
        if _stages_within(costs, middle) <= stages:
            high = middle
        else:
            low = middle + 1
    chosen, stage, load = [], 0, 0
    for place, cost in enumerate(costs):
        # A stage that is empty yet needs an operator of those that are left.
        last_chance = len(costs) - place == stages - 1 - stage
        if place > 0 and (load + cost > low or last_chance):
            stage, load = stage + 1, 0
        load += cost
        chosen.append(stage)
    return chosen


def _stages_within(costs: list[int], most: int) -> int:
    stages, load = 1, 0
    for cost in costs:
        if load + cost > most:
            stages, load = stages + 1, 0
        load += cost
    return stages


def add_pipeline(graph: Graph, model: Model, stages: int, placement: Placement | None):
    readers = readers_of(model)
    supplied = [name for name in model.inputs if name in readers or name in model.outputs]
    made = (name for op in model.ops for name in op.outputs
            if name in readers or name in model.outputs)
    edges = [*supplied, *made]
    sizes = {name: model.tensor(name).bytes for name in edges}
    if placement:
        chosen = [placement.stage_of(op.name) for op in model.ops]
    else:
        costs = [weight_bytes(model, op) + sum(sizes.get(name, 0) for name in op.outputs)
                 for op in model.ops]
        chosen = cut(costs, stages)
    processes = process_names(stages)
    makers: dict[str, str] = {}

    def stage_beside(node: str, stage: int) -> str:
        return processes[placement.stage_of(node) if placement else stage]

    homes: dict[str, int] = {name: chosen[readers[name][0]] if name in readers else 0
                             for name in supplied}
    for name in supplied:
        node = f"input/{name}"
        makers[name] = graph.node(node, stage_beside(node, homes[name]), "input")
    for op, stage in zip(model.ops, chosen):
        passed = sum(sizes.get(name, 0) for name in [*op.inputs, *op.outputs])
        touched = weight_bytes(model, op) + passed
        graph.node(op.name, processes[stage], op.kind, in_place=op.in_place, touched_bytes=touched)
        for name in op.outputs:
            makers[name] = op.name
            homes[name] = stage
    to = {name: [model.ops[place].name for place in readers.get(name, [])] for name in edges}
    for name in model.outputs:
        if name in to:
            node = f"output/{name}"
            to[name].append(graph.node(node, stage_beside(node, homes[name]), "output"))
    if placement:
        placement.check_used()
    for name in edges:
        graph.edge(name, makers[name], to[name], model.tensor(name))
