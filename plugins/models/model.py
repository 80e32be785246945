"""A model as the converters see it: operators, the tensors between them, and the weights. Values
only; knows no file and no format. The readers (onnx_reader.py, torch_reader.py) make it;
training.py and pipeline.py make graphs of it."""
import dataclasses
import heapq
import math

# Bits of an element. The names are those of sluice.graph/1, as far as it has the type.
BITS = {
    "bool": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64,
    "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
    "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64, "complex64": 64, "complex128": 128,
    "float8_e4m3fn_8": 8, "float8_e4m3fnuz_8": 8, "float8_e5m2_8": 8, "float8_e5m2fnuz_8": 8,
    "float8_e8m0fnu_8": 8,
}
# Weights may have these, edges may not: transport/graph has whole bytes, and no complex number of
# two halves.
WEIGHT_BITS = BITS | {
    "int2": 2, "uint2": 2, "int4": 4, "uint4": 4,
    "float4_e2m1": 4, "float6_e2m3": 6, "float6_e3m2": 6, "complex32": 32,
}
# Of a tensor that the model says nothing about; it has no shape either.
UNKNOWN = "unknown"
TRAINABLE = ("float16", "bfloat16", "float32", "float64")


class ModelError(Exception):
    """One line: what is wrong with the input, and what to do about it."""


def shown(name: str) -> str:
    """A name from a file, fit for one line of a message."""
    text = name if len(name) <= 80 else name[:77] + "..."
    return "'" + "".join(c if c.isprintable() else "?" for c in text) + "'"


@dataclasses.dataclass(frozen=True)
class Tensor:
    name: str
    # Of BITS, or the word of the format for what is no tensor of numbers: "string", "sequence".
    dtype: str
    # A str: a dimension without a value; None: the model does not say.
    shape: tuple[int | str, ...] | None

    @property
    def elements(self) -> int:
        for extent in self.shape or ():
            if isinstance(extent, str):
                raise ModelError(f"the tensor {shown(self.name)} has the dimension {shown(extent)} "
                                 f"without a value; add --dim {extent}=8, for example")
            if extent < 0:
                raise ModelError(f"the tensor {shown(self.name)} would have an extent of {extent}; "
                                 "choose larger values for --dim")
        if self.shape is None:
            raise ModelError(f"the tensor {shown(self.name)} has no shape; export the model with "
                             "torch.onnx.export(dynamo=True), or add shapes with "
                             "onnxruntime.tools.symbolic_shape_infer")
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        if self.dtype in WEIGHT_BITS or self.dtype == UNKNOWN:
            return (self.elements * WEIGHT_BITS.get(self.dtype, 0) + 7) // 8
        raise ModelError(f"{shown(self.name)} is of type {self.dtype}, which has no fixed size; "
                         "keep it out of the model's graph: sluice.graph/1 has tensors of numbers "
                         "only")


@dataclasses.dataclass
class Op:
    name: str
    kind: str
    inputs: list[str]  # tensors, each once
    outputs: list[str]
    in_place: bool = False  # an output may be written over an input of the same size


@dataclasses.dataclass
class Model:
    # Those of which a type is known.
    tensors: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    # Kept with who reads them; True: trained.
    weights: dict[str, bool] = dataclasses.field(default_factory=dict)
    inputs: list[str] = dataclasses.field(default_factory=list)
    outputs: list[str] = dataclasses.field(default_factory=list)
    ops: list[Op] = dataclasses.field(default_factory=list)

    def tensor(self, name: str) -> Tensor:
        return self.tensors.get(name) or Tensor(name, UNKNOWN, None)

    def sort(self) -> list[int]:
        """Puts each operator after those that it reads from; otherwise their order stays. Returns
        their places before."""
        makers = self._makers()
        waiting = [0] * len(self.ops)
        readers: list[list[int]] = [[] for _ in self.ops]
        for place, op in enumerate(self.ops):
            for name in op.inputs:
                if name in makers:
                    readers[makers[name]].append(place)
                    waiting[place] += 1
                elif name not in self.weights and name not in self.inputs:
                    raise ModelError(f"the operator {shown(op.name)} reads {shown(name)}, which "
                                     "nothing makes; the file is damaged or was cut out of a "
                                     "larger one: export the model again")
        ready = [place for place, count in enumerate(waiting) if count == 0]
        order: list[int] = []
        while ready:
            order.append(heapq.heappop(ready))
            for reader in readers[order[-1]]:
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    heapq.heappush(ready, reader)
        if len(order) < len(self.ops):
            self._tell_cycle(makers, set(order))
        self.ops = [self.ops[place] for place in order]
        return order

    def _makers(self) -> dict[str, int]:
        makers: dict[str, int] = {}
        for place, op in enumerate(self.ops):
            for name in op.outputs:
                if name in makers or name in self.weights or name in self.inputs:
                    raise ModelError(f"the operator {shown(op.name)} makes {shown(name)}, which "
                                     "exists already; a tensor has one maker: export the model "
                                     "again")
                makers[name] = place
        return makers

    def _tell_cycle(self, makers: dict[str, int], sorted_ones: set[int]):
        """Each operator that is left reads from another one that is left: going back finds the
        cycle."""
        at = next(place for place in range(len(self.ops)) if place not in sorted_ones)
        path: list[int] = []
        while at not in path:
            path.append(at)
            at = next(makers[name] for name in self.ops[at].inputs
                      if name in makers and makers[name] not in sorted_ones)
        cycle = path[path.index(at):][::-1]
        first = cycle.index(min(cycle))
        cycle = cycle[first:] + cycle[:first]
        begin = " > ".join(shown(self.ops[place].name) for place in cycle[:4])
        names = begin + (" > ..." if len(cycle) > 4 else "")
        raise ModelError(f"the model has a cycle of {len(cycle)} operators: {names}; "
                         "a model ends, so export it again")


class Dimensions:
    """Values for symbolic dimensions, and which of them the model asked for."""

    def __init__(self, values: dict[str, int]):
        self.values = values
        self._asked: set[str] = set()

    def value(self, name: str) -> int | str:
        self._asked.add(name)
        return self.values.get(name, name)

    def check_asked(self):
        for name, value in self.values.items():
            if name not in self._asked:
                known = ", ".join(sorted(self._asked)[:8]) or "none"
                raise ModelError(f"--dim {name}={value} names no dimension of the model; "
                                 f"it has: {known}")
