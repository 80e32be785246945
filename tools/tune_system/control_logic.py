"""Control logic: sets what parameter computation wants to try, and lets the network test tool measure it.

Each change is in the record before it is made. Whoever runs this undoes the record at the end (record.undo).
"""
import random
import statistics

import parameters
from parameter_computation import DEFAULT, score
from trouble import Trouble

ROUNDS = 7  # of default against chosen
RESAMPLES = 2000
SEED = 7


def interval(ratios):
    """(median, lower, upper): 95 % by bootstrap, with a fixed seed."""
    draw = random.Random(SEED)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return statistics.median(ratios), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


class ControlLogic:
    """`nodes`: all of them, the front end first. They must have been started."""

    def __init__(self, nodes, tool, record, say=print):
        self._nodes, self._tool, self._record, self._say = nodes, tool, record, say
        self._before = {}  # {node: {parameter: value}}
        self._now = {}
        self._recorded = set()  # (node, parameter)

    def prepare(self, names):
        """Reads what all nodes have. The parameters that all of them can set, in order; why not, for the others."""
        refused = {}
        for node in self._nodes:
            for name, (_, why) in node.ask("presence", names=names, interface=node.interface).items():
                if why:
                    refused.setdefault(name, f"{node.name}: {why}")
        usable = [name for name in names if name not in refused]
        for node in self._nodes:
            read = node.ask("read", names=usable, interface=node.interface)
            self._before[node.name] = read["values"]
            self._now[node.name] = dict(read["values"])
        return usable, refused

    def before(self, name):
        """What the front end had."""
        return self._before[self._nodes[0].name][name]

    def have_all(self, name, value):
        """Whether every node had this value before."""
        return all(before[name] == value for before in self._before.values())

    def set_kernel_parameters(self, setting):
        """On all nodes: recorded first, then set and read back. Nodes work in parallel."""
        asked = []
        for node in self._nodes:
            before, now = self._before[node.name], self._now[node.name]
            wanted = {name: before[name] if value == DEFAULT else value for name, value in setting.items()}
            changes = {name: value for name, value in wanted.items()
                       if value != now[name] and parameters.REGISTRY[name].of_machine}
            if not changes:
                continue
            self._record.add(node, {name: (before[name], value) for name, value in changes.items() if (node.name, name) not in self._recorded})
            self._recorded.update((node.name, name) for name in changes)
            node.tell("write", values=changes, interface=node.interface)
            asked.append((node, changes))
        refusals = []
        for node, changes in asked:
            refused = node.answer()["refused"]
            self._now[node.name].update({name: value for name, value in changes.items() if name not in refused})
            refusals += [f"{node.name}: {name} is not {changes[name]}: {why}" for name, why in refused.items()]
        if refusals:
            raise Trouble("; ".join(refusals) + "; take it out of the configuration, or a value that it allows")

    def measure(self, setting, effort=1.0):
        self.set_kernel_parameters(setting)
        own = {name: value for name, value in setting.items() if not parameters.REGISTRY[name].of_machine and value != DEFAULT}
        results = self._tool.measure(own, effort)
        self._say(f"  {score(results):8.3f} Gb/s  {describe(setting)}")
        return results

    def tune(self, computation, algorithm):
        """The result as data: what was chosen, and how it compares with the default."""
        chosen = computation.choose(algorithm, self.measure)
        default = dict.fromkeys(computation.space, DEFAULT)
        compared = self.compare(default, chosen)
        if compared["upper"] < 1:
            self._say("the default is faster in the interleaved rounds: it stays")
            chosen, compared["kept_default"] = default, True
        return {"algorithm": algorithm, "chosen": chosen, "default": {name: self.before(name) for name in computation.space},
                "runs": round(computation.runs, 3), "settings": len(computation.grid()), "against_default": compared,
                "space": computation.space, "measured": [[list(point), value] for point, value in computation.measured.items()],
                "tables": computation.tables, "granted": self._tool.granted}

    def compare(self, default, chosen, rounds=ROUNDS):
        """The chosen setting by the default, in interleaved rounds; the ratio of each round, and by size."""
        if chosen == default:
            return {"median": 1.0, "lower": 1.0, "upper": 1.0, "rounds": 0, "default": {}, "chosen": {}}
        ratios, kept = [], {"default": {}, "chosen": {}}
        for number in range(rounds):
            pair = (("default", default), ("chosen", chosen))
            scores = {}
            for which, setting in pair if number % 2 == 0 else reversed(pair):
                results = self.measure(setting)
                scores[which] = score(results)
                for rates in results.values():
                    for size, rate in rates.items():
                        kept[which].setdefault(size, []).append(rate)
            ratios.append(scores["chosen"] / scores["default"])
        middle, lower, upper = interval(ratios)
        by_size = {which: {size: statistics.median(each) for size, each in sizes.items()} for which, sizes in kept.items()}
        return dict({"median": middle, "lower": lower, "upper": upper, "rounds": rounds, "ratios": ratios}, **by_size)


def describe(setting):
    return ", ".join(f"{name} = {value}" for name, value in setting.items())
