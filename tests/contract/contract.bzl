"""One suite, a test target for each path, and again over links that are late and busy."""

load("//tools/build:sluice.bzl", "sluice_cc_test", "sluice_cc_tests")

_PATHS = ["loopback", "shm", "tcp", "rdma", "l2", "xdp", "udp", "udp6", "sluice"]
# Paths that are not built in, and what has them.
ADDED_PATHS = {
    "pipe": "//tests/pipe",
}

# sluice:// is one of these behind the greeting.
_DELAYED_PATHS = ["loopback", "shm", "tcp", "rdma", "l2", "udp"]

# bpf(2) takes capabilities of the machine, which a sandbox has not: skipped there.
_TAGS = {"xdp": ["local"]}

def _env(path, **more):
    # Here by the fake fabric; tests/lab runs the same programs over real devices.
    env = {"SLUICE_CONTRACT_PATH": path}
    if path == "rdma":
        env["SLUICE_CONTRACT_VERBS"] = "fake"
    env.update(more)
    return env

def contract_tests(name, deps, paths = _PATHS, delayed_paths = _DELAYED_PATHS, added = {}, tags = [], **kwargs):
    """NAME_PATH_test for each path, of the cases in `deps`, and NAME_PATH_delayed_test with faults: all are NAME_program.

    NAME_tcp_streams_test and its delayed one: over tcp, with bulk on further streams.
    NAME_tcp_zerocopy_test, its delayed one, and NAME_tcp_zerocopy_streams_test: with bulk out of the tensors' pages."""
    program = name + "_program"
    sluice_cc_tests(
        name = program,
        envs = {name + "_" + path + "_test": _env(path) for path in paths},
        deps = deps,
        tags = tags,
        variant_tags = {name + "_" + path + "_test": path_tags for path, path_tags in _TAGS.items()},
        **kwargs
    )

    # A path of a test is linked into that test only.
    for path in added:
        sluice_cc_test(
            name = name + "_" + path + "_test",
            env = _env(path),
            deps = deps + [added[path]],
            tags = tags,
            **kwargs
        )
    delayed = {"SLUICE_CONTRACT_FAULTS": "delayed"}
    streams = {"SLUICE_TCP_STREAMS_FROM_US": "0"}
    zerocopy = {"SLUICE_TCP_ZEROCOPY": "always"}
    variants = {path + "_delayed": _env(path, **delayed) for path in delayed_paths}
    for which, env in [
        ("streams", streams),
        ("streams_delayed", dict(streams, **delayed)),
        ("zerocopy", zerocopy),
        ("zerocopy_delayed", dict(zerocopy, **delayed)),
        ("zerocopy_streams", dict(zerocopy, **streams)),
    ]:
        variants["tcp_" + which] = _env("tcp", **env)
    for variant, env in variants.items():
        native.sh_test(
            name = name + "_" + variant + "_test",
            size = "small",
            srcs = [":" + program],
            data = [":" + program],
            env = env,
        )
