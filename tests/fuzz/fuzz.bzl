"""The corpus of a fuzz target, replayed as an ordinary test under any compiler."""

load("@rules_cc//cc:defs.bzl", "cc_test")

def fuzz_replay(name, srcs, deps, defines = [], size = "small"):
    """A test `<name>_replay` over corpus/<name>; run.sh fuzzes the same sources."""
    cc_test(
        name = name + "_replay",
        size = size,
        srcs = srcs + [
            "input.h",
            "target.h",
        ],
        args = ["tests/fuzz/corpus/" + name],
        copts = ["-D" + d for d in defines],
        data = native.glob(["corpus/" + name + "/**"]),
        deps = deps + ["//tests/fuzz:replay"],
    )
