#!/usr/bin/env python3
"""`sluice broker` on the command line: what its output does to it."""
import os
import socket
import subprocess
import tempfile

import command

CABLE = 'ip link add left type veth peer name right && ip link set left up && ip link set right up && exec "$@" 2>/dev/full'


class Broker(command.CommandTest):
    def test_a_refusal_that_nobody_can_read_does_not_end_it(self):
        within = ("unshare", "-rn", "sh", "-c", CABLE, "sh")
        if subprocess.run([*within, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("no network namespace: unshare or ip is refused")
        kept = tempfile.TemporaryDirectory(prefix="sluice-broker.")
        self.addCleanup(kept.cleanup)
        path = os.path.join(kept.name, "socket")
        broker = self.start("broker", "--interface", "left", "--path", path, within=within)
        self.assertEqual(broker.stdout.readline(), f"lends packet sockets at left by {path}\n")
        for _ in range(3):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker:
                asker.settimeout(60)
                asker.connect(path)
                asker.send(b"no request")
                self.assertEqual(len(asker.recv(1000)), 256)
        broker.terminate()
        self.assertEqual(broker.wait(60), 0)
        self.assertEqual(os.listdir(kept.name), [])


if __name__ == "__main__":
    command.main()
