"""One suite, a test target for each path."""

load("//tools/build:sluice.bzl", "sluice_cc_test")

_PATHS = ["loopback", "shm", "tcp", "sluice"]

def contract_tests(name, deps, paths = _PATHS, **kwargs):
    """NAME_PATH for each path, of the cases in `deps`."""
    for path in paths:
        sluice_cc_test(
            name = name + "_" + path + "_test",
            env = {"SLUICE_CONTRACT_PATH": path},
            deps = deps,
            **kwargs
        )
