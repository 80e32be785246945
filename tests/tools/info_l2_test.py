#!/usr/bin/env python3
"""`sluice info` about plain Ethernet: interfaces, the right to packet sockets, peers' names, counters by cause."""
import json
import pathlib

import command
import wire


class Ethernet(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.wire = wire.Wire()
        self.addCleanup(self.wire.close)

    def info(self, within=(), **extra):
        ethernet = json.loads(self.run_command("info", "--json", within=within, **extra).stdout)["ethernet"]
        return ethernet, {interface["name"]: interface for interface in ethernet["interfaces"]}

    def peers(self, text):
        path = self.file("peers")
        pathlib.Path(path).write_text(text, encoding="ascii")
        return path

    def test_interfaces_are_told_with_what_keeps_them_from_being_used(self):
        ethernet, interfaces = self.info()
        self.assertTrue(ethernet["packet_sockets"])
        left = interfaces["left"]
        self.assertEqual((left["mac"], left["mtu_bytes"], left["up"], left["carrier"], left["usable"], left["obstacle"]),
                         (wire.LEFT_MAC, 1500, True, True, True, None))
        self.assertTrue(interfaces["lo"]["loopback"])
        # As clouds and tunnels have it.
        wire.ip("link", "set", "left", "mtu", "1400")
        self.assertTrue(self.info()[1]["left"]["usable"])
        wire.ip("link", "set", "right", "down", within=self.wire.there)
        self.assertIn("no carrier", self.info()[1]["left"]["obstacle"])
        wire.ip("link", "set", "left", "down")
        self.assertIn("sudo ip link set left up", self.info()[1]["left"]["obstacle"])
        wire.ip("link", "set", "left", "mtu", "1000")
        self.assertIn("mtu 1500", self.info()[1]["left"]["obstacle"])
        lines = self.run_command("info").stdout.splitlines()
        self.assertTrue(any(line.startswith(f"Ethernet   left: {wire.LEFT_MAC}, MTU 1000, not usable: ") for line in lines), lines)
        self.assertFalse(any("Ethernet   lo:" in line for line in lines))
        self.assertIn("reaches this machine only", self.run_command("info", "--explain").stdout)

    def test_without_the_capability_it_says_so_with_the_remedy(self):
        without = ("setpriv", "--bounding-set=-net_raw")
        ethernet, interfaces = self.info(within=without)
        self.assertFalse(ethernet["packet_sockets"])
        self.assertIn("setcap cap_net_raw+ep /", ethernet["obstacle"])
        self.assertTrue(interfaces["left"]["usable"])  # the interface itself is
        self.assertIn("usable with CAP_NET_RAW", self.run_command("info", within=without).stdout)

    def test_peers_are_told_with_the_line_that_names_them(self):
        path = self.peers(f"{wire.RIGHT_MAC} worker3 w3\nleft/02:00:00:00:00:0c other\nnonsense here\n")
        ethernet, _ = self.info(SLUICE_PEERS=path)
        own = [peer for peer in ethernet["peers"] if peer["from"].startswith(path)]
        self.assertEqual(own, [{"name": "worker3", "mac": wire.RIGHT_MAC, "interface": None, "from": f"{path}:1"},
                               {"name": "w3", "mac": wire.RIGHT_MAC, "interface": None, "from": f"{path}:1"},
                               {"name": "other", "mac": "02:00:00:00:00:0c", "interface": "left", "from": f"{path}:2"}])
        self.assertEqual(ethernet["peer_problems"], [f"{path}:3: 'nonsense' is no MAC address, as 02:00:00:00:00:0b is"])
        text = self.run_command("info", "--explain", SLUICE_PEERS=path).stdout
        self.assertIn(f"peer       other is 02:00:00:00:00:0c by left ({path}:2)", text)
        self.assertIn(f"peers      not read: {path}:3: ", self.run_command("info", SLUICE_PEERS=path).stdout)

    def test_a_peer_is_reached_by_its_name(self):
        path = self.peers(f"{wire.RIGHT_MAC} worker3\n{wire.LEFT_MAC} me\n02:00:00:00:00:0c nobody\nbad line\n")
        server = self.start("perf", "send_lat", "--transport", "l2", "-p", "0", within=self.wire.there)
        port = server.stderr.readline().split()[-1].rsplit(":", 1)[1]
        for address in (f"l2://left/worker4:{port}", f"l2://left/nobody:{port}"):
            done = self.run_command("perf", "send_lat", address, "-n", "20", expect=1, SLUICE_PEERS=path)
            wanted = f"{path}:4: 'bad' is no MAC address" if "worker4" in address else "nobody answers at"
            self.assertIn(wanted, done.stderr)
        self.run_command("perf", "send_lat", f"l2://left/Worker3:{port}", "-n", "20", SLUICE_PEERS=path)
        _, errors = server.communicate(timeout=command.LIMIT_SECONDS)
        self.assertEqual(server.returncode, 0, errors)
        # A server's own address may be a name, too; another's is refused.
        done = self.run_command("perf", "send_lat", "--transport", "l2", "--bind", "left/worker3", expect=1, SLUICE_PEERS=path)
        self.assertIn(f"left has the address {wire.LEFT_MAC}, not worker3", done.stderr)
        done = self.run_command("perf", "send_lat", "l2://left/worker3:7", expect=1, SLUICE_PEERS="/nowhere/peers")
        self.assertIn("/nowhere/peers: cannot be read: No such file", done.stderr)

    def test_counters_are_listed_by_cause(self):
        lines = self.run_command("info", "--counters").stdout.splitlines()
        names = {line.split()[1] for line in lines if line.startswith("counter ")}
        for name in ("l2.frames_of_nobody", "l2.refusals_held_back", "l2.frames_not_taken", "l2.access_refused", "l2.half_open_dropped"):
            self.assertIn(name, names)
        self.assertNotIn("counter ", self.run_command("info").stdout)


if __name__ == "__main__":
    command.main()
