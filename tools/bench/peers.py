"""The programs of others that --peers runs beside ours, each with its package and, if it is not
Debian's, what installs it. Runs nothing itself."""
import os
import shutil
import sys

sys.path.append(
    os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "benchmarks", "peers"))

import downloaded  # noqa: E402

PROGRAMS = [
    ("ib_send_lat", "perftest", "RDMA: needs a device"),
    ("iperf3", "iperf3", "TCP"),
    ("qperf", "qperf", "TCP"),
    ("NPtcp", "netpipe-tcp", "TCP"),
    ("ucx_perftest", "ucx-utils", "shared memory and TCP"),
    ("fi_pingpong", "libfabric-bin", "shared memory and TCP"),
    ("mpirun", "openmpi-bin", "shared memory and TCP; the program is built: benchmarks/peers"),
]
# Of these the programs are built here: what must be there is their header.
LIBRARIES = [
    (
        "gRPC", "libgrpc++-dev", "TCP and Unix sockets; the program is built: benchmarks/peers",
        "/usr/include/grpcpp/grpcpp.h"),
    (
        "ZeroMQ", "libzmq3-dev", "TCP and Unix sockets; the program is built: benchmarks/peers",
        "/usr/include/zmq.h")]


# Of PyPI and crates.io: name, package, and what it is there as.
DOWNLOADED = [
    ("UCX 1.22", "libucx-cu12", "shared memory", "ucx"),
    ("iceoryx2", "iceoryx2", "shared memory", "iceoryx2"),
]


def where_from(peer):
    """Of an entry of installed(): its Debian package, or the command that installs it."""
    return peer.get("install", f"Debian package {peer['package']}")


def installed(which=shutil.which, exists=os.path.exists):
    programs = [
        (program, package, speaks, which(program) is not None)
        for program, package, speaks in PROGRAMS]
    libraries = [
        (name, package, speaks, exists(header)) for name, package, speaks, header in LIBRARIES]
    debian = [
        {"program": name, "package": package, "speaks": speaks, "installed": there}
        for name, package, speaks, there in programs + libraries]
    others = [
        {
            "program": name, "package": package, "speaks": speaks,
            "installed": exists(downloaded.PROGRAMS[key][1]()), "install": downloaded.command(key)}
        for name, package, speaks, key in DOWNLOADED]
    return debian + others
