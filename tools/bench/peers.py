"""The programs of others that --peers runs beside ours, each with its Debian package. Runs nothing itself."""
import os
import shutil

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
    ("gRPC", "libgrpc++-dev", "TCP and Unix sockets; the program is built: benchmarks/peers", "/usr/include/grpcpp/grpcpp.h"),
    ("ZeroMQ", "libzmq3-dev", "TCP and Unix sockets; the program is built: benchmarks/peers", "/usr/include/zmq.h"),
]


def installed(which=shutil.which, exists=os.path.exists):
    programs = [(program, package, speaks, which(program) is not None) for program, package, speaks in PROGRAMS]
    libraries = [(name, package, speaks, exists(header)) for name, package, speaks, header in LIBRARIES]
    return [{"program": name, "package": package, "speaks": speaks, "installed": there} for name, package, speaks, there in programs + libraries]
