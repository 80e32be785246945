"""Runs a peer tool that is a server process and a client process on loopback.

Knows nothing of any one tool. Both processes are bounded in time and gone when
`run_pair` returns, whatever happened.
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import time

EXIT_FAILED = 1
EXIT_NOTHING_TO_RUN_ON = 77
LISTEN = "0A"  # state column of /proc/net/tcp


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_listening(port):
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as lines:
                rows = [line.split() for line in lines][1:]
        except OSError:
            continue
        if any(int(row[1].rsplit(":", 1)[1], 16) == port and row[3] == LISTEN for row in rows):
            return True
    return False


def require(tool, package):
    if shutil.which(tool) is None:
        print(f"{tool} is not installed (Debian package {package})", file=sys.stderr)
        sys.exit(EXIT_NOTHING_TO_RUN_ON)


def run_pair(server, client, port, environment, limit_seconds, merged=False):
    """Starts `server`, runs `client` once the server listens, returns the client's stdout (merged:
    and stderr)."""
    variables = dict(os.environ, **environment)
    deadline = time.monotonic() + limit_seconds
    process = subprocess.Popen(server, env=variables, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    try:
        while not is_listening(port):
            if process.poll() is not None or time.monotonic() > deadline:
                fail("the server did not start", process)
            time.sleep(0.01)
        done = subprocess.run(client, env=variables, capture_output=True, text=True,
                              timeout=limit_seconds, check=False)
        if done.returncode != 0:
            print(done.stdout + done.stderr, file=sys.stderr)
            fail(f"the client ended with {done.returncode}", process)
        # A server that ends by itself takes its files in /dev/shm with it; a killed one does not.
        process.communicate(timeout=limit_seconds)
        return done.stdout + done.stderr if merged else done.stdout
    except subprocess.TimeoutExpired:
        return fail(f"client or server was ended after {limit_seconds} s", process)
    finally:
        process.kill()
        process.wait()


def fail(what, server):
    server.kill()
    _, errors = server.communicate()
    print(f"{what}\n{errors}", file=sys.stderr)
    sys.exit(EXIT_FAILED)


def print_line(**fields):
    print(json.dumps(fields))
