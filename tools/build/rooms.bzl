"""Who may see whom: the one table behind Bazel's visibility (//tools/build:sees_ROOM) and tests/layering."""

_BELOW_SPI = ["api", "allocator", "wire", "base"]
_BELOW_PROTO = ["runtime", "spi"] + _BELOW_SPI
_BELOW_BACKENDS = ["proto"] + _BELOW_PROTO
_BACKENDS = ["shm", "verbs", "l2", "l2/carrier", "kmod", "tcp", "loopback", "fault"]
_BELOW_EXCHANGE = ["select", "recording", "tuning"] + _BACKENDS + _BELOW_BACKENDS
_TRANSPORT = ["collective", "graph", "sluice", "exchange"] + _BELOW_EXCHANGE

# Room -> rooms that it may see: only what is listed, siblings never. None: all.
MAY_SEE = {
    "base": [],
    "allocator": ["base"],
    "wire": ["base"],
    "api": ["allocator", "wire", "base"],
    "spi": _BELOW_SPI,
    "runtime": ["spi"] + _BELOW_SPI,
    "proto": _BELOW_PROTO,
    "shm": _BELOW_BACKENDS,
    "verbs": _BELOW_BACKENDS,
    # How frames cross, and who is found by a name: below the sessions over them.
    "l2/carrier": _BELOW_BACKENDS + ["kernel_compat/slp"],
    "l2/discovery": ["l2/carrier"] + _BELOW_BACKENDS + ["kernel_compat/slp"],
    "l2": ["l2/carrier", "l2/discovery"] + _BELOW_BACKENDS + ["kernel_compat/slp"],
    "kmod": _BELOW_BACKENDS + ["kernel_compat/slp", "kernel_compat/uapi"],
    "tcp": _BELOW_BACKENDS,
    "loopback": _BELOW_BACKENDS,
    "fault": _BELOW_BACKENDS,
    "tuning": ["api", "base"],
    "recording": _BELOW_PROTO,
    "select": _BACKENDS + ["recording", "tuning"] + _BELOW_BACKENDS,
    "exchange": _BELOW_EXCHANGE,
    "collective": ["exchange"] + _BELOW_EXCHANGE,
    "sluice": ["exchange"] + _BELOW_EXCHANGE,
    "graph": ["exchange"] + _BELOW_EXCHANGE,
    "examples": _TRANSPORT + ["plugins"],
    "plugins": _TRANSPORT,
    # slp_frame measures the protocol alone, without a network.
    "benchmarks": _TRANSPORT + ["plugins", "kernel_compat/slp"],
    "tools": _TRANSPORT + ["tools/dump", "tools/demo_job"],
    # The main job compares with gRPC, so it needs gRPC already; no other tool may.
    "tools/demo_job": _TRANSPORT + ["plugins", "tools"],
    # Prints what the protocol's own code reads.
    "tools/dump": _TRANSPORT + ["kernel_compat/slp"],
    "kernel_compat/uapi": [],
    "kernel_compat/slp": ["kernel_compat/uapi"],
    "kernel_compat/compat": [],
    "kernel_compat/module": ["kernel_compat/slp", "kernel_compat/uapi", "kernel_compat/compat"],
    "tests": None,
}

# Rooms that are no folder of their own at the top or under transport/.
def _packages(room):
    if room == "sluice":
        return "//transport"
    if room == "l2":
        return "//transport/l2"
    top = room.split("/")[0]
    if top in ["allocator", "examples", "plugins", "benchmarks", "tools", "kernel_compat", "tests"]:
        return "//" + room + "/..."
    return "//transport/" + room + "/..."

def room_groups():
    """A package_group `sees_ROOM` for each room: whoever may see it, itself and the tests included."""
    for room in MAY_SEE:
        native.package_group(
            name = "sees_" + room.replace("/", "_"),
            packages = [
                _packages(other)
                for other in MAY_SEE
                if other == room or MAY_SEE[other] == None or room in MAY_SEE[other]
            ],
        )
