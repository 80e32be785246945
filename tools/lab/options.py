"""The command line of `sluice lab`, checked: what is wrong is said in one line, before anything is started."""
import argparse
import os
import re

from trouble import USAGE, Trouble

KERNELS = ("auto", "host", "tcg", "tcg-6.12", "uml", "uml-debug", "tcg-debug")
PREPARED = ("tcg", "tcg-6.12", "uml", "uml-debug", "tcg-debug")
DRIVERS = ("rxe", "siw")
# Network cards of two guests, with what offers no scatter-gather first: virtio without virtio's header on the wire.
CARDS = ("virtio", "vmxnet3")
FAULTS = ("link-down", "link-up", "mtu", "device-remove")
EXAMPLE = "sluice lab run -- ibv_devinfo"
_UNITS_MIB = {"M": 1, "G": 1024}
DEFAULT_MEMORY_MIB = 3072
# Emulated guests came up in 3 to 7 s, beside other work. The figure for debug kernels is a guess on the safe side.
DEFAULT_BOOT_SECONDS = 60
DEBUG_BOOT_SECONDS = 240
_SECONDS = {"s": 1, "m": 60, "h": 3600}
# netem's names, and what a value looks like.
_NETEM = {"loss": "%", "reorder": "%", "duplicate": "%", "corrupt": "%", "delay": "time"}


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Trouble(f"{message}; example: {EXAMPLE}", USAGE)


def memory_mib(text):
    found = re.fullmatch(r"(\d{1,6})([MG])", text)
    value = int(found.group(1)) * _UNITS_MIB[found.group(2)] if found else 0
    if not 512 <= value <= 1 << 20:
        raise argparse.ArgumentTypeError(f"'{text}' is no size from 512M on, such as 3G")
    return value


def seconds(text):
    found = re.fullmatch(r"(\d{1,6})([smh])", text)
    value = int(found.group(1)) * _SECONDS[found.group(2)] if found else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no time such as 90s, 10m or 1h")
    return value


def cpus(text):
    if not re.fullmatch(r"\d{1,3}", text) or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of CPUs from 1 to 64")
    return int(text)


def memory_nodes(text):
    if not re.fullmatch(r"\d", text) or not 1 <= int(text) <= 8:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of memory nodes from 1 to 8")
    return int(text)


def netem(text):
    """'loss=1%,delay=1ms' -> netem's own words."""
    words, given = [], {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        kind = _NETEM.get(name)
        if kind is None:
            raise argparse.ArgumentTypeError(f"'{part}': '{name}' is none of {' '.join(_NETEM)}")
        pattern, like = (r"\d{1,3}(\.\d+)?%", "1%") if kind == "%" else (r"\d{1,6}(\.\d+)?(us|ms|s)", "1ms")
        if not re.fullmatch(pattern, value) or (kind == "%" and float(value[:-1]) > 100):
            raise argparse.ArgumentTypeError(f"'{part}': '{value}' is no value such as {name}={like}")
        if name in given:
            raise argparse.ArgumentTypeError(f"'{name}' is given twice")
        given[name] = value
    if "reorder" in given and "delay" not in given:
        raise argparse.ArgumentTypeError("'reorder' needs a delay: what is not delayed overtakes what is; such as delay=1ms,reorder=5%")
    for name in ("delay", "loss", "duplicate", "corrupt", "reorder"):
        if name in given:
            words += [name, given[name]]
    return " ".join(words)


def _guest(parser, timeout):
    parser.add_argument("--kernel", choices=KERNELS, default="auto", help="auto: this machine if it has an RDMA device (host), else QEMU with KVM if a guest boots with it here, else emulated (tcg); uml: User-Mode Linux; -debug: either with KASAN, lockdep and the like; tcg-6.12: emulated, with the newer kernel that Debian 12 offers")
    parser.add_argument("--driver", choices=DRIVERS, default=None, help="rxe: soft-RoCE (default); siw: soft-iWARP, with User-Mode Linux only")
    parser.add_argument("--memory", type=memory_mib, default=None, metavar="SIZE", help="of each guest (3G)")
    parser.add_argument("--cpus", type=cpus, default=None, metavar="N", help="of each guest (2; User-Mode Linux has 1)")
    parser.add_argument("--memory-nodes", type=memory_nodes, default=None, metavar="N", help="NUMA nodes, of which each has an equal part of the memory and CPUs (1; not User-Mode Linux)")
    parser.add_argument("--timeout", type=seconds, default=timeout, metavar="TIME", help=f"from start to end ({timeout})")
    parser.add_argument("--boot-timeout", type=seconds, default=None, metavar="TIME", help="a guest that has not come up by then is started again, at most twice (60s; 4m with a -debug kernel)")
    parser.add_argument("--artifacts", default="", metavar="DIR", help="writable in the guest under the same path; receives the logs")
    parser.add_argument("--verbose", action="store_true", help="say on stderr what is chosen and how long it took, even if stderr is no terminal")


def _parser():
    parser = _Parser(prog="sluice lab", allow_abbrev=False, description="a guest with a soft-RoCE device, whose files are this machine's")
    commands = parser.add_subparsers(dest="verb", metavar="run|shell|prepare|headers|fault", parser_class=_Parser)
    run = commands.add_parser("run", allow_abbrev=False, help="run a command in a guest: its output and its exit status come back")
    _guest(run, "10m")
    run.add_argument("--nodes", type=int, choices=(1, 2), default=1, help="guests, joined by a wire of their own (1)")
    run.add_argument("--peer", default="", metavar="COMMAND", help="shell command for node 2")
    run.add_argument("--net", type=netem, metavar="SPEC", help="what the wire does to frames: loss=1%%,delay=1ms,reorder=5%%,duplicate=1%%,corrupt=1%%")
    run.add_argument("--card", choices=CARDS, default="virtio", help="of the two guests: virtio, or vmxnet3, which takes frames in several pieces (Debian's kernels, emulated)")
    _guest(commands.add_parser("shell", allow_abbrev=False, help="an interactive shell in a guest"), "24h")
    prepare = commands.add_parser("prepare", allow_abbrev=False, help="fetch Debian's kernel into the cache, or build one")
    prepare.add_argument("--kernel", choices=PREPARED, default="tcg", help="tcg, tcg-6.12: fetched; uml, uml-debug, tcg-debug: built from Debian's source, for minutes")
    headers = commands.add_parser("headers", allow_abbrev=False, help="print the folder in which a module for a guest's kernel is built: make -C \"$(sluice lab headers)\" M=\"$PWD\" modules")
    headers.add_argument("--kernel", choices=PREPARED, default="tcg", help="which (tcg)")
    fault = commands.add_parser("fault", allow_abbrev=False, help="break or mend the network of a guest that runs now")
    fault.add_argument("--run", type=int, default=0, metavar="PID", help="of the 'sluice lab run' meant; needed if there are several")
    fault.add_argument("--node", type=int, choices=(1, 2), default=1)
    fault.add_argument("what", metavar="|".join(FAULTS), nargs="+")
    return parser


def parse(arguments):
    """Returns a namespace with `command`: a list, empty but for run. Errors: Trouble with USAGE."""
    own, command = arguments, []
    if "--" in arguments:
        own, command = arguments[:arguments.index("--")], arguments[arguments.index("--") + 1:]
    options = _parser().parse_args(own)
    options.command = command
    options.net = getattr(options, "net", None) or ""
    if options.verb is None:
        raise Trouble(f"say what to do: run, shell, prepare, headers or fault; example: {EXAMPLE}", USAGE)
    if options.verb == "run" and not command:
        raise Trouble(f"no command: it follows '--'; example: {EXAMPLE}", USAGE)
    if options.verb != "run" and command:
        raise Trouble(f"'{options.verb}' takes no command; example: {EXAMPLE}", USAGE)
    if options.verb in ("run", "shell"):
        _check_guest(options)
    if options.verb == "fault":
        _check_fault(options)
    return options


def _check_guest(options):
    options.guest_only = {"--nodes 2": getattr(options, "nodes", 1) == 2, "--net": bool(options.net), "--driver": options.driver is not None,
                          "--memory": options.memory is not None, "--cpus": options.cpus is not None,
                          "--memory-nodes": options.memory_nodes is not None, "shell": options.verb == "shell"}
    unfit = [flag for flag, given in options.guest_only.items() if given]
    if options.kernel == "host" and unfit:
        raise Trouble(f"{unfit[0]} needs a guest, and --kernel host has none: leave one of the two out; example: sluice lab run --kernel host -- ibv_devinfo", USAGE)
    if options.kernel == "auto" and options.driver == "siw":
        options.kernel = "uml"
    user_mode = options.kernel.startswith("uml")
    if user_mode and options.cpus not in (None, 1):
        raise Trouble("--cpus: User-Mode Linux has one CPU: leave it out, or use --kernel tcg; example: sluice lab run --kernel uml -- ibv_devinfo", USAGE)
    if user_mode and options.memory_nodes not in (None, 1):
        raise Trouble("--memory-nodes: User-Mode Linux has one memory node: leave it out, or use --kernel tcg; example: sluice lab run --kernel tcg --memory-nodes 2 -- numactl --hardware", USAGE)
    if options.driver == "siw" and options.kernel in ("tcg", "tcg-6.12"):
        raise Trouble("--driver siw needs --kernel uml: Debian's stock kernel has no soft-iWARP; example: sluice lab run --kernel uml --driver siw -- ibv_devinfo", USAGE)
    options.cpus = options.cpus or (1 if user_mode else 2)
    options.memory = options.memory or DEFAULT_MEMORY_MIB
    options.memory_nodes = options.memory_nodes or 1
    options.boot_timeout = options.boot_timeout or (DEBUG_BOOT_SECONDS if options.kernel.endswith("-debug") else DEFAULT_BOOT_SECONDS)
    options.driver = options.driver or "rxe"
    options.card = getattr(options, "card", CARDS[0])
    if options.card != CARDS[0] and (options.verb == "run" and options.nodes == 1 or options.kernel not in ("tcg", "tcg-6.12")):
        raise Trouble("--card needs --nodes 2 and --kernel tcg or tcg-6.12; example: sluice lab run --kernel tcg --nodes 2 --card vmxnet3 -- COMMAND", USAGE)
    if options.verb == "run":
        if options.nodes == 1 and options.peer:
            raise Trouble("--peer needs --nodes 2; example: sluice lab run --nodes 2 --peer 'rping -s -a 10.77.0.2 -C 5' -- rping -c -a 10.77.0.2 -C 5", USAGE)
        if options.nodes == 1 and options.net:
            raise Trouble("--net needs --nodes 2: in one guest soft-RoCE loops back above the wire; example: sluice lab run --nodes 2 --net loss=1% -- COMMAND", USAGE)
    if options.artifacts:
        options.artifacts = os.path.abspath(options.artifacts)
        if options.artifacts == "/" or "\n" in options.artifacts:
            raise Trouble("--artifacts must be a folder of its own; example: sluice lab run --artifacts out -- COMMAND", USAGE)


def _check_fault(options):
    name, *rest = options.what
    if name not in FAULTS:
        raise Trouble(f"'{name}' is none of {' '.join(FAULTS)}; example: sluice lab fault link-down", USAGE)
    if name == "mtu" and not (len(rest) == 1 and re.fullmatch(r"\d{2,5}", rest[0])):
        raise Trouble("mtu needs a number of bytes; example: sluice lab fault mtu 1024", USAGE)
    if name != "mtu" and rest:
        raise Trouble(f"{name} takes no value; example: sluice lab fault {name}", USAGE)
