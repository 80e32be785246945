"""One run: guests started together, the command's streams passed on, a deadline, and a verdict at the end.

One thread, one poll(2). Ends in every case with no guest alive: by the command's end, the deadline, a signal to us,
or a guest that died.
"""
import json
import math
import os
import pathlib
import select
import shutil
import signal
import socket
import struct
import tempfile
import time

import initramfs
import machine
import qemu
import verdict
from trouble import CANNOT_EXECUTE, FAILED, GUEST_COMPLAINED, NOT_FOUND, NOTHING_TO_RUN_ON, TIMED_OUT, Trouble, unwritten

HERE = pathlib.Path(__file__).resolve().parent
# After the deadline: time for the guest to hand over its log before it is killed.
LAST_WORDS_SECONDS = 15.0
LOG_ROOM_BYTES = 64 << 20
# A guest is started again this often if it does not come up in time; the last attempt has until the run's deadline.
BOOTS_AGAIN = 2
# Not the host's: devices, processes, and sockets of the host's daemons mean nothing in a guest.
GUESTS_OWN = ("/dev/", "/proc/", "/run/", "/sys/")
# What poll(2) promises a pipe takes without blocking (pipe(7)).
CHUNK_BYTES = 4096


def address(node):
    return f"10.77.0.{node}"


def fault_socket(pid):
    """Abstract: no file, gone with its process."""
    return f"\0sluice-lab-{os.getuid()}-{pid}"


class Output:
    """A stream on its way to one of our descriptors, which may be slow: its port is not read while bytes wait here."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.waiting = b""
        self.broken = False

    def write_some(self):
        try:
            self.waiting = self.waiting[os.write(self.descriptor, self.waiting[:CHUNK_BYTES]):]
        except OSError:
            self.broken = True
            self.waiting = b""


class Run:
    """Ownership: the guests, the log folder unless it is kept, the wake-up pipe."""

    def __init__(self, options, platform, say):
        self.options, self.platform, self.kernel, self.say = options, platform, platform.kernel, say
        self.begun = time.monotonic()
        self.deadline = self.begun + options.timeout
        self.boots = 0  # that were given up
        self.machines = []
        self.outputs = {}
        self.files = []
        self.asked = None  # who waits for the answer to a fault
        self.signalled = 0
        self.stopping = ""
        self.first_output_seconds = None
        self.ready_seconds = None

    def execute(self):
        """Returns the exit code. Errors: Trouble, after everything is ended."""
        _check_memory(self.options)
        self.folder = _log_folder(self.options.artifacts)
        keep = bool(self.options.artifacts)
        try:
            code = self._between_signals()
            keep = keep or code in (GUEST_COMPLAINED, TIMED_OUT)
            return code
        except Trouble as trouble:
            keep = True
            raise Trouble(f"{trouble}; log: {self._console(1)}", trouble.code) from trouble
        finally:
            for guest in self.machines:
                guest.end(0)
            for descriptor in self.files:
                os.close(descriptor)
            if not keep:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _between_signals(self):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        signal.set_wakeup_fd(writer)
        faults = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            faults.bind(fault_socket(os.getpid()))
            faults.listen(4)
            self._start()
            self._serve(reader, faults)
            return self._conclude()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)
            faults.close()
            if self.asked:
                self.asked.close()

    # ---- start

    def _start(self):
        self._boot_all()
        self.outputs[(1, "stdout")] = Output(1)
        self.outputs[(1, "stderr")] = Output(2)
        for name in ("stdout", "stderr") if self.options.nodes == 2 else ():
            self.files.append(os.open(self.folder / f"peer.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
            self.outputs[(2, name)] = Output(self.files[-1])

    def _boot_all(self):
        self.boot_deadline = time.monotonic() + self.options.boot_timeout if self.boots < BOOTS_AGAIN else math.inf
        wires = socket.socketpair() if self.options.nodes == 2 else (None,)
        try:
            for node, wire in enumerate(wires, 1):
                self.machines.append(self._boot(node, wire))
        finally:
            for wire in wires:
                if wire:
                    wire.close()

    def _boot_again(self):
        """An emulated kernel was seen to hang 1.15 s into its boot, for no reason that is known. The command has not begun."""
        self.boots += 1
        guest = next(guest for guest in self.machines if "ready" not in guest.facts)
        for each in self.machines:
            each.end(0)
            self._console(each.node).rename(self.folder / f"node{each.node}.boot{self.boots}.console.log")
        self.say(f"node {guest.node} did not come up within {self.options.boot_timeout} s ({self._progress(guest)}): it is started again", always=True)
        self.machines = []
        self._boot_all()

    def _progress(self, guest):
        return f"its last step: {guest.facts['step']}" if "step" in guest.facts else "its kernel started no program"

    def _boot(self, node, wire):
        options, kernel = self.options, self.kernel
        arguments = options.command if node == 1 else ["/bin/sh", "-c", options.peer or "exec sleep infinity"]
        script = initramfs.command_script(arguments, self._environment(node))
        terminal = options.verb == "shell"
        settings = {"PLATFORM": self.platform.kind, "NODE": node, "NODES": options.nodes, "ROOM": "75%", "RELEASE": kernel.release,
                    "MODULES": kernel.modules or "", "ARTIFACTS": options.artifacts, "ARTIFACTS_PATH": self.platform.host_path(options.artifacts),
                    "NETEM": options.net, "DRIVER": options.driver, "DEVICE": f"{options.driver}0", "TERMINAL": self.platform.terminal,
                    "TTY": _window() if terminal else ""}
        archive = initramfs.build(kernel, (HERE / "init").read_bytes(), options.nodes, settings, script, (HERE / "fault").read_bytes(), self.platform.extra_files(), options.card)
        facts = {"card": options.card, "cpus": options.cpus, "memory": options.memory, "memory_nodes": options.memory_nodes, "artifacts": options.artifacts, "terminal": terminal}
        return machine.Machine(node, self.platform, archive, self._console(node), facts, wire)

    def _environment(self, node):
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_LAB")}
        own.update(SLUICE_LAB_NODE=str(node), SLUICE_LAB_ADDRESS=address(node), SLUICE_LAB_DEVICE=f"{self.options.driver}0")
        if self.options.nodes == 2:
            own["SLUICE_LAB_PEER"] = address(3 - node)
        if self.options.artifacts:
            own["SLUICE_LAB_ARTIFACTS"] = self.options.artifacts
        return own

    def _console(self, node):
        return self.folder / f"node{node}.console.log"

    # ---- the loop

    def _serve(self, wakeup, faults):
        while not all(guest.complete for guest in self.machines) or any(output.waiting for output in self.outputs.values()):
            poll = select.poll()
            owners = self._register(poll, wakeup, faults)
            left = min(self.deadline, self.boot_deadline) - time.monotonic()
            events = poll.poll(max(0, left) * 1000) if left > 0 else []
            if not events and time.monotonic() >= self.deadline:
                if self.stopping:
                    return
                self._stop("timeout")
            elif not events and time.monotonic() >= self.boot_deadline:
                self._boot_again()
            for descriptor, _ in events:
                if not self._handle(owners[descriptor], wakeup, faults):
                    return

    def _register(self, poll, wakeup, faults):
        owners = {wakeup: ("signal",), faults.fileno(): ("fault",)}
        if self.options.verb == "shell":
            owners[0] = ("typed",)
        for guest in self.machines:
            if not guest.complete:
                owners[guest.exited] = ("exited", guest)
            for name, port in guest.ports.items():
                output = self.outputs.get((guest.node, name))
                if name not in guest.closed and not (output and output.waiting):
                    owners[port.fileno()] = ("port", guest, name)
        for descriptor in owners:
            poll.register(descriptor, select.POLLIN)
        for output in self.outputs.values():
            if output.waiting:
                poll.register(output.descriptor, select.POLLOUT)
                owners[output.descriptor] = ("drain", output)
        return owners

    def _handle(self, event, wakeup, faults):
        """False: the run is over."""
        what, *rest = event
        if what == "signal":
            self.signalled = os.read(wakeup, 1)[0]
            return False
        if what == "fault":
            self._accept_fault(faults)
        elif what == "typed":
            typed = os.read(0, 4096)
            if not typed:
                return False
            self.machines[0].type(typed)
        elif what == "drain":
            rest[0].write_some()
            if rest[0].broken and not self.stopping:
                self._stop("closed")
        elif what == "port":
            self._pass_on(*rest)
        elif what == "exited":
            self._drain_ports(rest[0])
            if not rest[0].complete:
                self._died(rest[0])
                return False
        return True

    def _pass_on(self, guest, name):
        data = guest.read(name)
        if data is None:
            return
        if not data:
            guest.closed.add(name)
        elif name == "control":
            for word, text in guest.lines(data):
                self._heard(guest, word, text)
        elif name == "terminal":
            os.write(1, data)
        elif name in ("stdout", "stderr"):
            if guest.node == 1 and self.first_output_seconds is None:
                self.first_output_seconds = time.monotonic() - self.begun
            output = self.outputs[(guest.node, name)]
            if not output.broken:
                output.waiting += data

    def _drain_ports(self, guest):
        for name in guest.ports:
            while name not in guest.closed:
                self._pass_on(guest, name)
                if guest.idle:
                    break

    def _heard(self, guest, word, text):
        if word == "fail":
            if self.stopping:  # it was told to stop where it waited to be told to start
                return
            raise Trouble(f"node {guest.node} did not come up: {text}")
        if word == "ready" and all("ready" in each.facts for each in self.machines):
            self.ready_seconds = time.monotonic() - self.begun
            self.boot_deadline = math.inf
            # The peer first; node 1 when the peer's command has begun.
            self.machines[-1].send("go")
        elif word == "started" and guest.node == 2:
            self.machines[0].send("go")
        elif word == "fault" and self.asked:
            self.asked.send(text.encode())
            self.asked.close()
            self.asked = None
        elif word == "ended" and guest.node == 1 and self.options.nodes == 2:
            self.machines[1].send("stop")

    def _died(self, guest):
        """Returns if it was told to stop: the run is over."""
        log = _text(self._console(guest.node))
        said = guest.end(0) or log.strip()
        panic = verdict.complaints(log)
        if panic:
            raise Trouble(f"node {guest.node}'s kernel stopped: {panic[0].strip()}", GUEST_COMPLAINED)
        if self.stopping:  # why that was so is what the run ends with
            return
        raise Trouble(f"node {guest.node} ended before its command did" + (f": {said.splitlines()[-1]}" if said else ""))

    def _stop(self, why):
        self.stopping = why
        self.boot_deadline = math.inf
        # A guest that has not come up has nothing to hand over.
        self.deadline = time.monotonic() + (LAST_WORDS_SECONDS if any("ready" in guest.facts for guest in self.machines) else 0)
        for guest in self.machines:
            guest.send("stop")

    def _accept_fault(self, faults):
        connection, _ = faults.accept()
        user = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        connection.settimeout(1)
        try:
            node, _, what = connection.recv(256).decode().partition(" ")
            if user not in (0, os.getuid()):
                connection.send(b"refused this run belongs to another user")
            elif node not in ("1", "2") or int(node) > len(self.machines):
                connection.send(b"refused this run has no such node")
            elif "started" not in self.machines[int(node) - 1].facts:
                connection.send(b"refused the command has not started yet")
            elif self.asked:
                connection.send(b"refused another fault is under way")
            else:
                self.machines[int(node) - 1].send(f"fault {what}")
                self.asked, connection = connection, None
        except (OSError, UnicodeDecodeError):
            pass
        finally:
            if connection:
                connection.close()

    # ---- the end

    def _conclude(self):
        seconds = time.monotonic() - self.begun
        for guest in self.machines:
            if guest.complete:
                guest.send("bye")
        for guest in self.machines:
            guest.end(5.0 if guest.complete and not self.signalled else 0)
        problems = [problem for guest in self.machines for problem in self._problems(guest)]
        code = self._code(problems)
        try:
            for guest in self.machines:
                (self.folder / f"node{guest.node}.kernel.log").write_bytes(bytes(guest.log))
            self._report(code, problems, seconds)
        except OSError as error:
            raise unwritten(self.folder, error, code) from error
        return code

    def _problems(self, guest):
        # Both: a panic is on the console alone, and a command may have emptied the kernel's own buffer.
        log = guest.log.decode(errors="replace") + "\n" + _text(self._console(guest.node))
        found = list(dict.fromkeys(f"node {guest.node}: {line.strip()}" for line in verdict.complaints(log)))
        left = verdict.left_over(guest.facts.get("before", ""), guest.facts.get("after", ""))
        return found + [f"node {guest.node}: {count} more of '{name}' in 'rdma resource' than before the command" for name, count in left.items()]

    def _code(self, problems):
        first = self.machines[0]
        if self.signalled:
            return 128 + self.signalled
        if self.stopping == "timeout":
            asleep = next((guest for guest in self.machines if "ready" not in guest.facts), None)
            where = f"; node {asleep.node} had not come up ({self._progress(asleep)})" if asleep else ""
            self.say(f"not finished after {self.options.timeout} s and ended{where}; logs: {self.folder}", always=True)
            return TIMED_OUT
        if self.stopping == "closed":
            self.say("nobody reads the command's output any more: it was ended", always=True)
            return FAILED
        if problems:
            self.say(f"{problems[0]}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "") +
                     f"; the command's status was {first.status}; logs: {self.folder}", always=True)
            return GUEST_COMPLAINED
        if first.status == 0 and self._peer_failed():
            self.say(f"node 2's command failed with status {self.machines[1].status}:\n{self._peer_said()}", always=True)
            return self.machines[1].status
        if first.status != 0 and self.options.nodes == 2 and self._peer_said():
            self.say(f"node 2's command said:\n{self._peer_said()}", always=True)
        return first.status

    def _peer_said(self):
        return _text(self.folder / "peer.stderr")[-2000:].rstrip()

    def _peer_failed(self):
        """Node 2's command that was still running when node 1's ended was killed by us: 128 + SIGKILL."""
        return self.options.nodes == 2 and self.machines[1].status not in (0, 128 + signal.SIGKILL)

    def _report(self, code, problems, seconds):
        first = self.machines[0]
        left = first.facts.get("left", "0")
        self.say(f"status {code}; ready after {self.ready_seconds or 0:.1f} s, ended after {seconds:.1f} s; {left} processes were left and ended")
        if self.options.artifacts:
            about = {"schema": "sluice.lab/1", "exit": code, "kernel": self.kernel.label, "accelerator": self.platform.accelerator, "driver": self.options.driver, "nodes": self.options.nodes,
                     "command_status": first.status if first.complete else None, "problems": problems, "ready_seconds": self.ready_seconds,
                     "first_output_seconds": self.first_output_seconds, "seconds": seconds, "processes_left": int(left)}
            (self.folder / "run.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def check_command(options):
    """Before a guest is booted for nothing: the guest sees the same files."""
    name = options.command[0]
    for place in (os.getcwd(), name):
        if (place + "/").startswith(GUESTS_OWN):
            raise Trouble(f"'{place}' is not in the guest, which has its own {' '.join(GUESTS_OWN)}: use another folder")
    if "/" in name:
        if not os.path.exists(name):
            raise Trouble(f"'{name}' does not exist (from {os.getcwd()}); the guest sees the files of this machine", NOT_FOUND)
        if os.path.isdir(name) or not os.access(name, os.X_OK):
            raise Trouble(f"'{name}' cannot be executed: chmod +x, or name an interpreter", CANNOT_EXECUTE)
    elif not shutil.which(name):
        raise Trouble(f"'{name}' is in no folder of PATH; give its path, or install it on this machine: the guest sees the same files", NOT_FOUND)


def check_tools(emulated):
    """All that a run starts, so that the first thing missing is said before a download."""
    if emulated:
        qemu.emulator()
    initramfs.busybox()
    if not shutil.which("rdma", path="/usr/sbin:/usr/bin:/sbin:/bin"):
        raise Trouble("rdma (of iproute2) is not installed: apt-get install iproute2, or tools/setup --lab", NOTHING_TO_RUN_ON)


def _check_memory(options):
    wanted = options.memory * options.nodes << 20
    available = next(int(line.split()[1]) << 10 for line in open("/proc/meminfo", encoding="ascii") if line.startswith("MemAvailable:"))
    if wanted > available:
        raise Trouble(f"{options.nodes} guests of {options.memory} MiB need more than the {available >> 20} MiB that are free: give a smaller --memory")


def _log_folder(artifacts):
    try:
        if artifacts:
            folder = pathlib.Path(artifacts)
            folder.mkdir(parents=True, exist_ok=True)
        else:
            folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-lab."))
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise Trouble(f"cannot write logs to {artifacts or tempfile.gettempdir()}: {error.strerror}; give another folder with --artifacts") from error
    if free < LOG_ROOM_BYTES:
        if not artifacts:
            folder.rmdir()
        raise Trouble(f"{folder.parent} has {free >> 20} MiB free, logs may take {LOG_ROOM_BYTES >> 20}: free some, or give another folder with --artifacts")
    return folder


def _window():
    size = os.get_terminal_size(0)
    return f"rows {size.lines or 24} cols {size.columns or 80}"


def _text(path):
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
