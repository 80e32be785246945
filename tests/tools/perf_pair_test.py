#!/usr/bin/env python3
"""Server and client as two commands, and what becomes of one when the other dies."""
import os
import secrets
import signal

import command


def descriptors(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def only_child(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
        return int(file.read().split()[0])


class Pair(command.CommandTest):
    def start_server(self, *arguments):
        """A server at a port nobody else has: the process and its address."""
        process = self.start("perf", *arguments, "--bind", "127.0.0.1", "-p", "0")
        line = process.stderr.readline()
        self.assertIn("listening at ", line)
        return process, line.split()[-1]

    def finish(self, process, expect=0):
        out, errors = process.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(process.returncode, expect, errors)
        return out, errors

    def test_a_server_serves_one_client_and_ends(self):
        for transport, path in (("auto", "shm"), ("tcp", "tcp")):
            for test in ("send_lat", "write_bw", "exchange_bw"):
                with self.subTest(transport=transport, test=test):
                    server, address = self.start_server(test, "--transport", transport)
                    self.assertRegex(address, r"^(sluice|tcp)://127\.0\.0\.1:\d+$")
                    document = self.perf(test, address, "-s", "4K", "-n", "30")
                    self.assertEqual(document["results"][0]["transport"], path)
                    self.assertEqual(document["environment"]["server_version"], document["environment"]["version"])
                    out, errors = self.finish(server)
                    self.assertEqual(out, "")
                    self.assertRegex(errors, rf"^sluice perf: served .+ by {path} for \d+\.\d s; the client has the figures\n$")

    def test_a_server_follows_its_client_over_several_connections(self):
        server, address = self.start_server("write_bw", "--transport", "tcp")
        document = self.perf("write_bw", address, "-s", "4K", "-n", "30", "--qps", "4")
        self.assertEqual(document["results"][0]["qps"], 4)
        self.assertEqual(len(document["results"][0]["bytes_by_qp"]), 4)
        self.finish(server)

    def test_host_and_port_are_an_address(self):
        server, address = self.start_server("send_lat")
        port = address.rsplit(":", 1)[1]
        self.perf("send_lat", "127.0.0.1", "-p", port, "-n", "20")
        self.finish(server)

    def test_shared_memory_has_names_instead_of_ports(self):
        name = f"shm:nobody-{secrets.token_hex(8)}"
        port = str(20000 + secrets.randbelow(40000))  # only a part of the name
        server = self.start("perf", "read_lat", "--transport", "shm", "-p", port)
        self.assertIn(f"listening at shm:sluice-perf-{port}", server.stderr.readline())
        done = self.run_command("perf", "read_lat", name, expect=1)
        self.assertIn(name.split(":")[1], done.stderr)
        self.perf("read_lat", "localhost", "--transport", "shm", "-p", port, "-n", "20")
        self.finish(server)

    def test_a_server_that_goes_on_keeps_nothing_of_its_clients(self):
        server, address = self.start_server("exchange_lat", "--forever")
        counts = []
        for _ in range(3):
            self.perf("exchange_lat", address, "-s", "300K", "-n", "20")
            self.assertIn("sluice perf: served ", server.stderr.readline())
            # A client that is refused is served, too: after it, the last one is gone for good.
            self.run_command("perf", "send_lat", address, "-n", "5", expect=1)
            self.assertIn("start both with the same test", server.stderr.readline())
            counts.append(descriptors(server))
        # Extents of the server's arena stay for its next client; its sockets do not.
        self.assertEqual(counts[1], counts[2])
        self.assertIsNone(server.poll())

    def test_both_sides_say_that_they_run_different_tests(self):
        server, address = self.start_server("write_lat")
        done = self.run_command("perf", "send_lat", address, "-n", "5", expect=1)
        self.assertIn("start both with the same test", done.stderr)
        _, errors = self.finish(server, expect=1)
        self.assertIn("write_lat", errors)

    def test_damage_is_an_error_at_the_side_that_found_it(self):
        server, address = self.start_server("send_bw")
        self.run_command("perf", "send_bw", address, "-s", "4K", "-n", "20", "--corrupt", expect=4)
        self.finish(server, expect=4)

    def test_a_server_whose_client_is_killed_ends_with_a_failure(self):
        server, address = self.start_server("send_lat")
        client = self.start("perf", "send_lat", address, "-D", "1000")
        self.assertIn("#bytes", client.stdout.readline())
        client.kill()
        client.wait(timeout=command.LIMIT_SECONDS)
        self.finish(server, expect=1)

    def test_a_client_whose_server_is_killed_ends_with_a_failure(self):
        server, address = self.start_server("exchange_bw")
        client = self.start("perf", "exchange_bw", address, "-s", "64K", "-D", "1000")
        self.assertIn("#bytes", client.stdout.readline())
        server.kill()
        _, errors = self.finish(client, expect=1)
        self.assertIn("sluice perf: ", errors)

    def test_nobody_there_is_a_failure_that_names_the_address(self):
        server, address = self.start_server("send_lat")
        server.kill()
        server.wait(timeout=command.LIMIT_SECONDS)
        done = self.run_command("perf", "send_lat", address, expect=1)
        self.assertIn(address, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_the_second_process_of_self_dies_with_the_first(self):
        process = self.start("perf", "send_lat", "--self", "--transport", "shm", "-D", "1000")
        self.assertIn("#bytes", process.stdout.readline())
        second = only_child(process)
        process.kill()
        process.wait(timeout=command.LIMIT_SECONDS)
        # An orphan is ours now.
        pid, status = os.waitpid(second, 0)
        self.assertEqual(pid, second)
        self.assertEqual(os.WTERMSIG(status), signal.SIGKILL)

    def test_self_ends_when_its_second_process_is_killed(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport=transport):
                process = self.start("perf", "write_bw", "--self", "--transport", transport, "-D", "1000")
                self.assertIn("#bytes", process.stdout.readline())
                os.kill(only_child(process), signal.SIGKILL)
                self.finish(process, expect=1)


if __name__ == "__main__":
    command.main()
