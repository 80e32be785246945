"""`sluice tune system`: tries values of kernel, interface and sockets on a cluster, and says which are best.

Three parts: control logic (control_logic.py), parameter computation (parameter_computation.py) and network test
tool (network_test_tool.py, test_end.py). In Python because it is orchestration; the `sluice` binary becomes this
program (tools/tune_system/tune_system_command.cc). docs/tuning_system.md is its document.
"""
import contextlib
import json
import os
import shlex
import signal
import sys

import command_line
import configuration
import curve
import netpipe_schedule as schedule
import node as nodes
import node_settings
import parameters
import record as records
import results
from control_logic import ControlLogic
from lab import Lab
from library_test_tool import LibraryTestTool, tuning_text
from network_test_tool import DEFAULT_TEST, NetworkTestTool, aggregate
from parameter_computation import DEFAULT, ParameterComputation
from trouble import FAILED, OK, USAGE, Interrupted, Trouble

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def say(text):
    print(f"sluice tune system: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def cluster(wanted, options):
    """All nodes, started, the front end first. What runs on them ends with this."""
    if "lab" in wanted:
        lab = Lab(wanted["lab"], options["ipv6"]).start()
        try:
            yield lab.nodes
        finally:
            lab.stop()
        return
    everything = [nodes.Node(ssh=options["ssh"], **each) for each in (wanted["front"], *wanted["nodes"])]
    nodes.start_all(everything)
    try:
        yield everything
    finally:
        nodes.stop_all(everything)


@contextlib.contextmanager
def empty_record():
    """The record, which must hold nothing: values of an earlier run would be taken for the machine's own."""
    record = records.Record()
    try:
        if record.entries():
            raise Trouble(f"values of an earlier run or of --apply are in place ({record.path}); run `sluice tune system --undo` first")
        record.clear()
        yield record
    finally:
        record.close()


@contextlib.contextmanager
def signals_wait():
    """A signal that comes meanwhile counts at the end."""
    came = []
    before = {each: signal.getsignal(each) for each in SIGNALS}
    for each in (each for each in SIGNALS if before[each] is not signal.SIG_IGN):
        signal.signal(each, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for each in SIGNALS:
            signal.signal(each, before[each])
    if came:
        _interrupted(came[0], None)


def take_back(record):
    """The one way to undo, whatever ended the run. Says what is in place then."""
    with signals_wait():
        changed = bool(record.entries())
        if not records.undo(record, lambda text: None):
            say("not all is as before; run `sluice tune system --undo` when every node answers")
        elif changed:
            say("what was changed is undone")


def expanded(space, control):
    """Without what all nodes have anyway, which is the default. "first:8192" gets the machine's own as the other two."""
    def value(name, text):
        first = isinstance(text, str) and text.startswith("first:")
        return parameters.raised(int(text[6:]), control.before(name)) if first else text
    all_values = {name: [value(name, each) for each in values] for name, values in space.items()}
    return {name: [each for each in values if not control.have_all(name, each)] for name, values in all_values.items()}


def check_core(space, front):
    """The original's rule: the third of a triple is at most net.core's maximum."""
    for name, most in (("net.ipv4.tcp_rmem", "net.core.rmem_max"), ("net.ipv4.tcp_wmem", "net.core.wmem_max")):
        limit = front.ask("read", names=[most])["values"].get(most)
        for value in space.get(name, ()):
            if value != DEFAULT and limit is not None:
                try:
                    parameters.parse_triple(value, name=name, most=int(limit))
                except parameters.WrongValue as error:
                    raise Trouble(f"{error}; lower `end`, raise {most}, or leave within_core out", USAGE) from error


def tune(asked, options):
    wanted = asked["cluster"]
    with empty_record() as record:
        try:
            with cluster(wanted, dict(options, ipv6=asked["test"]["ipv6"])) as everything:
                result = _tuned(asked, everything, record)
        finally:
            take_back(record)
    _deliver(result, options)
    return OK


def _deliver(result, options):
    """Printed, kept and in the report: where one fails, as on a full disk, the others have it."""
    try:
        _print_result(result)
    finally:
        try:
            print(f"kept in {results.keep(result)}")
        finally:
            if options["report"]:
                results.write_report(options["report"], result)
                print(f"report in {options['report']}")


def _tuned(asked, everything, record):
    library = asked["test"]["tool"] == "library"
    tool = LibraryTestTool(asked["test"]) if library else NetworkTestTool(everything[0], everything[1:], asked["test"])
    control = ControlLogic(everything, tool, record, say)
    usable, refused = control.prepare(list(asked["space"]))
    for name, why in refused.items():
        say(f"{name} is left out: {why}")
    if not usable:
        raise Trouble("no parameter is left to tune; `sluice tune system --show` says why of each")
    space = expanded({name: asked["space"][name] for name in usable}, control)
    if asked["within_core"]:
        check_core(space, everything[0])
    computation = ParameterComputation(space)
    say(f"{len(everything) - 1} nodes, {len(computation.grid())} settings, {asked['algorithm']}")
    result = control.tune(computation, asked["algorithm"])
    return dict(result, workload=asked["workload"], test=asked["test"], refused=refused, kernel=everything[0].identity["kernel"],
                nodes=[node.name for node in everything])


def _print_result(result):
    compared = result["against_default"]
    print(f"workload {result['workload']}: {result['algorithm']}, {result['runs']:g} runs of {result['settings']} settings")
    for name, value in result["chosen"].items():
        was = result["default"][name]
        free = " (the kernel chooses within it)" if parameters.REGISTRY[name].kind == "triple" and not parameters.is_pinned(was) else ""
        print(f"{name:<32} {value if value != DEFAULT else 'as it was'}; was {was}{free}")
    if compared["rounds"]:
        print(f"{compared['median']:.3f} times the default ({compared['lower']:.3f} to {compared['upper']:.3f}, {compared['rounds']} rounds)")
    for name, why in result["refused"].items():
        print(f"{name:<32} left out: {why}")


def run_test(test, wanted, options):
    """The network test tool alone: np.out's columns, and what is derived from them."""
    with cluster(wanted, dict(options, ipv6=test["ipv6"])) as everything:
        tool = NetworkTestTool(everything[0], everything[1:], test)
        found = [rows for pairs in tool.run(command_line.buffers(options)).values() for rows in pairs]
    rows = aggregate(found) if test["mode"] != "file" else [row for each in found for row in each]
    lines = [_file_line(row) if test["mode"] == "file" else schedule.np_out_line(row) for row in rows]
    if options["np_out"]:
        results.write_lines(options["np_out"], lines)
    for line, row in zip(lines, rows):
        print(line + (f"   {row['lost']} lost" if row["lost"] else ""))
    if any(row["failures"] for row in rows):
        raise Trouble("messages arrived changed, so nothing is derived; look for a broken cable or card")
    if test["mode"] == "file" or test["integrity"]:
        return OK
    points = [(row["bytes"], schedule.rate_gbps(row["bytes"], sum(row["trials"]) / len(row["trials"]))) for row in rows]
    figures = curve.derived(rows, points)
    if options["report"]:
        results.write_curves(options["report"], {test["mode"]: {test["transport"]: points}})
    print(f"latency {figures['latency_us']:.2f} us, bandwidth {figures['bandwidth_gbps']:.3f} Gb/s, half of it from "
          f"{figures['half_power_bytes']} bytes, " + (f"saturated from {figures['saturation_bytes']} bytes" if figures["saturation_bytes"]
                                                      else "not saturated at the largest size"))
    for name, each in tool.granted.items():
        say(f"{name}: the kernel gave SO_SNDBUF {each['sndbuf']}, SO_RCVBUF {each['rcvbuf']}")
    return OK


def _file_line(row):
    seconds = sum(row["trials"]) / len(row["trials"])
    return f"{row['bytes']:9d} {row['direction']:>5} {schedule.rate_gbps(row['file_bytes'], seconds):9.3f} {seconds:9.3f} s"


def show(options):
    """Every parameter: what it is here, and why it cannot be set."""
    node = nodes.Node("here", None, "local", options["interface"]).start()
    try:
        found = node.ask("presence", names=list(parameters.REGISTRY), interface=options["interface"])
    finally:
        node.stop()
    for name, (value, why) in found.items():
        parameter = parameters.REGISTRY[name]
        print(f"{name:<36} {parameter.layer:<12} {value if value is not None else '-':<28} {'refused: ' + why if why else 'can be set'}")
    return OK


def apply(asked, options):
    """Sets on all nodes what a run chose for the workload, and reads it back. --undo takes it back."""
    result = results.kept(asked["workload"])
    chosen = {name: value for name, value in result["chosen"].items() if value != DEFAULT}
    for name, value in chosen.items():
        try:
            chosen[name] = parameters.REGISTRY[name].checked(value)
        except (KeyError, parameters.WrongValue) as error:
            raise Trouble(f"the result of workload '{asked['workload']}' is not used: {error}; measure anew") from error
    own = {name: value for name, value in chosen.items() if not parameters.REGISTRY[name].of_machine}
    if own:
        # A program has these, not the machine.
        print("for the program: " + ", ".join(f"{name} = {value}" for name, value in own.items()) +
              (f"; SLUICE_TUNING={tuning_text(own)}" if any(name.startswith("sluice.") for name in own) else ""))
    chosen = {name: value for name, value in chosen.items() if name not in own}
    if not chosen:
        print(f"workload {asked['workload']}: nothing of the machine is to be set")
        return OK
    if options["dry_run"]:
        return _print_plan(asked["cluster"], options, [chosen])
    done = False
    with empty_record() as record:
        try:
            with cluster(asked["cluster"], dict(options, ipv6=asked["test"]["ipv6"])) as everything:
                control = ControlLogic(everything, None, record, say)
                _, refused = control.prepare(list(chosen))
                if refused:
                    raise Trouble("; ".join(f"{name} cannot be set: {why}" for name, why in refused.items()) + "; nothing was changed")
                control.set_kernel_parameters(chosen)
                done = True
        except Interrupted:
            if done:
                say("all values are set and read back; `sluice tune system --undo` takes them back")
            raise
        finally:
            if not done:
                take_back(record)
    for node in everything:
        print(f"{node.name}: {len(chosen)} values set and read back")
    print("sluice tune system --undo takes them back")
    return OK


def _print_plan(wanted, options, settings):
    """What would be run where; nothing is contacted."""
    if "lab" in wanted:
        print(f"would make {wanted['lab']['nodes'] + 1} network namespaces, each line {wanted['lab']['rate']}")
        everything = [{"name": "each node", "reach": "new", "interface": "net0"}]
    else:
        everything = [wanted["front"], *wanted["nodes"]]
    for node in everything:
        reach = nodes.command_to_reach(node["reach"], options["ssh"])
        print(f"{node['name']}: {shlex.join(part if part not in nodes.AGENT_COMMAND else '...' for part in reach)}".replace(
            shlex.quote(shlex.join(nodes.AGENT_COMMAND)), "AGENT"))
        for setting in settings:
            for name, value in setting.items():
                if value != DEFAULT and parameters.REGISTRY[name].of_machine:
                    print(f"  {node_settings.command(name, value, node['interface'] or 'INTERFACE')}")
    return OK


def plan(asked, options):
    """Of a run: each value of each parameter, once."""
    return _print_plan(asked["cluster"], options, [{name: value} for name, values in asked["space"].items() for value in values])


def undo():
    record = records.Record()
    try:
        if not record.entries():
            record.keep_only([])
            print("nothing to undo")
            return OK
        return OK if records.undo(record) else FAILED
    except Interrupted:
        say(f"what is not undone yet is in {record.path}; run `sluice tune system --undo` again")
        raise
    finally:
        record.close()


def _interrupted(number, _):
    # A second one does not stop the undoing.
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number)


def run(arguments):
    options = command_line.parse(arguments)
    if options["undo"]:
        return undo()
    if options["show"]:
        return show(options)
    if options["results"]:
        print("\n".join(results.names()) or "no result is kept")
        return OK
    asked = command_line.asked(options)
    if not asked["cluster"]:
        raise Trouble("no nodes are named; use --lab 2 for network namespaces of this machine, or --config FILE", USAGE)
    if "lab" in asked["cluster"] and os.geteuid() != 0 and not options["dry_run"]:
        # Namespaces of one's own, and the rights in them.
        os.execvp("unshare", ["unshare", "--user", "--map-root-user", sys.executable, "-B", os.path.realpath(__file__), *arguments])
    if options["test"]:
        test = configuration.checked_test(command_line.test_words(options), "the command line", DEFAULT_TEST)
        return run_test(test, asked["cluster"], options)
    if options["apply"]:
        return apply(asked, options)
    return plan(asked, options) if options["dry_run"] else tune(asked, options)


def main():
    for each in SIGNALS:
        signal.signal(each, _interrupted)
    try:
        return run(sys.argv[1:])
    except (Trouble, Interrupted) as end:  # whoever had changed something has said what is in place
        say(end)
        return end.code
    except BrokenPipeError:
        return FAILED
    except OSError as error:
        say(f"{error.filename or 'the output'}: {error.strerror or error}; look at its rights and "
            "at the space on its disk, then run it again")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
