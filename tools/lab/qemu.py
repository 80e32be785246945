"""QEMU: its command line, and nothing of what a guest says or does.

Every port is a socket of which QEMU inherits one end: no name in the file system, nothing for others to connect to.
"""
import os
import shutil
import subprocess

import timestamp
from trouble import NOTHING_TO_RUN_ON, Trouble

EMULATOR = "qemu-system-x86_64"
CARDS = {"virtio": "virtio-net-pci", "vmxnet3": "vmxnet3"}
# quiet: a serial line is slow under emulation; warnings and worse are printed at once, the rest is handed over at the end.
# The stall detectors must not fire because the host runs something else for a few seconds.
KERNEL_ARGUMENTS = ("console=ttyS0 loglevel=5 log_buf_len=4M panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check random.trust_cpu=on cryptomgr.notests audit=0 lsm= 8250.nr_uarts=1 raid=noautodetect net.ifnames=0 "
                    "watchdog_thresh=30 rcupdate.rcu_cpu_stall_timeout=60 sysctl.kernel.hung_task_timeout_secs=60")


def emulator():
    path = shutil.which(EMULATOR)
    if not path:
        raise Trouble(f"{EMULATOR} is not installed: apt-get install qemu-system-x86, or tools/setup --lab", NOTHING_TO_RUN_ON)
    return path


def command_line(program, kernel, accelerator, initrd, console, options):
    """QEMU's arguments, without ports and frames. `options`: cpus, memory (MiB), memory_nodes, artifacts (path or ''). Blocks: 20 ms."""
    accelerated = ["-accel", "kvm", "-cpu", "host"] if accelerator == "kvm" else ["-accel", "tcg,thread=multi", "-cpu", "max,la57=off"]
    khz = timestamp.frequency_khz() if accelerator == "tcg" else None
    append = KERNEL_ARGUMENTS + (f" tsc_early_khz={khz}" if khz else "")
    line = [program, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35,usb=off,vmport=off,hpet=off", *accelerated,
            "-smp", str(options["cpus"]), "-m", str(options["memory"]), *_memory_nodes(options["memory"], options["memory_nodes"]),
            "-kernel", os.fspath(kernel.image), "-initrd", initrd, "-append", append,
            "-chardev", f"file,id=console,path={_escaped(console)}", "-serial", "chardev:console",
            "-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap", "-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
            "-device", "virtio-serial-pci,max_ports=8"]
    if options["artifacts"]:
        line += ["-fsdev", f"local,id=artifacts,path={_escaped(options['artifacts'])},security_model=none,multidevs=remap",
                 "-device", "virtio-9p-pci,fsdev=artifacts,mount_tag=artifacts"]
    return line


def _memory_nodes(memory, nodes):
    """Equal parts of the memory, the last one with what is left; QEMU deals the CPUs out to them."""
    if nodes == 1:
        return []
    part, line = memory // nodes, []
    for node in range(nodes):
        size = part if node + 1 < nodes else memory - part * (nodes - 1)
        line += ["-object", f"memory-backend-ram,id=node{node},size={size}M", "-numa", f"node,nodeid={node},memdev=node{node}"]
    return line


def _escaped(path):
    """A comma ends a value in QEMU's options; doubled, it is one."""
    return os.fspath(path).replace(",", ",,")


class Qemu:
    """How a guest is started with QEMU. `accelerator`: kvm or tcg."""

    kind = "qemu"
    terminal = "/dev/hvc0"

    def __init__(self, kernel, accelerator):
        self.kernel, self.accelerator = kernel, accelerator

    @property
    def label(self):
        return f"QEMU with {'KVM' if self.accelerator == 'kvm' else 'emulation'}"

    def start(self, node, initrd, ports, frames, console, options):
        """(arguments, what else Popen takes). `ports`: name -> descriptor, in the order of their numbers."""
        line = command_line(emulator(), self.kernel, self.accelerator, f"/proc/self/fd/{initrd}", console, options)
        for number, (name, descriptor) in enumerate(ports.items(), 1):
            line += ["-chardev", f"socket,id={name},fd={descriptor}"]
            line += ["-device", f"virtserialport,chardev={name},nr={number},name={name}"] if name != "terminal" else ["-device", "virtconsole,chardev=terminal,nr=0"]
        if frames is not None:
            line += ["-netdev", f"socket,id=frames,fd={frames}", "-device", f"{CARDS[options['card']]},netdev=frames,mac=52:54:00:77:00:{node:02x},romfile="]
        return line, {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}

    def host_path(self, path):
        """The artifacts folder is found by its tag."""
        return path

    def extra_files(self):
        return []

    def tidy(self, node, folder):
        """QEMU leaves nothing in the log folder."""
