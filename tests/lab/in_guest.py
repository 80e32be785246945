#!/usr/bin/env python3
"""What every guest_test runs: a program that Bazel built, in a guest of `sluice lab`.

    in_guest.py [lab options] [--peer-program 'PROGRAM ARGUMENTS'] -- PROGRAM ARGUMENTS...

Passes options on to the lab, and adds what only the test's surroundings know: the deadline (Bazel's, less what the lab
needs to end the guest and hand over its log), the folder that Bazel keeps (logs and artifacts), and SLUICE_REQUIRE: what
a guest is there for may not be skipped in it. No guest means a failed test, with the lab's reason.
"""
import os
import subprocess
import sys

LAB = os.path.join("tools", "lab", "lab.py")
# The lab gives a guest 15 s for its last words, then kills it.
ENDING_SECONDS = 25
# Without Bazel around it.
DEFAULT_SECONDS = 600


def deadline_seconds():
    return max(10, int(os.environ.get("TEST_TIMEOUT", DEFAULT_SECONDS)) - ENDING_SECONDS)


def lab_command(arguments):
    """Errors: ValueError if there is no command."""
    middle = arguments.index("--")
    own, command = list(arguments[:middle]), list(arguments[middle + 1:])
    if "--peer-program" in own:
        own[own.index("--peer-program")] = "--peer"
    if os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR"):
        own += ["--artifacts", os.environ["TEST_UNDECLARED_OUTPUTS_DIR"]]
    return [sys.executable, "-B", LAB, "run", "--verbose", "--timeout", f"{deadline_seconds()}s", *own, "--", *command]


def environment():
    own = dict(os.environ)
    asked = [word for word in own.get("SLUICE_REQUIRE", "").split(",") if word]
    own["SLUICE_REQUIRE"] = ",".join(dict.fromkeys([*asked, "rdma"]))
    return own


def main(arguments):
    try:
        line = lab_command(arguments)
    except ValueError:
        print(__doc__, file=sys.stderr)
        return 2
    code = subprocess.run(line, env=environment(), stdin=subprocess.DEVNULL, check=False).returncode
    if code == 77:
        print("in_guest: no guest could be booted here (above: why), and a guest test is not skipped", file=sys.stderr)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
