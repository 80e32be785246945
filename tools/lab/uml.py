"""User-Mode Linux: its command line, and where it keeps its memory. Knows nothing of what a guest says or does.

The kernel is a program: it needs no root, no KVM and no emulation, has one CPU, and reaches the machine's files by
hostfs. It is no wall against a command that means harm: root in the guest can be the user who started it.
"""
import os
import pathlib
import shutil

from trouble import Trouble

# As qemu.KERNEL_ARGUMENTS where they apply. stderr: the console is the process's standard error, which is a file.
KERNEL_ARGUMENTS = ("quiet loglevel=5 stderr=1 console=stderr0 con=null ssl=null panic=-1 noreboot random.trust_cpu=on cryptomgr.notests dummy.numdummies=0 "
                    "watchdog_thresh=30 rcupdate.rcu_cpu_stall_timeout=60 sysctl.kernel.hung_task_timeout_secs=60").split()
# The driver's buffers are made for this size once; the guest starts with 1500 as everywhere.
FRAME_BYTES = 9000
MEMORY_FOLDER = "/dev/shm"


def memory_folder(wanted_bytes, otherwise):
    """Where the guest's memory, a file without a name, is kept: on tmpfs if it fits there. Errors: Trouble if it fits nowhere.

    The kernel's own code is mapped from there too, so that a folder mounted noexec, as containers have it, will not do.
    """
    for folder in (MEMORY_FOLDER, os.fspath(otherwise)):
        try:
            room = os.statvfs(folder)
            if os.access(folder, os.W_OK) and not room.f_flag & os.ST_NOEXEC and room.f_bavail * room.f_frsize >= wanted_bytes:
                return folder
        except OSError:
            continue
    raise Trouble(f"the guest's memory fits neither {MEMORY_FOLDER} nor {otherwise}: each lacks {wanted_bytes >> 20} MiB, or is mounted noexec; "
                  "give a smaller --memory, or another folder with TMPDIR")


class Uml:
    """How a guest is started as User-Mode Linux."""

    kind = "uml"
    terminal = "/dev/ttyS5"
    accelerator = "none"

    def __init__(self, kernel):
        self.kernel = kernel

    @property
    def label(self):
        return "User-Mode Linux"

    def start(self, node, initrd, ports, frames, console, options):
        """(arguments, what else Popen takes). `ports`: name -> descriptor; the first is /dev/ttyS1 in the guest."""
        folder = console.parent
        self.tidy(node, folder)
        line = [os.fspath(self.kernel.image), f"initrd=/proc/self/fd/{initrd}", f"mem={options['memory']}M", *KERNEL_ARGUMENTS,
                f"umid={_own_folder(node)}", "uml_dir=/proc/self/cwd/"]
        line += [f"ssl{number}=fd:{descriptor}" for number, descriptor in enumerate(ports.values(), 1)]
        if frames is not None:
            line.append(f"vec0:transport=fd,fd={frames},mac=52:54:00:77:00:{node:02x},mtu={FRAME_BYTES}")
        environment = {"TMPDIR": memory_folder(options["memory"] << 20, folder), "PATH": "/usr/bin:/bin", "HOME": "/"}
        with open(console, "wb") as file:
            log = os.dup(file.fileno())
        return line, {"stdout": log, "stderr": log, "cwd": folder, "env": environment}

    def host_path(self, path):
        """A comma would end the path in mount's options; the log folder is the artifacts folder, and its working folder."""
        return "/proc/self/cwd/." if path else ""

    def extra_files(self):
        """The machine's description of its first CPU: the guest's own lacks the clock rate."""
        return [("cpuinfo", pathlib.Path("/proc/cpuinfo").read_bytes().partition(b"\n\n")[0] + b"\n\n")]

    def tidy(self, node, folder):
        """It removes its folder itself, unless it was killed."""
        shutil.rmtree(folder / _own_folder(node), ignore_errors=True)


def _own_folder(node):
    return f"uml.{node}"
