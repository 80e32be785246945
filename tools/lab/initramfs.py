"""The guest's first file system: busybox, the modules that it takes to reach the host's files, and our init.

Writes cpio archives (newc; kernel Documentation/driver-api/early-userspace/buffer-format.rst) in memory.
Knows modules.dep; knows nothing of QEMU. What differs from run to run is in `lab/` of the archive.
"""
import os
import pathlib
import resource
import shlex
import shutil
import stat

from trouble import NOTHING_TO_RUN_ON, Trouble

# In the order of need. crc32_generic is not among rdma_rxe's dependencies: it asks the crypto API for "crc32"
# by name, and without it adding the device fails with ENOENT.
REACH_THE_HOST = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")
SOFT_ROCE = ("crc32_generic", "rdma_rxe", "rdma_ucm")
FRAMES = {1: ("dummy",), 2: ("sch_netem",)}
CARDS = {"virtio": "virtio_net", "vmxnet3": "vmxnet3"}

APPLETS = ("sh", "mount", "mkdir", "mkfifo", "insmod", "modprobe", "cat", "tee", "chroot", "setsid", "ip", "ln", "kill", "sleep", "dmesg", "poweroff",
           "hostname", "stty", "wc", "tr", "chmod", "umount", "sync", "grep")


class Cpio:
    """An archive in the making. Ownership: all files belong to root."""

    def __init__(self):
        self._parts = []
        self._inode = 0
        self._folders = set()

    def folder(self, name):
        parent = os.path.dirname(name)
        if parent and parent not in self._folders:
            self.folder(parent)
        if name not in self._folders:
            self._folders.add(name)
            self._entry(name, stat.S_IFDIR | 0o755, b"")

    def file(self, name, content, mode=0o644):
        if os.path.dirname(name):
            self.folder(os.path.dirname(name))
        self._entry(name, stat.S_IFREG | mode, content)

    def link(self, name, target):
        self._entry(name, stat.S_IFLNK | 0o777, os.fsencode(target))

    def bytes(self):
        self._inode = 0
        self._entry("TRAILER!!!", 0, b"")
        return b"".join(self._parts)

    def _entry(self, name, mode, content):
        self._inode += 1
        path = os.fsencode(name) + b"\0"
        fields = (self._inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
        self._parts += [head, b"\0" * (-len(head) % 4), content, b"\0" * (-len(content) % 4)]


def _name(path):
    return pathlib.PurePath(path).name.split(".ko")[0].replace("-", "_")


def module_files(modules, names):
    """Files of the named modules and of all they need, each once, in an order in which insmod takes them. None for what is built in."""
    needs = {}
    builtin = modules / "modules.builtin"
    inside = {_name(path) for path in builtin.read_text(encoding="utf-8").split()} if builtin.is_file() else set()
    for line in (modules / "modules.dep").read_text(encoding="utf-8").splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {_name(path): path for path in needs}
    ordered = []

    def add(path):
        for need in reversed(needs[path]):
            if need not in ordered:
                add(need)
        if path not in ordered:
            ordered.append(path)

    for name in names:
        if name in inside:
            continue
        if name not in by_name:
            raise Trouble(f"the kernel in {modules} has no module {name}: remove that folder and run 'sluice lab prepare'")
        add(by_name[name])
    return ordered


def busybox():
    path = shutil.which("busybox", path=os.environ.get("PATH", "") + ":/bin:/usr/bin")
    if not path:
        raise Trouble("busybox is not installed: apt-get install busybox-static, or tools/setup --lab", NOTHING_TO_RUN_ON)
    content = pathlib.Path(path).read_bytes()
    if b"/ld-linux" in content[:4096]:
        raise Trouble(f"{path} is not static, and there is no library beside it in the guest: apt-get install busybox-static", NOTHING_TO_RUN_ON)
    return content


def minimal(init):
    """An archive of busybox and `init` alone."""
    return _with_busybox(init).bytes()


def _with_busybox(init):
    archive = Cpio()
    for name in ("proc", "sys", "dev", "bin", "lower", "overlay", "root", "cgroup", "lab"):
        archive.folder(name)
    archive.file("bin/busybox", busybox(), 0o755)
    for applet in APPLETS:
        archive.link(f"bin/{applet}", "busybox")
    archive.file("init", init, 0o755)
    return archive


def build(kernel, init, nodes, settings, command, fault, extra=(), card="virtio"):
    """The archive. `settings`: name -> value, read by init as shell variables; `command`: the script to run; `extra`: (name, content)
    of files beside it; `card`: of two nodes. A kernel whose `modules` is None has everything built in."""
    archive = _with_busybox(init)
    first, second = [], []
    if kernel.modules:
        first = module_files(kernel.modules, REACH_THE_HOST)
        cards = (CARDS[card],) if nodes == 2 else ()
        second = [path for path in module_files(kernel.modules, cards + FRAMES[nodes] + SOFT_ROCE) if path not in first]
    for path in first + second:
        archive.file(f"lab/{pathlib.PurePath(path).name}", (kernel.modules / path).read_bytes())
    for name, content in extra:
        archive.file(f"lab/{name}", content)
    archive.file("lab/modules.first", _lines(first))
    archive.file("lab/modules.second", _lines(second))
    archive.file("lab/settings", "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in settings.items()).encode("utf-8", "surrogateescape"))
    archive.file("lab/command", command, 0o755)
    archive.file("lab/fault", fault, 0o755)
    return archive.bytes()


def command_script(arguments, environment):
    """A script for the host's /bin/sh that becomes `arguments` in our folder, with our limits and `environment`."""
    variables = " ".join(shlex.quote(f"{name}={value}") for name, value in sorted(environment.items()))
    if "=" in arguments[0]:  # env(1) would take that for a variable
        arguments = ["/bin/sh", "-c", 'exec "$0" "$@"', *arguments]
    umask = os.umask(0)
    os.umask(umask)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    text = (f"ulimit -n {files} 2>/dev/null; ulimit -l unlimited; umask {umask:04o}\n"
            f"cd {shlex.quote(os.getcwd())} || exit 126\n"
            f"exec env -i {variables} {' '.join(shlex.quote(argument) for argument in arguments)}\n")
    return text.encode("utf-8", "surrogateescape")


def _lines(paths):
    return "".join(f"{pathlib.PurePath(path).name}\n" for path in paths).encode()
