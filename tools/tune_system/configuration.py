"""The configuration file of the administrator, in TOML, checked before anything is started.

    workload = "file-transfer"
    algorithm = "halving"                  # descent, exhaustive, rusan
    within_core = false                    # true: no buffer above net.core.{r,w}mem_max, as the original demands

    [test]                                 # network test tool
    mode = "pingpong"                      # stream, bidir, file
    start = 1024
    end = 1048576

    [[parameter]]
    name = "net.ipv4.tcp_rmem"             # a triple: each size becomes "4096 size size"
    start = 4096                           # doubled until `end`
    end = 524288

    [[parameter]]
    name = "net.ipv4.tcp_window_scaling"
    values = [0, 1]

    [front]
    address = "192.0.2.1"
    interface = "eth0"

    [[node]]                               # or [lab] with `nodes = 12`: network namespaces of this machine
    name = "n1"
    address = "192.0.2.2"
    reach = "ssh:root@n1"                  # netns:NAME, local
    interface = "eth0"
"""
import ipaddress
import re
import tomllib

import lab
import parameters
from network_test_tool import DEFAULT_TEST, MODES
from parameter_computation import ALGORITHMS, DEFAULT, generate_set
from trouble import USAGE, Trouble

MOST_SETTINGS = 4096
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
_LAB = {"nodes": 1, "rate": "1gbit", "mtu": 1500, "burst": lab.BURST}
_TEST_RANGES = {"start": (1, 1 << 30), "end": (1, 1 << 30), "perturbation": (0, 64), "trials": (1, 1000), "repeats": (0, 1_000_000_000),
                "pairs": (1, 64), "file_bytes": (1 << 20, 1 << 34), "seconds": (0.001, 60)}
# A tuner runs the test many times: fewer sizes, shorter trials, no neighbours.
TUNING_TEST = dict(DEFAULT_TEST, start=4096, fac2=True, trials=3, seconds=0.03)
# What is tuned where nobody says anything: the original's three, and the defaults among their values.
PARAMETERS = (
    {"name": "net.ipv4.tcp_rmem", "start": 4096, "end": 524288},
    {"name": "net.ipv4.tcp_wmem", "start": 4096, "end": 524288},
    {"name": "net.ipv4.tcp_window_scaling", "values": [0, 1]},
)


def wrong(where, what):
    return Trouble(f"{where}: {what}", USAGE)


def _only(table, known, where, needed=()):
    if not isinstance(table, dict):
        raise wrong(where, "is no table")
    for key in table:
        if key not in known:
            raise wrong(where, f"unknown key '{key}'; there are {', '.join(sorted(known))}")
    for key in needed:
        if key not in table:
            raise wrong(where, f"'{key}' is missing")


def _whole(value, low, high, where):
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise wrong(where, f"{value!r} is no whole number from {low} to {high}")
    return value


def _text(value, pattern, where, like):
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise wrong(where, f"{value!r} is not such as {like}")
    return value


def _one_of(value, choices, where):
    if value not in choices:
        raise wrong(where, f"{value!r} is none of {', '.join(choices)}")
    return value


def checked_test(table, where, usual):
    """`usual`: what counts where `table` says nothing."""
    _only(table, DEFAULT_TEST, where)
    test = dict(usual, **table)
    for key, (low, high) in _TEST_RANGES.items():
        value = test[key]
        if key == "seconds":
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise wrong(f"{where}.{key}", f"{value!r} is no number of seconds from {low} to {high}")
        else:
            _whole(value, low, high, f"{where}.{key}")
    for key in ("fac2", "integrity", "nocache", "ipv6"):
        if not isinstance(test[key], bool):
            raise wrong(f"{where}.{key}", f"{test[key]!r} is neither true nor false")
    _one_of(test["mode"], MODES, f"{where}.mode")
    _one_of(test["tool"], ("network", "library"), f"{where}.tool")
    _one_of(test["path"], ("tcp", "shm", "udp"), f"{where}.path")
    _text(test["program"], r"[^\0]{1,4096}", f"{where}.program", "bazel-bin/tools/sluice")
    _one_of(test["transport"], ("tcp", "udp"), f"{where}.transport")
    if test["end"] < test["start"]:
        raise wrong(f"{where}.end", f"{test['end']} is below start, {test['start']}")
    if test["transport"] == "udp" and (test["mode"] == "file" or test["end"] + test["perturbation"] > 65507):
        raise wrong(where, "a datagram has at most 65507 bytes, and a file needs TCP; lower `end`, or take transport = \"tcp\"")
    if test["mode"] == "file" and test["integrity"]:
        raise wrong(where, "a file is always compared; leave `integrity` out")
    return test


def _values(table, parameter, where):
    """Texts in the kernel's spelling, ascending."""
    if "values" in table:
        if "start" in table or "end" in table:
            raise wrong(where, "give either `values`, or `start` and `end`")
        given = table["values"]
        if not isinstance(given, list) or not given:
            raise wrong(f"{where}.values", "is no list of values")
    elif parameter.kind in ("flag", "word"):
        raise wrong(where, f"{parameter.name} has no sizes to double; give `values`, for example [{'0, 1' if parameter.kind == 'flag' else chr(34) + 'reno' + chr(34)}]")
    else:
        _only(table, ("name", "start", "end", "form"), where, ("start", "end"))
        most = parameter.high
        start = _whole(table["start"], max(1, parameter.low), most, f"{where}.start")
        given = generate_set(start, _whole(table["end"], start, most, f"{where}.end"))
    form = _one_of(table.get("form", "pinned"), ("pinned", "first"), f"{where}.form")
    texts = []
    for value in given:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise wrong(where, f"{value!r} is neither a number nor text")
        if parameter.kind == "triple" and isinstance(value, int):
            value = parameters.pinned(value) if form == "pinned" else f"first:{value}"
        if isinstance(value, str) and value.startswith("first:"):
            texts.append(value)  # its other two are those of the machine
            continue
        try:
            texts.append(parameter.checked(value))
        except parameters.WrongValue as error:
            raise wrong(where, str(error)) from error
    if len(set(texts)) != len(texts):
        raise wrong(where, f"a value of {parameter.name} is there twice")
    return texts


def _space(tables, where):
    if not isinstance(tables, (list, tuple)) or not tables:
        raise wrong(where, "is no list of tables: write [[parameter]]")
    space, settings = {}, 1
    for number, table in enumerate(tables, 1):
        here = f"{where} {number}"
        _only(table, ("name", "values", "start", "end", "form"), here, ("name",))
        parameter = parameters.REGISTRY.get(table["name"])
        if parameter is None:
            raise wrong(here, f"no parameter is named {table['name']!r}; `sluice tune system --show` lists them")
        if parameter.why_fixed:
            raise wrong(here, f"{parameter.name} is shown, not set: {parameter.why_fixed}")
        if parameter.name in space:
            raise wrong(here, f"{parameter.name} is there twice")
        space[parameter.name] = _values(table, parameter, here) + [DEFAULT]
        settings *= len(space[parameter.name])
    if settings > MOST_SETTINGS:
        raise wrong(where, f"{settings} settings are more than {MOST_SETTINGS}; take fewer values")
    return space


def _check_tool(space, cluster, test, where):
    """The library's thresholds are measured by the library, on this machine alone."""
    own = [name for name in space if parameters.REGISTRY[name].layer == parameters.LIBRARY]
    if own and test["tool"] != "library":
        raise wrong(where, f"{own[0]} is one of sluice itself: it needs tool = \"library\" in [test]")
    if test["tool"] == "library" and cluster:
        raise wrong(where, "tool = \"library\" measures on this machine: leave [lab], [front] and [[node]] out")


def _node(table, where, needed):
    _only(table, ("name", "address", "reach", "interface"), where, needed)
    try:
        address = str(ipaddress.ip_address(table["address"]))
    except ValueError as error:
        raise wrong(f"{where}.address", f"{table['address']!r} is no IP address") from error
    return {"name": _text(table.get("name", "front"), _NAME, f"{where}.name", "n1"), "address": address,
            "reach": _text(table.get("reach", "local"), rf"local|netns:{_NAME}|ssh:({_NAME}@)?[A-Za-z0-9][A-Za-z0-9_.:-]*", f"{where}.reach",
                           "local, netns:NAME or ssh:USER@HOST"),
            "interface": _text(table["interface"], r"[A-Za-z0-9_.@-]{1,15}", f"{where}.interface", "eth0") if "interface" in table else None}


def _cluster(data, where):
    if "lab" in data:
        if "node" in data or "front" in data:
            raise wrong(where, "give either [lab], or [front] and [[node]]")
        _only(data["lab"], _LAB, f"{where}: [lab]")
        table = dict(_LAB, **data["lab"])
        _whole(table["nodes"], 1, lab.MOST_NODES, f"{where}: [lab].nodes")
        _whole(table["mtu"], 576, 65535, f"{where}: [lab].mtu")
        _text(table["rate"], r"[1-9][0-9]{0,5}(kbit|mbit|gbit)", f"{where}: [lab].rate", "1gbit")
        _text(table["burst"], r"[1-9][0-9]{0,3}k", f"{where}: [lab].burst", lab.BURST)
        return {"lab": table}
    if "front" not in data and "node" not in data:
        return {}
    if "front" not in data or not isinstance(data.get("node"), list) or not data["node"]:
        raise wrong(where, "a cluster needs [front] and at least one [[node]]")
    front = dict(_node(data["front"], f"{where}: [front]", ("address",)), name="front")
    nodes = [_node(table, f"{where}: node {number}", ("name", "address")) for number, table in enumerate(data["node"], 1)]
    names = [front["name"]] + [node["name"] for node in nodes]
    addresses = [front["address"]] + [node["address"] for node in nodes]
    for what, each in (("name", names), ("address", addresses)):
        for value in each:
            if each.count(value) > 1:
                raise wrong(where, f"two nodes have the {what} {value}")
    if len({ipaddress.ip_address(address).version for address in addresses}) > 1:
        raise wrong(where, "some nodes have an IPv4 address and some an IPv6 address; give all of them one family")
    return {"front": front, "nodes": nodes}


def checked(data, where="configuration"):
    """The configuration with all that was left out. Raises Trouble that names the place."""
    _only(data, ("workload", "algorithm", "within_core", "test", "parameter", "front", "node", "lab"), where)
    if not isinstance(data.get("within_core", False), bool):
        raise wrong(f"{where}: within_core", f"{data['within_core']!r} is neither true nor false")
    test = checked_test(data.get("test", {}), f"{where}: [test]", TUNING_TEST)
    space, cluster = _space(data.get("parameter", PARAMETERS), f"{where}: [[parameter]]"), _cluster(data, where)
    _check_tool(space, cluster, test, where)
    if test["tool"] == "library":
        cluster = {"front": {"name": "front", "address": "127.0.0.1", "reach": "local", "interface": None}, "nodes": []}
    return {"within_core": data.get("within_core", False), "workload": _text(data.get("workload", "default"), _NAME, f"{where}: workload", "file-transfer"),
            "algorithm": _one_of(data.get("algorithm", "halving"), ALGORITHMS, f"{where}: algorithm"),
            "test": test, "space": space, "cluster": cluster}


def read(path):
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise Trouble(f"{path}: {error.strerror}; --config names a file in TOML, see docs/tuning_system.md", USAGE) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise wrong(path, f"is no TOML: {error}") from error
    return checked(data, path)
