"""Network test tool: measures the way between the front end and all nodes at once, after NetPIPE's schedule.

It has the original's three steps: the remote program of each node is started, the local ones are prepared, and
all local ones are executed together. What runs on the nodes is test_end.py.
"""
import netpipe_schedule as schedule
from trouble import NodeLost, Trouble

PATIENCE_SECONDS = 15.0  # of one end for the other
MODES = ("pingpong", "stream", "bidir", "file")
# A measurement that takes longer than all its trials may, by so much, has hung.
SPARE_SECONDS = 60.0
SLOWEST_BYTES_PER_SECOND = 1 << 20  # that a file is waited for

DEFAULT_TEST = {
    "mode": "pingpong", "transport": "tcp", "start": 1, "end": 1 << 20, "perturbation": schedule.PERTURBATION, "fac2": False,
    "trials": schedule.TRIALS, "seconds": schedule.RUN_SECONDS, "repeats": 0, "pairs": 1, "integrity": False, "nocache": False,
    "file_bytes": 512 << 20, "ipv6": False,
    # Of library_test_tool.py.
    "tool": "network", "path": "tcp", "program": "sluice",
}


def sizes_of(test):
    if test["mode"] == "file" or test["fac2"]:
        return list(schedule.powers_of_two(test["start"], test["end"]))
    return list(schedule.sizes(test["start"], test["end"], test["perturbation"]))


def rates(rows):
    """{size: Gb/s} of what one pair measured; of a file both directions together."""
    found = {}
    for row in rows:
        if row["failures"]:
            raise Trouble(f"{row['failures']} messages of {row['size']} bytes arrived changed; no figure is given: look for a broken cable or card")
        size = row.get("file_bytes", row["bytes"])
        found.setdefault(row["size"], []).append(schedule.rate_gbps(size, sum(row["trials"]) / len(row["trials"])))
    return {size: sum(each) / len(each) for size, each in found.items()}


class NetworkTestTool:
    """`front`: the node that transmits. `test`: DEFAULT_TEST with what the user changed."""

    def __init__(self, front, nodes, test=None):
        self.front, self.nodes = front, nodes
        self.test = dict(DEFAULT_TEST, **(test or {}))
        self.sizes = sizes_of(self.test)
        self.granted = {}

    def _spec(self, node, buffers, effort):
        spec = {name: self.test[name] for name in ("mode", "transport", "repeats", "integrity", "nocache", "file_bytes")}
        trials = max(1, round(self.test["trials"] * effort))
        # A file is made and compared between its transfers.
        patience = PATIENCE_SECONDS + (self.test["file_bytes"] / SLOWEST_BYTES_PER_SECOND / 4 if self.test["mode"] == "file" else 0)
        return dict(spec, patience=patience, sizes=self.sizes, trials=trials, seconds=self.test["seconds"] * min(1.0, effort * 4),
                    address=node.address, sndbuf=int(buffers.get("socket.sndbuf", 0)), rcvbuf=int(buffers.get("socket.rcvbuf", 0)))

    def _within(self):
        test = self.test
        seconds = SPARE_SECONDS + len(self.sizes) * test["trials"] * (4 * test["seconds"] + 1)
        if test["mode"] == "file":
            seconds += len(self.sizes) * 2 * test["trials"] * test["file_bytes"] / SLOWEST_BYTES_PER_SECOND
        return seconds + len(self.nodes)

    def start_remote_testing_program(self, node, spec):
        """(end, port) of a receiver on the node."""
        answer = node.ask("receive", spec=dict(spec, address_of_transmitter=self.front.address))
        if "failed" in answer:
            raise NodeLost(node.name, f"the test could not be started: {answer['failed']}")
        return answer["end"], answer["port"]

    def prepare_local_testing_program(self, node, port, buffers, effort):
        return dict(self._spec(self.front, buffers, effort), to=node.address, port=port)

    def execution_of_local_testing_programs(self, remote, local):
        """All in parallel and in step: [rows] in the order of `local`. `remote`: [(node, end)]."""
        within = self._within()
        ends = self.front.ask("transmit", specs=local)["ends"]
        answers, failed = [], None
        for (node, _), end in zip(remote, ends):
            answer = self.front.ask("result", within + SPARE_SECONDS, end=end, limit=within)
            answers.append(answer)
            if "failed" in answer and "another pair" not in answer["failed"]:
                failed = failed or (node, answer["failed"])
        if failed is None and any("failed" in answer for answer in answers):
            failed = next((node, answer["failed"]) for (node, _), answer in zip(remote, answers) if "failed" in answer)
        if failed is not None:
            node, why = failed
            end = next(end for each, end in remote if each is node)
            there = node.ask("result", end=end, limit=1)  # if the node is gone, this says so
            raise NodeLost(node.name, why + (f" (there: {there['failed']})" if "failed" in there else ""))
        for node, end in remote:
            answer = node.ask("result", 2 * PATIENCE_SECONDS + 5, end=end, limit=2 * PATIENCE_SECONDS)  # it ends with the other
            if "failed" in answer:
                raise NodeLost(node.name, answer["failed"])
            self.granted[node.name] = answer["granted"]
        return [answer["rows"] for answer in answers]

    def run(self, buffers=None, effort=1.0):
        """{node: [rows of each pair]}: what was measured, with all trials."""
        buffers, remote, local = buffers or {}, [], []
        for node in self.nodes:
            spec = self._spec(node, buffers, effort)
            for _ in range(self.test["pairs"]):
                end, port = self.start_remote_testing_program(node, spec)
                remote.append((node, end))
                local.append(self.prepare_local_testing_program(node, port, buffers, effort))
        rows = self.execution_of_local_testing_programs(remote, local)
        found = {}
        for (node, _), each in zip(remote, rows):
            found.setdefault(node.name, []).append(each)
        return found

    def measure(self, buffers=None, effort=1.0):
        """{node: {size: Gb/s}}: pairs of one node add up."""
        found = {}
        for name, pairs in self.run(buffers, effort).items():
            total = {}
            for rows in pairs:
                for size, rate in rates(rows).items():
                    total[size] = total.get(size, 0.0) + rate
            found[name] = total
        return found


def aggregate(pairs):
    """One list of rows of several pairs that ran in step: the bytes of all, in the time of the slowest of each trial."""
    rows = []
    for together in zip(*pairs):
        rows.append(dict(together[0], bytes=sum(row["bytes"] for row in together), failures=sum(row["failures"] for row in together),
                         lost=sum(row["lost"] for row in together), trials=[max(times) for times in zip(*(row["trials"] for row in together))]))
    return rows
