"""One suite, a test target for each path, and again over links that are late and busy."""

load("//tools/build:sluice.bzl", "sluice_cc_test")

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
    """NAME_PATH_test for each path, of the cases in `deps`; NAME_PATH_delayed_test is the same program with faults.

    NAME_tcp_streams_test and its delayed one: over tcp, with bulk on further streams.
    NAME_tcp_zerocopy_test, its delayed one, and NAME_tcp_zerocopy_streams_test: with bulk out of the tensors' pages."""
    for path in paths + list(added):
        sluice_cc_test(
            name = name + "_" + path + "_test",
            env = _env(path),
            deps = deps + ([added[path]] if path in added else []),
            tags = tags + _TAGS.get(path, []),
            **kwargs
        )
    for path in delayed_paths:
        program = ":" + name + "_" + path + "_test"
        native.sh_test(
            name = name + "_" + path + "_delayed_test",
            size = "small",
            srcs = [program],
            data = [program],
            env = _env(path, SLUICE_CONTRACT_FAULTS = "delayed"),
        )
    streams = {"SLUICE_TCP_STREAMS_FROM_US": "0"}
    zerocopy = {"SLUICE_TCP_ZEROCOPY": "always"}
    delayed = {"SLUICE_CONTRACT_FAULTS": "delayed"}
    for which, env in [
        ("streams", streams),
        ("streams_delayed", dict(streams, **delayed)),
        ("zerocopy", zerocopy),
        ("zerocopy_delayed", dict(zerocopy, **delayed)),
        ("zerocopy_streams", dict(zerocopy, **streams)),
    ]:
        native.sh_test(
            name = name + "_tcp_" + which + "_test",
            size = "small",
            srcs = [":" + name + "_tcp_test"],
            data = [":" + name + "_tcp_test"],
            env = _env("tcp", **env),
        )
