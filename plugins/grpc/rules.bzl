"""Bazel rule for services whose messages protoc-gen-sluice generates."""

load("@rules_cc//cc:defs.bzl", "cc_library")

_PROTOS = "//plugins/grpc/proto:sluice/%s.proto"

def _source_of(dep):
    # "//folder" is short for "//folder:folder".
    if ":" not in dep and "/" in dep:
        dep += ":" + dep.split("/")[-1]
    return dep + "_source"

def sluice_cc_grpc_library(name, src, all_bytes = False, deps = [], **kwargs):
    """Messages and gRPC stubs of one .proto file, with bytes fields that can hold a sluice::Tensor.

    Headers are included by their path from the workspace: "FOLDER/NAME.pb.h", "FOLDER/NAME.grpc.pb.h".
    Needs protobuf-compiler-grpc and libprotoc-dev.

    Args:
      name: a cc_library.
      src: the .proto file, of this package.
      all_bytes: all bytes fields, not only those with [(sluice.v1.shared) = true].
      deps: sluice_cc_grpc_libraries of the files that it imports.
      **kwargs: as for cc_library.
    """
    base = src[:-len(".proto")]
    sources = [_source_of(dep) for dep in deps]
    parts = [base + end for end in [".pb.h", ".pb.cc", ".grpc.pb.h", ".grpc.pb.cc"]]
    native.genrule(
        name = name + "_code",
        srcs = [src, _PROTOS % "options", _PROTOS % "tensor"] + sources,
        outs = parts,
        cmd = ("/usr/bin/protoc -I. -I$$(dirname $$(dirname $(location {options})))" +
               " --plugin=$(location {plugin}) --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin" +
               " --sluice_out={flag}$(GENDIR) --grpc_out=$(GENDIR) $(location {src})").format(
            options = _PROTOS % "options",
            plugin = "//plugins/grpc:protoc-gen-sluice",
            flag = "all_bytes:" if all_bytes else "",
            src = src,
        ),
        tools = ["//plugins/grpc:protoc-gen-sluice"],
    )
    native.filegroup(
        name = name + "_source",
        srcs = [src] + sources,
        visibility = kwargs.get("visibility"),
    )
    cc_library(
        name = name,
        srcs = [part for part in parts if part.endswith(".cc")],
        hdrs = [part for part in parts if part.endswith(".h")],
        deps = deps + ["//plugins/grpc/proto:tensor_proto", "//plugins/grpc:generated", "@system//:grpc"],
        **kwargs
    )
