"""One guest: the QEMU process, its ports, and what came over them.

Knows QEMU's command line and the line protocol of `init`; decides nothing about deadlines or exit codes. Every
port is a socket pair of which QEMU inherits one end: no name in the file system, nothing for others to connect to.
"""
import ctypes
import os
import shutil
import signal
import socket
import subprocess

from trouble import NOTHING_TO_RUN_ON, Trouble

EMULATOR = "qemu-system-x86_64"
PORTS = ("control", "stdout", "stderr", "log")
PR_SET_PDEATHSIG = 1
# quiet: a serial line is slow under emulation; warnings and worse are printed at once, the rest is handed over at the end.
# The stall detectors must not fire because the host runs something else for a few seconds.
KERNEL_ARGUMENTS = ("console=ttyS0 loglevel=5 log_buf_len=4M panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check random.trust_cpu=on cryptomgr.notests audit=0 lsm= 8250.nr_uarts=1 raid=noautodetect net.ifnames=0 "
                    "watchdog_thresh=30 rcupdate.rcu_cpu_stall_timeout=60 sysctl.kernel.hung_task_timeout_secs=60")


_library = ctypes.CDLL(None)


def end_with_parent():
    """For a child between fork and exec: it is killed when we are, however we end."""
    _library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def emulator():
    path = shutil.which(EMULATOR)
    if not path:
        raise Trouble(f"{EMULATOR} is not installed: apt-get install qemu-system-x86, or tools/setup --lab", NOTHING_TO_RUN_ON)
    return path


def command_line(program, kernel, accelerator, initrd, console, options):
    """QEMU's arguments, without ports and frames. `options`: cpus, memory_mib, artifacts (path or '')."""
    accelerated = ["-accel", "kvm", "-cpu", "host"] if accelerator == "kvm" else ["-accel", "tcg,thread=multi", "-cpu", "max,la57=off"]
    line = [program, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35,usb=off,vmport=off,hpet=off", *accelerated,
            "-smp", str(options["cpus"]), "-m", str(options["memory_mib"]),
            "-kernel", os.fspath(kernel.image), "-initrd", initrd, "-append", KERNEL_ARGUMENTS,
            "-chardev", f"file,id=console,path={_escaped(console)}", "-serial", "chardev:console",
            "-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap", "-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
            "-device", "virtio-serial-pci,max_ports=8"]
    if options["artifacts"]:
        line += ["-fsdev", f"local,id=artifacts,path={_escaped(options['artifacts'])},security_model=none,multidevs=remap",
                 "-device", "virtio-9p-pci,fsdev=artifacts,mount_tag=artifacts"]
    return line


def _escaped(path):
    """A comma ends a value in QEMU's options; doubled, it is one."""
    return os.fspath(path).replace(",", ",,")


class Machine:
    """A running guest. Ownership: the process, the sockets and the archive; `end()` gives all of them back."""

    def __init__(self, node, line, archive, frames=None, terminal=False):
        self.node = node
        self.facts = {}  # what the guest said: before, after, left, log, ended
        self.received = {name: 0 for name in PORTS}
        self.closed = set()  # ports that have come to their end
        self.idle = False  # the last read found nothing
        self.log = bytearray()
        self._lines = b""
        self.ports = {}
        kept = []
        try:
            memory = os.memfd_create("initramfs")
            kept.append(memory)
            _write_all(memory, archive)
            line = [argument.replace("@INITRD@", f"/proc/self/fd/{memory}") for argument in line]
            for number, name in enumerate(PORTS, 1):
                line += ["-chardev", f"socket,id={name},fd={self._pair(name, kept)}", "-device", f"virtserialport,chardev={name},nr={number},name={name}"]
            if terminal:
                line += ["-chardev", f"socket,id=terminal,fd={self._pair('terminal', kept)}", "-device", "virtconsole,chardev=terminal,nr=0"]
            if frames is not None:
                line += ["-netdev", f"socket,id=frames,fd={frames.fileno()}", "-device", f"virtio-net-pci,netdev=frames,mac=52:54:00:77:00:{node:02x},romfile="]
                kept.append(frames.fileno())
            self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=kept,
                                            start_new_session=True, preexec_fn=end_with_parent)
        except OSError as error:
            self._close_ports()
            raise Trouble(f"cannot start {line[0]}: {error}") from error
        finally:
            for descriptor in kept:
                if frames is None or descriptor != frames.fileno():
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
        """Ends the guest: by its own poweroff if it was told to, else by SIGKILL. Returns what QEMU printed."""
        if self.process is None:
            return ""
        try:
            self.process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        said = self.process.stderr.read().decode(errors="replace").strip()
        self.process.stderr.close()
        os.close(self.exited)
        self._close_ports()
        self.process = None
        return said

    def _close_ports(self):
        for port in self.ports.values():
            port.close()


def _write_all(descriptor, data):
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view):]
