"""How `sluice tune system` says no: what is wrong and what to do about it, in one line, and an exit code."""
import signal

OK = 0
FAILED = 1
USAGE = 2
NOTHING_TO_RUN_ON = 77


class Trouble(Exception):
    """The message is "cause; remedy"."""

    def __init__(self, text, code=FAILED):
        super().__init__(text)
        self.code = code


class Interrupted(BaseException):
    """A signal. No Exception, so that nobody takes it for a failure of what just ran."""

    def __init__(self, number):
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.code = 128 + number


class NodeLost(Trouble):
    """A node does not answer any more."""

    def __init__(self, node, why):
        super().__init__(f"node {node} does not answer: {why}; look at the node, then run `sluice tune system --undo`")
        self.node = node
