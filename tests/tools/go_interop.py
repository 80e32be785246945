#!/usr/bin/env python3
"""gRPC's own interoperability client and server, in Go and unchanged, through two proxies: the 14 cases of the public
description over shm, tcp and plain Ethernet.

    tests/tools/go_interop.py SLUICE     SLUICE: bazel-bin/tools/sluice

The programs are packages of the Go module google.golang.org/grpc. Go builds them the first time, in a minute or
three, into $XDG_CACHE_HOME/sluice/go-interop-VERSION or ~/.cache/sluice/...; `tools/setup --go` installs Go. All runs in network
namespaces of the test's own: the server listens on every interface.
"""
import os
import pathlib
import re
import shutil
import subprocess

import command
import wire

VERSION = "v1.60.1"  # the last that Debian 12's Go 1.19 builds
MODULE = "google.golang.org/grpc"
BUILD_SECONDS, CASE_SECONDS = 1800, 60
CASES = ("empty_unary large_unary client_streaming server_streaming ping_pong empty_stream timeout_on_sleeping_server cancel_after_begin "
         "cancel_after_first_response status_code_and_message special_status_message custom_metadata unimplemented_method unimplemented_service").split()
SERVER_PORT, PROGRAMS_PORT = 10000, 10001


def installed():
    """The folder with `client` and `server`; go checks what it downloads against Go's checksum database."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = pathlib.Path(cache) / "sluice" / f"go-interop-{VERSION}"
    if all((folder / name).is_file() for name in ("client", "server")):
        return folder
    if shutil.which("go") is None:
        raise RuntimeError("no Go here: tools/setup --go installs it")
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["go", "install", f"{MODULE}/interop/client@{VERSION}", f"{MODULE}/interop/server@{VERSION}"], check=True,
                   timeout=BUILD_SECONDS, env={**os.environ, "GOBIN": str(folder), "GOTOOLCHAIN": "local"})
    return folder


class GoInterop(command.CommandTest):
    def setUp(self):
        self.programs = installed()  # before the network is one of the test's own
        super().setUp()
        self.wire = wire.Wire()
        self.addCleanup(self.wire.close)

    def go_server(self, within=()):
        server = subprocess.Popen([*within, self.programs / "server", f"--port={SERVER_PORT}"], stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: server.wait(CASE_SECONDS))
        self.addCleanup(server.kill)

    def run_case(self, case, port):
        return subprocess.run([self.programs / "client", "--server_host=127.0.0.1", f"--server_port={port}", f"--test_case={case}"],
                              capture_output=True, text=True, timeout=CASE_SECONDS, check=False,
                              env={**os.environ, "GRPC_GO_LOG_SEVERITY_LEVEL": "info"})

    def run_all(self, path, at, to, within=()):
        """A proxy `at` beside the server, one beside the client that goes `to` the first's address."""
        self.go_server(within)
        there = self.start("proxy", "--at", at, "--service", f"127.0.0.1:{SERVER_PORT}", within=within)
        address = re.search(r"listening at (\S+),", there.stdout.readline()).group(1)
        here = self.start("proxy", "--listen", f"127.0.0.1:{PROGRAMS_PORT}", "--to", to(address))
        self.assertRegex(here.stdout.readline(), f"connected to .* by {path}")
        self.assertIn("listening", here.stdout.readline())
        tries = 1
        while tries < 100 and self.run_case("empty_unary", PROGRAMS_PORT).returncode != 0:
            tries += 1  # the server does not listen yet
        for case in CASES:
            with self.subTest(path=path, case=case):
                done = self.run_case(case, PROGRAMS_PORT)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertRegex(done.stderr, "(?i)interop.* done", "the client ran no case")

    def test_shm(self):
        self.run_all("shm", "sluice://127.0.0.1:0", lambda address: address)

    def test_tcp(self):
        self.run_all("tcp", "tcp://127.0.0.1:0", lambda address: address)

    def test_ethernet(self):
        self.run_all("packet", "l2://right:0", lambda address: f"l2://left/{wire.RIGHT_MAC}:{address.rpartition(':')[2]}", self.wire.there)

    def test_a_case_fails_where_there_is_no_server(self):
        self.assertNotEqual(self.run_case("empty_unary", PROGRAMS_PORT).returncode, 0)


if __name__ == "__main__":
    command.main()
