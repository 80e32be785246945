"""Reads ONNX models. Weights' data is neither needed nor looked for: only their types and shapes
count, so a model whose data is in other files converts without them."""
import onnx
from google.protobuf.message import DecodeError
from onnx import shape_inference

import sizes
from model import TRAINABLE, Dimensions, Model, ModelError, Op, Tensor, shown

# TensorProto.DataType by number: older versions of the library lack the later names.
_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    8: "string", 9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
    14: "complex64", 15: "complex128", 16: "bfloat16", 17: "float8_e4m3fn_8",
    18: "float8_e4m3fnuz_8", 19: "float8_e5m2_8", 20: "float8_e5m2fnuz_8", 21: "uint4", 22: "int4",
    23: "float4_e2m1", 24: "float8_e8m0fnu_8", 25: "uint2", 26: "int2", 27: "float6_e2m3",
    28: "float6_e3m2",
}
# Operators whose output has each element from the elements at the same place.
_ELEMENTWISE = frozenset("""
    Abs Add And Cast Ceil Celu Clip Cos Div Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu
    Log Max Mean Min Mish Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Sigmoid Sign Sin
    Softplus Softsign Sqrt Sub Sum Swish Tanh ThresholdedRelu Where Xor""".split())
_RESHAPES = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
# Inputs that are settings or statistics, of floating point though they are: not trained.
_SETTINGS = {
    "BatchNormalization": (3, 4), "Clip": (1, 2), "DequantizeLinear": (1, 2), "Dropout": (1,),
    "Pad": (2,), "QuantizeLinear": (1, 2), "Resize": (1, 2), "Upsample": (1,),
}
_CONSTANTS = {
    "value_float": "float32", "value_floats": "float32", "value_int": "int64",
    "value_ints": "int64", "value_string": "string", "value_strings": "string",
}
# Names that the inference of shapes gives to extents that it cannot find.
_INVENTED = "unk__"
# Values of weights that may be shapes stay for the inference of shapes; longer ones are dropped, as
# nothing reads them.
_MOST_VALUE_BYTES = 1024


def read(data: bytes, dimensions: Dimensions, activations: bool) -> Model:
    """`activations`: with the shapes of what is between the operators."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        raise ModelError("the file is neither an ONNX model nor a PyTorch exported program, or it "
                         "is cut short; name a .onnx or .pt2 file, whole") from None
    if not proto.graph.node:
        raise ModelError("the file has no ONNX graph with operators; name a model written by "
                         "onnx.save or torch.onnx.export")
    reader = _Reader()
    places = reader.read_graph(proto.graph)
    order = reader.model.sort()
    if activations:
        _sort_nodes(proto.graph, [places[place] for place in order])
        _add_types(reader.model, proto, dimensions)
    return reader.model


class _Reader:
    """Operators and weights of a graph and of the bodies in it."""

    def __init__(self):
        self.model = Model()
        self._trainable: set[str] = set()

    def read_graph(self, graph) -> list[int]:
        """Returns the place of each operator among the graph's nodes."""
        _drop_values(graph)
        self._add_weights(graph, "")
        self.model.inputs = [value.name for value in graph.input
                             if value.name not in self.model.weights]
        self.model.outputs = list(dict.fromkeys(value.name for value in graph.output))
        places = [place for place, node in enumerate(graph.node) if node.op_type != "Constant"]
        names: set[str] = set()
        for place in places:
            node = graph.node[place]
            outputs = [name for name in node.output if name]
            name = node.name or f"{node.op_type}/{outputs[0] if outputs else place}"
            if name in names:  # tensors' names are unique, those of operators need not be
                name = f"{name}/{outputs[0] if outputs else place}"
            names.add(name)
            inputs = list(dict.fromkeys(self._reads(node, {}, name + "/")))
            kind = _kind(node)
            activations = [name for name in inputs if name not in self.model.weights]
            in_place = kind in _ELEMENTWISE or (kind in _RESHAPES and len(activations) == 1)
            self.model.ops.append(Op(name, kind, inputs, outputs, in_place))
        return places

    def _add_weights(self, graph, prefix: str) -> dict[str, str]:
        """Initializers and constants, by names with the prefix. Returns those names by their
        own."""
        if graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise ModelError(f"the weight {shown(name)} is sparse, and sluice.graph/1 has dense "
                             "tensors only; make it dense in the model")
        found = [Tensor(prefix + each.name, _dtype(each.data_type), tuple(each.dims))
                 for each in graph.initializer]
        self._trainable |= {tensor.name for tensor in found
                            if tensor.dtype in TRAINABLE and tensor.shape}
        found += [_constant(node, prefix) for node in graph.node if node.op_type == "Constant"]
        for tensor in found:
            if tensor.name in self.model.weights:
                raise ModelError(f"two weights are named {shown(tensor.name)}; "
                                 "export the model again")
            self.model.weights[tensor.name] = False
            self.model.tensors[tensor.name] = tensor
        return {tensor.name[len(prefix):]: tensor.name for tensor in found}

    def _reads(self, node, own: dict[str, str], prefix: str) -> list[str]:
        """What an operator reads. One with bodies (If, Loop, Scan) has what these read from
        outside, and their weights. `own`: the weights of the bodies around it."""
        read = [own.get(name, name) for name in node.input]
        settings = _SETTINGS.get(_kind(node), ())
        for place, name in enumerate(read):
            if name in self._trainable and place not in settings:
                self.model.weights[name] = True
        for attribute in node.attribute:
            for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                read += self._body_reads(body, own, prefix)
        return [name for name in read if name]

    def _body_reads(self, body, own: dict[str, str], prefix: str) -> list[str]:
        _drop_values(body)
        own = own | self._add_weights(body, prefix)
        read = [own.get(value.name, value.name) for value in body.output]
        for place, node in enumerate(body.node):
            read += self._reads(node, own, f"{prefix}{node.name or place}/")
        made = ({value.name for value in body.input}
                | {name for node in body.node for name in node.output})
        return [name for name in read if name not in made]


def _kind(node) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _dtype(number: int) -> str:
    return _DTYPES.get(number, f"number {number}")


def _constant(node, prefix: str) -> Tensor:
    for attribute in node.attribute if node.output else ():
        if attribute.name == "value":
            dtype = _dtype(attribute.t.data_type)
            return Tensor(prefix + node.output[0], dtype, tuple(attribute.t.dims))
        if attribute.name in _CONSTANTS:
            many = len(attribute.floats) + len(attribute.ints) + len(attribute.strings)
            shape = (many,) if attribute.name.endswith("s") else ()
            return Tensor(prefix + node.output[0], _CONSTANTS[attribute.name], shape)
    raise ModelError(f"the constant {shown(node.name)} has no dense value; "
                     "make it dense in the model")


def _drop_values(graph):
    values = (attribute.t for node in graph.node for attribute in node.attribute
              if attribute.HasField("t"))
    for tensor in [*graph.initializer, *values]:
        if len(tensor.raw_data) > _MOST_VALUE_BYTES:
            tensor.ClearField("raw_data")


def _sort_nodes(graph, order: list[int]):
    """The inference of shapes goes through the nodes in their order; constants come first."""
    constants = [node for node in graph.node if node.op_type == "Constant"]
    in_order = onnx.GraphProto()
    in_order.node.extend([*constants, *(graph.node[place] for place in order)])
    del graph.node[:]
    graph.node.extend(in_order.node)


def _add_types(model: Model, proto, dimensions: Dimensions):
    """Types of inputs, outputs and what is between, inferred where the model does not say them."""
    for value in [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]:
        for axis, extent in enumerate(value.type.tensor_type.shape.dim):
            chosen = _extent(value.name, axis, extent, dimensions)
            if isinstance(chosen, int):
                extent.dim_value = chosen
    try:
        graph = shape_inference.infer_shapes(proto, data_prop=True).graph
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        line = " ".join(str(error).split())[:200]
        raise ModelError(f"shapes cannot be inferred: {line}; check the model with onnx.checker, "
                         "and export it again") from None
    for value in [*graph.input, *graph.output, *graph.value_info]:
        kind = value.type.WhichOneof("value")
        if kind == "tensor_type" and value.type.tensor_type.elem_type:
            of = value.type.tensor_type
            shape = tuple(_extent(value.name, axis, extent, dimensions)
                          for axis, extent in enumerate(of.shape.dim))
            invented = any(str(extent).startswith(_INVENTED) for extent in shape)
            known = of.HasField("shape") and not invented
            type_of = Tensor(value.name, _dtype(of.elem_type), shape if known else None)
        elif kind not in ("tensor_type", None):
            type_of = Tensor(value.name, kind.removesuffix("_type"), None)
        else:
            continue
        if value.name not in model.weights:
            model.tensors[value.name] = type_of


def _extent(name: str, axis: int, extent, dimensions: Dimensions) -> int | str:
    """Its value, or the name by which --dim can give it one. A dimension without a name has that of
    its tensor and its place."""
    if extent.HasField("dim_value") and extent.dim_value >= 0:
        return extent.dim_value
    text = extent.dim_param or f"{name}.{axis}"
    if extent.dim_param and not text.isidentifier() and text not in dimensions.values:
        try:
            return sizes.value_of(text, dimensions.value)
        except ModelError:
            pass  # any text may be a name in ONNX
    return dimensions.value(text)
