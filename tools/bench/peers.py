"""The programs of others that --peers runs beside ours, each with its Debian package. Runs nothing itself."""
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


def installed(which=shutil.which):
    return [{"program": program, "package": package, "speaks": speaks, "installed": which(program) is not None}
            for program, package, speaks in PROGRAMS]
