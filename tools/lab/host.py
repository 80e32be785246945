"""No guest: a command on this machine, with an RDMA device of its own, under as much of the lab's contract as can be kept.

Kept: status, streams, environment, deadline, artifacts, nothing left running, the kernel's log judged where it may be read.
Not kept, for they are a guest's: files that stay unwritten, a wire, a second node, a census of objects (others may use
the device). Knows sysfs; the roots of sysfs and of devices are arguments, so that tests bring their own.
"""
import contextlib
import fcntl
import json
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import time

import machine
import verdict
from trouble import FAILED, GUEST_COMPLAINED, NOTHING_TO_RUN_ON, TIMED_OUT, Trouble, unwritten

SIOCGIFADDR = 0x8915
KERNEL_LOG = "/dev/kmsg"


class Device:
    """An RDMA device that a program of ours can use."""

    def __init__(self, name, port, interface, address):
        self.name, self.port, self.interface, self.address = name, port, interface, address


def find(sysfs="/sys", devices="/dev", address_of=None):
    """(Device or None, why): the first device by name with an active port, an IPv4 address and a node that we may open."""
    address_of = address_of or _address_of
    folder = pathlib.Path(sysfs) / "class/infiniband"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not names:
        return None, "this machine has no RDMA device"
    reasons = []
    for name in names:
        device, why = _usable(folder / name, pathlib.Path(sysfs), pathlib.Path(devices), address_of)
        if device:
            return device, why
        reasons.append(f"{name} {why}")
    return None, "; ".join(reasons)


def _usable(folder, sysfs, devices, address_of):
    ports = sorted((folder / "ports").iterdir(), key=lambda path: path.name) if (folder / "ports").is_dir() else []
    active = [port for port in ports if "ACTIVE" in _text(port / "state")]
    if not active:
        return None, "has no active port"
    node = next((path.name for path in sorted((sysfs / "class/infiniband_verbs").glob("uverbs*")) if _text(path / "ibdev") == folder.name), None)
    if not node:
        return None, "has no uverbs node: is ib_uverbs loaded?"
    if not os.access(devices / "infiniband" / node, os.R_OK | os.W_OK):
        return None, f"cannot be used: /dev/infiniband/{node} may not be opened"
    for port in active:
        for entry in sorted((port / "gid_attrs/ndevs").glob("*")):
            interface = _text(entry)
            address = address_of(interface) if interface else ""
            if address:
                return Device(folder.name, int(port.name), interface, address), f"{folder.name} has an active port on {interface}"
    return None, "has no interface with an IPv4 address"


def choose(options, look=find):
    """(Device or None, why) for `--kernel auto` and `host`. Errors: Trouble if the host was asked for and cannot do it."""
    wanted = [flag for flag, given in options.guest_only.items() if given]
    if options.kernel == "host":
        device, why = look()
        if not device:
            raise Trouble(f"--kernel host: {why}; leave --kernel out for a guest", NOTHING_TO_RUN_ON)
        return device, "as asked: " + why
    if wanted:
        return None, f"{wanted[0]} needs a guest"
    return look()


def _text(path):
    """A file of sysfs; '' if it cannot be read (an empty GID's interface says EINVAL)."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _address_of(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", os.fsencode(interface)[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


class HostRun:
    """Ownership: the command's processes, the wake-up pipe, the kernel log's descriptor."""

    def __init__(self, options, device, say):
        self.options, self.device, self.say = options, device, say
        self.begun = time.monotonic()
        self.late = False  # the deadline ended the command, whose own status may be TIMED_OUT, too

    def execute(self):
        """Returns the exit code."""
        if self.options.artifacts:
            try:
                os.makedirs(self.options.artifacts, exist_ok=True)
            except OSError as error:
                raise Trouble(f"cannot write to {self.options.artifacts}: {error.strerror}; give another folder with --artifacts") from error
        log = _open_log()
        try:
            status = self._run()
            left = _end_children()
            text = _read_log(log)
        finally:
            if log is not None:
                os.close(log)
        return self._conclude(status, left, text)

    def _environment(self):
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_LAB")}
        own.update(SLUICE_LAB_NODE="1", SLUICE_LAB_ADDRESS=self.device.address, SLUICE_LAB_DEVICE=self.device.name)
        if self.options.artifacts:
            own["SLUICE_LAB_ARTIFACTS"] = self.options.artifacts
        return own

    def _run(self):
        """The command's status as a shell gives it, TIMED_OUT, or 128 + the signal that ended us."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        signal.set_wakeup_fd(writer)
        try:
            with subprocess.Popen(self.options.command, stdin=subprocess.DEVNULL, env=self._environment(), start_new_session=True, preexec_fn=machine.end_with_parent) as process:
                status = self._wait(process, reader)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                return status
        except OSError as error:
            raise Trouble(f"cannot run {self.options.command[0]}: {error.strerror}", FAILED) from error
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)

    def _wait(self, process, reader):
        ended = os.pidfd_open(process.pid)
        try:
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            poll.register(reader, select.POLLIN)
            left = self.begun + self.options.timeout - time.monotonic()
            ready = dict(poll.poll(max(0, left) * 1000))
        finally:
            os.close(ended)
        if reader in ready:
            return 128 + os.read(reader, 1)[0]
        if not ready:
            self.late = True
            return TIMED_OUT
        code = process.wait()
        return code if code >= 0 else 128 - code

    def _conclude(self, status, left, text):
        seconds = time.monotonic() - self.begun
        problems = verdict.complaints(text) if text else []
        code = GUEST_COMPLAINED if problems and not self.late else status
        if self.late:
            self.say(f"not finished after {self.options.timeout} s and ended", always=True)
        elif problems:
            self.say(f"{problems[0]} (in this machine's kernel log); the command's status was {status}", always=True)
        self.say(f"status {code}; ended after {seconds:.1f} s; {left} processes were left and ended; kernel log " + ("judged" if text is not None else "not readable by this user, not judged"))
        if self.options.artifacts:
            folder = pathlib.Path(self.options.artifacts)
            about = {"schema": "sluice.lab/1", "exit": code, "kernel": "host", "device": self.device.name, "nodes": 1, "command_status": status, "problems": problems,
                     "log_judged": text is not None, "seconds": seconds, "processes_left": left}
            try:
                (folder / "run.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
                (folder / "node1.kernel.log").write_text(text or "", encoding="utf-8")
            except OSError as error:
                raise unwritten(folder, error, code) from error
        return code


def _end_children():
    """Ends what the command left: orphans are our children (machine.adopt_orphans). Returns how many there were."""
    count = 0
    while True:
        children = [int(path.parent.name) for path in pathlib.Path("/proc").glob("[0-9]*/stat") if _parent(path) == os.getpid()]
        if not children:
            return count
        for child in children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            count += 1


def _parent(path):
    text = _text(path)  # once: the process may end
    return int(text.rpartition(")")[2].split()[1]) if text else 0


def _open_log():
    try:
        log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(log, 0, os.SEEK_END)
        return log
    except OSError:
        return None


def _read_log(log):
    """What was added since; None if it may not be read."""
    if log is None:
        return None
    text = []
    while True:
        try:
            text.append(os.read(log, 8192).decode(errors="replace").partition(";")[2].partition("\n")[0])
        except BlockingIOError:
            return "\n".join(text)
        except BrokenPipeError:  # records were overwritten before we came: go on with the oldest there is
            continue
        except OSError:
            return None
