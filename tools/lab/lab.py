"""`sluice lab`: any command, in a guest with an RDMA device, on any Linux machine.

In Python because it is orchestration: child processes, sockets, text, and archives of a few megabytes; nothing here is on a
data path, and a reader may change it without a build. The `sluice` binary becomes this program (tools/lab/lab_command.cc).
Exit codes: the command's own, or those of trouble.py.
"""
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import termios
import tty

import accelerator
import host
import kernel
import machine
import options as command_line
import qemu
import run
import source_kernel
import uml
from trouble import FAILED, OK, Trouble


class Speaker:
    """One line for people, never mixed into what a program reads: without --verbose only on a terminal, or if the run fails."""

    def __init__(self, verbose):
        self._talk = verbose or sys.stderr.isatty()

    def __call__(self, text, always=False):
        if always or self._talk:
            print(f"sluice lab: {text}", file=sys.stderr, flush=True)


def run_guest(options):
    say = Speaker(options.verbose)
    run.check_command(options)
    why_not_host = "as asked"
    if options.kernel in ("auto", "host"):
        device, why_not_host = host.choose(options)
        if device:
            say(f"this machine ({why_not_host})")
            return host.HostRun(options, device, say).execute()
    user_mode = options.kernel.startswith("uml")
    run.check_tools(not user_mode)
    platform, why = _platform(options, kernel.cache_folder(), say)
    say(f"{platform.label} ({why}" + (f"; {why_not_host}" if options.kernel == "auto" else "") + f"), kernel {platform.kernel.label}")
    return run.Run(options, platform, say).execute()


def _platform(options, cache, say):
    """(how the guest is started, why so). Blocks: for a download if nothing has been prepared."""
    if options.kernel.startswith("uml"):
        return uml.Uml(source_kernel.require(cache, options.kernel)), "as asked" if options.driver != "siw" else "the kernel that has soft-iWARP"
    if options.kernel in source_kernel.KINDS:
        return qemu.Qemu(source_kernel.require(cache, options.kernel), "tcg"), "as asked"
    kind = options.kernel if options.kernel in kernel.PREFIXES else "tcg"
    chosen_kernel = kernel.prepared(cache, kind) or kernel.prepare(cache, lambda text: say(text, always=True), kind)
    chosen, why = accelerator.choose(options.kernel, chosen_kernel, cache)
    return qemu.Qemu(chosen_kernel, chosen), why


def shell(options):
    if not os.isatty(0) or not os.isatty(1):
        raise Trouble("shell needs a terminal; for a program use 'sluice lab run -- COMMAND'", FAILED)
    options.command = [os.environ.get("SHELL", "/bin/sh")]
    options.nodes, options.peer, options.net = 1, "", ""
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        return run_guest(options)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def prepare(options):
    cache, say = kernel.cache_folder(), Speaker(True)
    ready = kernel.prepare(cache, say, options.kernel) if options.kernel in kernel.PREFIXES else source_kernel.prepare(cache, options.kernel, say)
    print(f"{ready.label} is ready in {ready.folder}")
    return OK


def headers(options):
    cache = kernel.cache_folder()
    if options.kernel in source_kernel.KINDS:
        print(source_kernel.headers(cache, options.kernel))
    else:
        print(kernel.headers(cache, options.kernel))
    return OK


def fault(options):
    """From the host: asks the run. Inside a guest: does it."""
    if os.environ.get("SLUICE_LAB_NODE") and os.path.exists("/run/sluice-lab/fault"):
        return subprocess.run(["/bin/sh", "/run/sluice-lab/fault", *options.what], check=False).returncode
    pid = options.run or _only_run()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(30)
        try:
            connection.connect(run.fault_socket(pid))
            connection.send(f"{options.node} {' '.join(options.what)}".encode())
            answer = connection.recv(4096).decode(errors="replace")
        except OSError as error:
            raise Trouble(f"the run of process {pid} does not answer: {error.strerror or error}") from error
    if answer != "ok":
        raise Trouble(answer.removeprefix("refused ") or "the run ended before it answered")
    return OK


def _only_run():
    prefix = f"@sluice-lab-{os.getuid()}-"
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as table:
        names = {line.split()[-1] for line in table}
    # Any user may give a socket any name.
    runs = sorted({int(name.removeprefix(prefix)) for name in names if name.startswith(prefix) and name.removeprefix(prefix).isdecimal()})
    if not runs:
        raise Trouble("no guest of yours is running: start one with 'sluice lab run -- COMMAND'")
    if len(runs) > 1:
        raise Trouble(f"several guests are running: say which with --run, one of {' '.join(map(str, runs))}")
    return runs[0]


def _fill_standard_descriptors():
    """A closed descriptor 0, 1 or 2 would be given to a guest's port, and a message written into it."""
    while True:
        descriptor = os.open("/dev/null", os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            return


def _let_signals_interrupt():
    """A signal is an exception, so that what was begun is ended and removed; a run that has begun has its own way (run.py)."""
    def interrupt(number, _):
        raise Trouble("ended by a signal; nothing of it is left", 128 + number)

    for number in machine.INTERRUPTS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


def main(arguments):
    _fill_standard_descriptors()
    machine.adopt_orphans()
    with contextlib.suppress(ValueError):
        # Each guest costs a dozen descriptors; QEMU's file server one for each open file of the guest.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        _let_signals_interrupt()
        options = command_line.parse(arguments)
        return {"run": run_guest, "shell": shell, "prepare": prepare, "headers": headers, "fault": fault}[options.verb](options)
    except Trouble as trouble:
        print(f"sluice lab: {trouble}", file=sys.stderr)
        return trouble.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
