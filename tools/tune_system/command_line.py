"""The command line of `sluice tune system`: what is wrong is said in one line, before anything is started."""
import argparse

import configuration
import network_test_tool
import node
import parameter_computation
from trouble import USAGE, Trouble

EXAMPLE = "sluice tune system --lab 2"


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Trouble(f"{message}; example: {EXAMPLE}", USAGE)


def _size(text):
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "")
    if not number.isdigit() or len(number) > 12 or not 0 < int(number) * units[unit] <= 1 << 34:
        raise argparse.ArgumentTypeError(f"'{text}' is no size such as 4096, 64K or 1M")
    return int(number) * units[unit]


def parse(arguments):
    parser = _Parser(prog="sluice tune system", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                     description="tries values of kernel, interfaces and sockets on a cluster, and keeps what is best for a workload",
                     epilog="docs/tuning_system.md has the configuration file, the algorithms and the columns.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--test", action="store_true", help="run the network test tool alone: NetPIPE's schedule and columns")
    what.add_argument("--show", action="store_true", help="list all parameters, their values here, and why one cannot be set")
    what.add_argument("--apply", action="store_true", help="set on all nodes what was chosen for --workload, and read it back")
    what.add_argument("--undo", action="store_true", help="put back what --apply or an interrupted run has changed")
    what.add_argument("--results", action="store_true", help="list the workloads that have a result")
    parser.add_argument("--config", metavar="FILE", help="configuration in TOML: parameters, test, nodes")
    parser.add_argument("--lab", type=int, metavar="N", help="N nodes and a front end in network namespaces of this machine")
    parser.add_argument("--rate", help="of each line of --lab (1gbit); none: not shaped")
    parser.add_argument("--algorithm", help=" ".join(parameter_computation.ALGORITHMS))
    parser.add_argument("--workload", metavar="NAME", help="the name under which the result is kept")
    parser.add_argument("--report", metavar="DIR", help="write the result and its curves there, and curves.gp for gnuplot")
    parser.add_argument("--dry-run", action="store_true", help="print what would be run on each node, and contact none")
    parser.add_argument("--ssh", metavar="COMMAND", help="in place of `ssh -o BatchMode=yes -o ConnectTimeout=5`")
    parser.add_argument("--interface", metavar="NAME", help="of --show")
    test = parser.add_argument_group("the network test tool (--test)")
    test.add_argument("--mode", help=" ".join(network_test_tool.MODES))
    test.add_argument("--transport", help="tcp or udp")
    test.add_argument("--ipv6", action="store_true", default=None, help="between the namespaces of --lab")
    test.add_argument("--start", type=_size, metavar="SIZE", help="smallest message (1)")
    test.add_argument("--end", type=_size, metavar="SIZE", help="largest message (1M)")
    test.add_argument("--perturbation", type=int, metavar="N", help="neighbours of a size (3); 0: none")
    test.add_argument("--fac2", action="store_true", default=None, help="powers of two alone")
    test.add_argument("--trials", type=int, metavar="N", help="of each size (7)")
    test.add_argument("--seconds", type=float, metavar="S", help="that a trial aims at (0.25)")
    test.add_argument("--repeats", type=int, metavar="N", help="messages of a trial, whatever they take")
    test.add_argument("--pairs", type=int, metavar="N", help="connections to each node at once; figures are those of all")
    test.add_argument("--integrity", action="store_true", default=None, help="compare every byte, measure nothing")
    test.add_argument("--nocache", action="store_true", default=None, help="walk through 200 MB at either end")
    test.add_argument("--file-bytes", type=_size, metavar="SIZE", help="of --mode file (512M)")
    test.add_argument("--sndbuf", type=_size, metavar="SIZE", help="SO_SNDBUF of the test's sockets")
    test.add_argument("--rcvbuf", type=_size, metavar="SIZE", help="SO_RCVBUF of the test's sockets")
    test.add_argument("--np-out", metavar="FILE", help="write the columns there, too")
    options = vars(parser.parse_args(arguments))
    if options["undo"] and options["ssh"]:
        parser.error("--undo takes the ssh command of each node from the record; leave --ssh out, "
                     "or change it there")
    options["ssh"] = options["ssh"] or node.DEFAULT_SSH
    if options["rate"] and options["lab"] is None:
        parser.error("--rate is that of --lab")
    words = test_words(options)
    if words and not options["test"]:
        parser.error(f"--{next(iter(words)).replace('_', '-')} is of --test; a run takes it from [test] of --config")
    return options


def test_words(options):
    """[test] of the command line: what was given."""
    return {name: options[name] for name in network_test_tool.DEFAULT_TEST if options.get(name) is not None}


def buffers(options):
    return {f"socket.{name}": options[name] for name in ("sndbuf", "rcvbuf") if options[name]}


def asked(options):
    """The configuration file with what the command line says instead."""
    wanted = configuration.read(options["config"]) if options["config"] else configuration.checked({}, "the command line")
    data = {name: options[name] for name in ("algorithm", "workload") if options[name]}
    if options["lab"] is not None:
        data["lab"] = {"nodes": options["lab"]}
        if options["rate"] and options["rate"] != "none":
            data["lab"]["rate"] = options["rate"]
    given = configuration.checked(data, "the command line")
    wanted.update({name: given[name] for name in ("algorithm", "workload") if options[name]})
    if options["lab"] is not None:
        wanted["cluster"] = given["cluster"]
        if options["rate"] == "none":
            wanted["cluster"]["lab"]["rate"] = None
    return wanted
