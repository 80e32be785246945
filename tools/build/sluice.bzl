"""Rules of this house: headers are included as <sluice/ROOM/file.h>."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")

# Folder in the tree -> folder under <sluice/...>. A room that is not listed has
# no public headers.
_ROOMS = {
    "allocator": "sluice/allocator",
    "plugins/grpc": "sluice/grpc",
    "transport": "sluice",
    "transport/api": "sluice/api",
    "transport/base": "sluice/base",
    "transport/collective": "sluice/collective",
    "transport/exchange": "sluice/exchange",
    "transport/fault": "sluice/fault",
    "transport/graph": "sluice/graph",
    "transport/kmod": "sluice/kmod",
    "transport/l2": "sluice/l2",
    "transport/l2/carrier": "sluice/l2/carrier",
    "transport/l2/discovery": "sluice/l2/discovery",
    "transport/loopback": "sluice/loopback",
    "transport/proto": "sluice/proto",
    "transport/recording": "sluice/recording",
    "transport/runtime": "sluice/runtime",
    "transport/select": "sluice/select",
    "transport/shm": "sluice/shm",
    "transport/spi": "sluice/spi",
    "transport/tcp": "sluice/tcp",
    "transport/tuning": "sluice/tuning",
    "transport/verbs": "sluice/verbs",
    "transport/wire": "sluice/wire",
}

def sluice_cc_library(name, hdrs = [], **kwargs):
    """A cc_library whose headers are included through their room's prefix."""
    package = native.package_name()
    if package in _ROOMS and hdrs:
        kwargs["include_prefix"] = _ROOMS[package]
        kwargs["strip_include_prefix"] = "/" + package
    cc_library(name = name, hdrs = hdrs, **kwargs)

def sluice_cc_test(name, deps = [], **kwargs):
    """A Catch2 test; the main function and the skip counter come from tests/support."""
    size = kwargs.pop("size", "small")
    cc_test(
        name = name,
        size = size,
        deps = deps + ["//tests/support:catch_main"],
        **kwargs
    )

def sluice_cc_tests(name, envs, deps = [], size = "small", tags = [], variant_tags = {}, **kwargs):
    """One Catch2 program, NAME, and a test of it for each environment: compiled and linked once.

    envs: name of a test -> its environment. variant_tags: name of a test -> tags of this one."""
    cc_binary(
        name = name,
        testonly = True,
        deps = deps + ["//tests/support:catch_main"],
        **kwargs
    )
    for test, env in envs.items():
        native.sh_test(
            name = test,
            size = size,
            srcs = [":" + name],
            data = [":" + name],
            env = env,
            tags = tags + variant_tags.get(test, []),
        )
