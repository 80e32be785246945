"""One guest: its process, its ports, and what came over them.

Knows the line protocol of `init`; how a process is started as a guest is a platform's affair (qemu.py, uml.py). Decides
nothing about deadlines or exit codes. Every port is a socket pair of which the process inherits one end.
"""
import ctypes
import os
import signal
import socket
import subprocess

from trouble import Trouble

PORTS = ("control", "stdout", "stderr", "log")
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_library = ctypes.CDLL(None)


def adopt_orphans():
    """For us: what a guest's process leaves behind becomes our child, so that `end()` can wait for its end."""
    _library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent():
    """For a child between fork and exec: it is killed when we are, however we end."""
    _library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# What ends us, and what we end by it.
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def begin():
    """The same for a child that was started while these are blocked, so that none comes before we know it: the mask is inherited."""
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)


class Machine:
    """A running guest. Ownership: the process, the sockets and the archive; `end()` gives all of them back."""

    def __init__(self, node, platform, archive, console, options, frames=None):
        """`options`: cpus, memory (MiB), memory_nodes, artifacts (path or ''), terminal (bool)."""
        self.node = node
        self.facts = {}  # what the guest said: before, after, left, log, ended
        self.received = {name: 0 for name in PORTS}
        self.closed = set()  # ports that have come to their end
        self.idle = False  # the last read found nothing
        self.log = bytearray()
        self._lines = b""
        self._platform, self._folder = platform, console.parent
        self.ports = {}
        kept = []
        try:
            memory = os.memfd_create("initramfs")
            kept.append(memory)
            _write_all(memory, archive)
            theirs = {name: self._pair(name, kept) for name in PORTS + (("terminal",) if options["terminal"] else ())}
            wire = None if frames is None else frames.fileno()
            line, how = platform.start(node, memory, theirs, wire, console, options)
            if how["stderr"] >= 0:
                kept.append(how["stderr"])
            self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, pass_fds=kept + ([] if wire is None else [wire]), start_new_session=True,
                                            preexec_fn=end_with_parent, **how)
        except OSError as error:
            self._close_ports()
            raise Trouble(f"cannot start {platform.label}: {error}") from error
        finally:
            for descriptor in kept:
                os.close(descriptor)
        self.exited = os.pidfd_open(self.process.pid)

    def _pair(self, name, kept):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.ports[name] = ours
        kept.append(theirs.detach())
        return kept[-1]

    def send(self, text):
        """Ends silently if the guest is gone: its exit is seen elsewhere."""
        try:
            self.ports["control"].send(text.encode() + b"\n")
        except OSError:
            pass

    def type(self, data):
        """Keys for the guest's terminal; what it does not take at once is lost, as on a serial line."""
        try:
            self.ports["terminal"].send(data)
        except OSError:
            pass

    def read(self, name):
        """What a port holds now; b'' at its end, None if there is nothing yet."""
        self.idle = False
        try:
            data = self.ports[name].recv(1 << 16)
        except BlockingIOError:
            self.idle = True
            return None
        except OSError:
            data = b""
        self.received[name] = self.received.get(name, 0) + len(data)
        if name == "log":
            self.log += data
        return data

    def lines(self, data):
        """Complete lines of the control port."""
        self._lines += data
        *whole, self._lines = self._lines.split(b"\n")
        for line in whole:
            word, _, rest = line.decode(errors="replace").partition(" ")
            self.facts[word] = rest
            yield word, rest

    @property
    def complete(self):
        """All that the guest says it wrote has been received."""
        if "ended" not in self.facts:
            return False
        _, out, err = (self.facts["ended"].split() + ["0", "0"])[:3]
        return self.received["stdout"] >= int(out) and self.received["stderr"] >= int(err) and self.received["log"] >= int(self.facts["log"])

    @property
    def status(self):
        return int(self.facts["ended"].split()[0])

    def end(self, patience_seconds=3.0):
        """Ends the guest: by its own poweroff if it was told to, else by SIGKILL. Returns what its process printed last."""
        if self.process is None:
            return ""
        try:
            self.process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._end_group()
        said = ""
        if self.process.stderr:
            said = self.process.stderr.read().decode(errors="replace").strip()
            self.process.stderr.close()
        os.close(self.exited)
        self._close_ports()
        self._platform.tidy(self.node, self._folder)
        self.process = None
        return said

    def _end_group(self):
        """User-Mode Linux runs the guest's programs in processes of its group: they die with it, and are waited for here."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
            while True:
                os.waitpid(-self.process.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass

    def _close_ports(self):
        for port in self.ports.values():
            port.close()


def _write_all(descriptor, data):
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view):]
