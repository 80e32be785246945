"""How the lab says no: one line with the remedy, and an exit code.

The command's own status is returned as it is; these are for everything else. 124, 126 and 127 are
what timeout(1) and env(1) use for the same.
"""

OK = 0
FAILED = 1
USAGE = 2
NOTHING_TO_RUN_ON = 77
GUEST_COMPLAINED = 99  # the guest's kernel warned, or RDMA resources were left: whatever the command said
TIMED_OUT = 124
CANNOT_EXECUTE = 126
NOT_FOUND = 127


class Trouble(Exception):
    """What is wrong and what to do about it, in one line."""

    def __init__(self, text, code=FAILED):
        super().__init__(text)
        self.code = code


def unwritten(folder, error, code):
    """What is written at the end cannot be: the run's own end is told all the same."""
    return Trouble(f"cannot write to {folder}: {error.strerror}; the run's status was {code}: free room there, or give another folder with --artifacts")
