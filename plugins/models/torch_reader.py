"""Reads PyTorch exported programs (.pt2, written by torch.export.save) without PyTorch: the archive
is a ZIP file, and the graph in it JSON. Seen were the schemas 7.3 (torch 2.5.1), 8.8 (torch 2.8.0)
and 8.20 (torch 2.15.0)."""
import json
import re
import zipfile
import zlib

import sizes
from model import Dimensions, Model, ModelError, Op, Tensor, shown

# SchemaVersion.major: a new one is for changes that older readers do not understand.
_MAJORS = (7, 8)
_TORCH = "torch 2.5 to 2.15"
# ScalarType of torch/_export/serde/schema.py
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32",
    8: "float64", 9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16",
    28: "uint16", 29: "float8_e4m3fn_8", 30: "float8_e5m2_8", 31: "float8_e4m3fnuz_8",
    32: "float8_e5m2fnuz_8", 33: "float8_e8m0fnu_8", 34: "uint32", 35: "uint64",
}
# In the archives of torch 2.5.1, and in those of 2.8.0 and 2.15.0: a file for each program.
_PROGRAM = re.compile(r"(?:^|/)(?:serialized_exported_program\.json|models/[^/]+\.json)$")
# A graph of 65,536 nodes has some 100 MB.
_MOST_JSON_BYTES = 1 << 30
# Operators of aten whose output has each element from the elements at the same place.
_ELEMENTWISE = frozenset("""
    abs add bitwise_and bitwise_not bitwise_or ceil clamp cos div elu erf exp floor gelu hardsigmoid
    hardswish hardtanh leaky_relu log logical_and logical_not logical_or masked_fill maximum minimum
    mish mul neg pow reciprocal relu round rsqrt rsub selu sigmoid sign silu sin softplus sqrt sub
    tanh threshold to _to_copy where""".split())
_RESHAPES = frozenset("""
    alias clone contiguous detach dropout flatten reshape squeeze unflatten unsqueeze view
    _unsafe_view""".split())
# These make a number for the program out of a tensor's element.
_TO_NUMBER = ("item", "_local_scalar_dense")


def read(path: str, dimensions: Dimensions) -> Model:
    program = _program(path)
    try:
        version = program["schema_version"]
        if version["major"] not in _MAJORS:
            raise ModelError("the exported program has the schema version "
                             f"{version['major']}.{version['minor']}, and 7 and 8 are known; "
                             f"export it with {_TORCH}")
        reader = _Reader(program, dimensions)
        reader.read()
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ModelError("the exported program is not as its schema version says "
                         f"({type(error).__name__}: {shown(str(error))}); "
                         f"save it again with {_TORCH}") from None
    reader.model.sort()
    return reader.model


def _program(path: str) -> dict:
    try:
        with zipfile.ZipFile(path) as archive:
            found = [entry for entry in archive.infolist() if _PROGRAM.search(entry.filename)]
            if not found:
                raise ModelError("the file is an archive without an exported program, as of "
                                 "torch.save, torch.jit.save or compiled code; write it with "
                                 "torch.export.save")
            if len(found) > 1:
                raise ModelError(f"the file has {len(found)} exported programs; save the one that "
                                 "is meant alone, with torch.export.save")
            if found[0].file_size > _MOST_JSON_BYTES:
                raise ModelError(f"the exported program's graph has {found[0].file_size} bytes, "
                                 "and 1 GiB is the most; export a part of the model")
            text = archive.read(found[0])
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise ModelError(f"the file is no whole archive ({shown(str(error))}); "
                         "save it again with torch.export.save") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"the exported program is no JSON ({shown(str(error))}); "
                         "save it again with torch.export.save") from None


class _Reader:
    def __init__(self, program: dict, dimensions: Dimensions):
        self.model = Model()
        self._graph = program["graph_module"]["graph"]
        self._signature = program["graph_module"]["signature"]
        self._ranges = program["range_constraints"]
        self._dimensions = dimensions
        self._weights: dict[str, str] = {}  # argument -> the first argument that is the same weight
        self._first: dict[tuple[str, str], str] = {}  # by kind and name

    def read(self):
        for spec in self._signature["input_specs"]:
            self._add_input(spec)
        for spec in self._signature["output_specs"]:
            (kind, value), = spec.items()
            # What it writes into its own buffers stays where they are.
            if kind not in ("buffer_mutation", "parameter_mutation", "token"):
                arg = value["arg"]
                named = arg if kind == "user_output" else {"as_tensor": arg}
                self.model.outputs += _tensors_in(named)
        self.model.outputs = list(dict.fromkeys(self.model.outputs))
        for node in self._graph["nodes"]:
            self._add_node(node)
        for name in self.model.inputs + [name for op in self.model.ops for name in op.outputs]:
            self.model.tensors[name] = self._tensor(name, name)

    def _add_input(self, spec: dict):
        (kind, value), = spec.items()
        if kind == "user_input":
            self.model.inputs += _tensors_in(value["arg"])
            return
        fields = {
            "parameter": "parameter_name",
            "buffer": "buffer_name",
            "tensor_constant": "tensor_constant_name",
        }
        if kind in fields:
            argument, name = value["arg"]["name"], value[fields[kind]]
            first = self._first.setdefault((kind, name), argument)
            self._weights[argument] = first
            trained = kind == "parameter" and self._graph["tensor_values"][first]["requires_grad"]
            self.model.weights[first] = trained
            self.model.tensors[first] = self._tensor(first, name)
        elif kind not in ("constant_input", "token"):
            raise ModelError(f"the exported program has an input of the kind {shown(kind)}, which "
                             "is no tensor; export the model without it")

    def _add_node(self, node: dict):
        kind = node["target"].removeprefix("torch.ops.")
        base = kind.split(".")[1] if kind.count(".") > 1 else kind
        inputs = [self._weights.get(name, name)
                  for argument in node["inputs"] for name in _tensors_in(argument["arg"])]
        outputs = [name for argument in node["outputs"] for name in _tensors_in(argument)]
        if base in _TO_NUMBER:
            raise ModelError(f"the operator {kind} makes a number for the program out of "
                             f"{shown(inputs[0])}, and edges carry tensors only; "
                             "export the model without .item()")
        if not outputs:
            return  # it computes a size, or asserts something
        modules = node["metadata"].get("nn_module_stack", "").split(";")[-1].split(",")
        name = f"{modules[1]}/{outputs[0]}" if len(modules) > 2 and modules[1] else outputs[0]
        written_over = base.endswith("_") and not base.endswith("__")
        in_place = written_over or base in _ELEMENTWISE or (base in _RESHAPES and len(inputs) == 1)
        self.model.ops.append(Op(name, kind, list(dict.fromkeys(inputs)), outputs, in_place))

    def _tensor(self, argument: str, name: str) -> Tensor:
        meta = self._graph["tensor_values"][argument]
        dtype = _DTYPES.get(meta["dtype"], f"number {meta['dtype']}")
        return Tensor(name, dtype, tuple(self._extent(size) for size in meta["sizes"]))

    def _extent(self, size: dict) -> int | str:
        if "as_int" in size:
            return int(size["as_int"])
        return sizes.value_of(size["as_expr"]["expr_str"], self._symbol)

    def _symbol(self, name: str) -> int | str:
        value = self._dimensions.value(name)
        allowed = self._ranges.get(name)
        if isinstance(value, int) and allowed:
            least, most = allowed["min_val"], allowed["max_val"]
            if value < (least or 0) or (most is not None and value > most):
                raise ModelError(f"--dim {name}={value} is outside of {least or 0} to "
                                 f"{'any' if most is None else most}, which the model was exported "
                                 "for; choose a value inside, or export it with other "
                                 "dynamic_shapes")
        return value


def _tensors_in(argument: dict) -> list[str]:
    """Names of the tensors of an Argument, a union of which one member is there. A graph in it
    reads nothing by itself."""
    (kind, value), = argument.items()
    if kind == "as_tensor":
        return [value["name"]]
    if kind == "as_tensors":
        return [each["name"] for each in value]
    if kind == "as_optional_tensor":
        return _tensors_in(value)
    if kind == "as_optional_tensors":
        return [name for each in value for name in _tensors_in(each)]
    if kind == "as_nested_tensors":
        return [each["name"] for row in value for each in row]
    if kind == "as_string_to_argument":
        return [name for each in value.values() for name in _tensors_in(each)]
    if kind == "as_custom_obj":
        raise ModelError(f"the exported program passes the object {shown(value['name'])}, which is "
                         "no tensor; export the model without it")
    return []
