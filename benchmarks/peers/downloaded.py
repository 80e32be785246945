"""The peers that Debian does not have: which, of which version, where they are kept, and what to
type if they are not there.

install.py puts them there; ucx.py and iceoryx2.py run them. Nothing of them is in the repository.
"""
import os
import sys

EXIT_NOTHING_TO_RUN_ON = 77

HERE = os.path.dirname(os.path.abspath(__file__))
INSTALL = "benchmarks/peers/install.py"

# PyPI's wheel of x86-64 Linux; pip compares the checksum.
UCX_PACKAGE, UCX_VERSION = "libucx-cu12", "1.22.0"
UCX_SHA256 = "5cbbef0c140a0a158ae3486089af659b38822b2234cd3dc90ba40a5e6553402a"

# crates.io; iceoryx2/Cargo.lock has the checksums of it and of what it needs.
ICEORYX2_VERSION = "0.10.0"
ICEORYX2_RUST = (1, 89)  # its rust-version


def folder(environment=os.environ):
    caches = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(caches, "sluice", "peers")


def ucx_folder():
    return os.path.join(folder(), f"ucx-{UCX_VERSION}")


def ucx_perftest():
    return os.path.join(ucx_folder(), "libucx", "bin", "ucx_perftest")


def ucx_environment():
    """Its programs name no folder of their libraries: without this they would load Debian's."""
    return {"LD_LIBRARY_PATH": os.path.join(ucx_folder(), "libucx", "lib")}


def iceoryx2_folder():
    return os.path.join(folder(), f"iceoryx2-{ICEORYX2_VERSION}")


def iceoryx2_pingpong():
    return os.path.join(iceoryx2_folder(), "release", "iceoryx2-pingpong")


PROGRAMS = {
    "ucx": (f"UCX {UCX_VERSION}", ucx_perftest),
    "iceoryx2": (f"iceoryx2 {ICEORYX2_VERSION}", iceoryx2_pingpong)}


def command(which):
    return f"{INSTALL} {which}"


def installed(which):
    return os.access(PROGRAMS[which][1](), os.X_OK)


def require(which):
    """The program's path. Without it: says what to type, and exits as a peer does that has nothing
    to run on."""
    if not installed(which):
        print(f"{PROGRAMS[which][0]} is not installed: {command(which)}", file=sys.stderr)
        sys.exit(EXIT_NOTHING_TO_RUN_ON)
    return PROGRAMS[which][1]()
