"""ONNX models, built with Debian's python3-onnx: small ones with real weights, and large ones whose
weights are nowhere."""
import os
import struct
import sys

try:
    import onnx
except ImportError:
    print("sluice-skips 1: no onnx here; tools/setup installs python3-onnx")
    sys.exit(1 if "onnx" in os.environ.get("SLUICE_REQUIRE", "").split(",") else 0)
from onnx import TensorProto, helper

FLOAT, FLOAT16, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64


def elsewhere(name, dims, dtype=FLOAT):
    """A weight whose data is in a file that does not exist."""
    tensor = TensorProto(name=name, data_type=dtype, dims=dims,
                         data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="not_here.bin")
    return tensor


def zeros(name, dims, dtype=FLOAT):
    tensor = TensorProto(name=name, data_type=dtype, dims=dims)
    elements = 1
    for extent in dims:
        elements *= extent
    tensor.raw_data = bytes(elements * {FLOAT: 4, FLOAT16: 2, INT64: 8}[dtype])
    return tensor


def whole_numbers(name, *numbers):
    """As exporters write them: in the bytes of their memory."""
    data = struct.pack(f"<{len(numbers)}q", *numbers)
    return TensorProto(name=name, data_type=INT64, dims=[len(numbers)], raw_data=data)


def value(name, dims, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, dims)


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs, [output], **{"name": output, **attributes})


def model(nodes, inputs, outputs, weights=(), **more):
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, list(weights), **more),
        opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("ours", 1)])


def mlp():
    """Three layers, 784 x 256 x 128 x 10, of one of which the weight is of half precision."""
    return model(
        [node("Gemm", ["image", "w1", "b1"], "h1"),
         node("Relu", ["h1"], "r1"),
         node("Gemm", ["r1", "w2", "b2"], "h2"),
         node("Relu", ["h2"], "r2"),
         node("Cast", ["r2"], "half", to=FLOAT16),
         node("MatMul", ["half", "w3"], "scores")],
        [value("image", ["batch", 784])],
        [value("scores", ["batch", 10], FLOAT16)],
        [zeros("w1", [784, 256]), zeros("b1", [256]),
         zeros("w2", [256, 128]), zeros("b2", [128]),
         zeros("w3", [128, 10], FLOAT16)])


def residual():
    """Convolution and batch normalisation beside a shortcut, then a resize, a reshape and a dense
    layer."""
    norm_inputs = ["conv", "norm.scale", "norm.shift", "norm.mean", "norm.var"]
    flat_shape = whole_numbers("v", -1, 4 * 16 * 16)
    return model(
        [node("Conv", ["image", "conv.weight"], "conv", pads=[1] * 4, kernel_shape=[3, 3]),
         node("BatchNormalization", norm_inputs, "norm"),
         node("Relu", ["norm"], "relu"),
         node("Add", ["relu", "image"], "add"),
         node("Resize", ["add", "", "scales"], "resized"),
         helper.make_node("Constant", [], ["shape"], value=flat_shape),
         node("Reshape", ["resized", "shape"], "flat"),
         node("Mul", ["flat", "factor"], "scaled"),
         node("Gemm", ["scaled", "fc.weight", "fc.bias"], "scores")],
        [value("image", ["batch", 4, 8, 8])],
        [value("scores", ["batch", 10]), value("relu", ["batch", 4, 8, 8])],
        [zeros("conv.weight", [4, 4, 3, 3]),
         zeros("norm.scale", [4]), zeros("norm.shift", [4]),
         zeros("norm.mean", [4]), zeros("norm.var", [4]),
         helper.make_tensor("scales", FLOAT, [4], [1, 1, 2, 2]),
         zeros("factor", []),
         zeros("fc.weight", [1024, 10]), zeros("fc.bias", [10])])


def vgg16(weight=elsewhere):
    """Simonyan and Zisserman 2014, configuration D, with the names that `sluice graph make` gives
    its layers."""
    nodes, weights, at, channels = [], [], "image", 3
    blocks = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
    for block, (layers, filters) in enumerate(blocks, 1):
        for layer in range(1, layers + 1):
            name = f"conv{block}_{layer}"
            weights += [weight(f"{name}/weight", [filters, channels, 3, 3]),
                        weight(f"{name}/bias", [filters])]
            nodes += [node("Conv", [at, f"{name}/weight", f"{name}/bias"], name,
                           pads=[1] * 4, kernel_shape=[3, 3]),
                      node("Relu", [name], f"{name}/relu")]
            at, channels = f"{name}/relu", filters
        nodes.append(node("MaxPool", [at], f"pool{block}", kernel_shape=[2, 2], strides=[2, 2]))
        at = f"pool{block}"
    nodes.append(node("Flatten", [at], "flat"))
    at, features = "flat", 512 * 7 * 7
    for number, outputs in ((6, 4096), (7, 4096), (8, 1000)):
        name = f"fc{number}"
        weights += [weight(f"{name}/weight", [outputs, features]),
                    weight(f"{name}/bias", [outputs])]
        nodes.append(node("Gemm", [at, f"{name}/weight", f"{name}/bias"], name, transB=1))
        at, features = name, outputs
        if number < 8:
            nodes.append(node("Relu", [name], f"{name}/relu"))
            at = f"{name}/relu"
    return model(nodes, [value("image", ["batch", 3, 224, 224])],
                 [value("fc8", ["batch", 1000])], weights)


def choice():
    """An If whose bodies read a tensor from outside and have a weight of their own."""
    def body(name, nodes, weights=()):
        return helper.make_graph(nodes, name, [], [value(name, ["batch", 8])], list(weights))
    then = body("then",
                [node("MatMul", ["doubled", "own"], "product"), node("Relu", ["product"], "then")],
                [zeros("own", [8, 8])])
    otherwise = body("else", [node("MatMul", ["doubled", "outer"], "else")])
    return model(
        [node("Add", ["x", "x"], "doubled"),
         node("If", ["flag"], "chosen", then_branch=then, else_branch=otherwise),
         node("Relu", ["chosen"], "y")],
        [value("x", ["batch", 8]), value("flag", [], TensorProto.BOOL)],
        [value("y", ["batch", 8])],
        [zeros("outer", [8, 8])])
