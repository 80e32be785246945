#!/usr/bin/env python3
"""`sluice info`: what it finds, and that it says why."""
import ctypes
import json
import os
import pathlib

import command


class Info(command.CommandTest):
    def info(self, **extra):
        return json.loads(self.run_command("info", "--json", **extra).stdout)

    def test_json_has_what_a_bug_report_needs(self):
        info = self.info()
        self.assertEqual(info["schema"], "sluice.info/1")
        for name in ("version", "host", "cpu", "memory", "arena", "limits", "paths", "rdma", "counters"):
            self.assertIn(name, info)
        self.assertGreater(info["memory"]["total_bytes"], info["arena"]["extent_bytes"])
        self.assertGreater(info["limits"]["open_files"], 0)
        self.assertIn(info["arena"]["pages"].split()[0], ("plain", "transparent", "hugetlb"))
        paths = {path["path"]: path for path in info["paths"]}
        self.assertTrue(paths["shm"]["usable"])
        self.assertEqual(paths["shm"]["copies_per_fetch"], 0)
        self.assertEqual(paths["tcp"]["copies_per_fetch"], 2)
        # Here there may be an RDMA device or none: what is said of the path and of the devices is one story.
        self.assertEqual(paths["verbs"]["usable"], info["rdma"]["usable"])
        if info["rdma"]["usable"]:
            self.assertIn(info["rdma"]["devices"][0]["name"], paths["verbs"]["why"])
        else:
            self.assertEqual(paths["verbs"]["why"], info["rdma"]["obstacle"])
        self.assertTrue(all(path["why"] for path in info["paths"]))
        self.assertGreaterEqual(info["counters"]["allocator.extents_added"], 1)

    def test_small_pages_come_with_what_gets_larger_ones(self):
        arena = self.info()["arena"]
        if self.info()["memory"]["hugetlb_free_pages"] == 0:
            self.assertEqual(arena["larger_pages"] != "", arena["pages"] == "plain pages")
        self.assertEqual(arena["page_bytes"], os.sysconf("SC_PAGESIZE") if arena["pages"] == "plain pages" else 2 << 20)
        self.assertIn(f"{arena['pages']} of {arena['page_bytes'] >> 10} KiB", self.run_command("info").stdout)
        if arena["pages"] == "hugetlb pages":
            return  # those come from a pool of their own, whatever the next line forbids
        libc = ctypes.CDLL(None, use_errno=True)
        pr_set_thp_disable = 41
        self.assertEqual(libc.prctl(pr_set_thp_disable, 1, 0, 0, 0), 0)
        try:
            refused = self.info()["arena"]
            text = self.run_command("info").stdout
        finally:
            libc.prctl(pr_set_thp_disable, 0, 0, 0, 0)
        self.assertEqual(refused["pages"], "plain pages")
        self.assertIn("shmem_enabled", refused["larger_pages"])
        self.assertIn("tee /sys/kernel/mm/transparent_hugepage/shmem_enabled", text)

    def test_memory_nodes_and_where_the_arena_lies_are_told(self):
        numa = self.info()["numa"]
        self.assertEqual(numa["arena"], "process")
        if numa["nodes"] is None:
            self.assertTrue(numa["obstacle"])
            return
        first = numa["nodes"][0]
        placed = self.info(SLUICE_ARENA_NUMA=f"node:{first}")["numa"]
        self.assertEqual((placed["arena"], placed["first_page"]), (f"node:{first}", first))
        self.assertIn(f"the arena's pages: node:{first}, the first on node {first}", self.run_command("info", SLUICE_ARENA_NUMA=f"node:{first}").stdout)
        for wrong, part in (("node:900", "there is no memory node 900"), ("nowhere", "use process, local, interleave or node:N")):
            self.assertIn(part, self.run_command("info", expect=1, SLUICE_ARENA_NUMA=wrong).stderr)

    def test_the_arena_limit_says_where_it_comes_from(self):
        self.assertEqual(self.info()["arena"]["limit_from"], "half of this machine's memory")
        limited = self.info(SLUICE_ARENA_LIMIT="96M")["arena"]
        self.assertEqual(limited["limit_bytes"], 96 << 20)
        self.assertEqual(limited["limit_from"], "SLUICE_ARENA_LIMIT")

    def test_a_disk_without_room_for_the_output_is_told(self):
        batch = self.file("batch")
        pathlib.Path(batch).write_text("send_lat --self --transport shm -n 20\n", encoding="ascii")
        # More than a buffer, and less.
        for words in (("info",), ("info", "--json"), ("info", "--settings"), ("explain",), ("explain", "kTryAgain"), ("graph", "make", "--model", "vgg16"),
                      ("manual", "perf"), ("perf", "--batch", batch, "--format", "openmetrics"), ("perf", "send_lat", "--self", "-a", "-n", "20", "--histogram")):
            with self.subTest(words=words):
                done = self.run_command(*words, expect=1, within=("sh", "-c", 'exec "$@" >/dev/full', "sh"))
                self.assertIn("stdout cannot be written", done.stderr)

    def test_a_control_groups_memory_is_what_there_is(self):
        # As in a container: the machine has more, and the process may not have it.
        group = ("mount -t tmpfs tmpfs /sys/fs/cgroup && echo 419430400 >/sys/fs/cgroup/memory.max && echo 104857600 >/sys/fs/cgroup/memory.current && "
                 'exec "$@"')
        within = ("unshare", "--mount", "sh", "-c", group, "sh")
        info = json.loads(self.run_command("info", "--json", within=within).stdout)
        self.assertEqual((info["arena"]["limit_bytes"], info["arena"]["limit_from"]), (200 << 20, "half of what this control group may have"))
        self.assertEqual(info["memory"]["available_bytes"], 300 << 20)
        self.assertGreater(info["memory"]["total_bytes"], 400 << 20)
        done = self.run_command("perf", "send_bw", "--self", "--transport", "shm", "-s", "16M", "-t", "16", expect=1, within=within)
        self.assertIn("needs 512 MiB of memory, 300 MiB are available", done.stderr)

    def test_a_limit_that_does_not_parse_names_itself(self):
        done = self.run_command("info", expect=1, SLUICE_ARENA_LIMIT="lots")
        for part in ("SLUICE_ARENA_LIMIT", "lots", "example"):
            self.assertIn(part, done.stderr)

    def test_explain_gives_a_reason_for_every_path(self):
        lines = [line for line in self.run_command("info", "--explain").stdout.splitlines() if line.startswith("path ")]
        self.assertGreaterEqual(len(lines), 5)
        self.assertTrue(all(": " in line for line in lines))
        plain = [line for line in self.run_command("info").stdout.splitlines() if line.startswith("path ")]
        self.assertTrue(all(": " not in line for line in plain))

    def test_a_threshold_its_value_and_its_meaning_stand_apart(self):
        lines = [line for line in self.run_command("info", "--explain").stdout.splitlines() if line.startswith("threshold ")]
        self.assertTrue(any(" frames " in line for line in lines), lines)
        for line in lines:
            self.assertRegex(line, r"^threshold  \S+ +\S+( (frames|bytes|ns|us|ms|[KMG]iB))? +\S")
            self.assertNotRegex(line, r"(frames|iB)[a-z]")

    def test_explain_says_which_carriers_are_left_to_who_asks_for_them(self):
        for arguments in (("--explain",), ("--explain", "192.0.2.1")):
            line, = [line for line in self.run_command("info", *arguments).stdout.splitlines() if line.startswith("sluice://")]
            for part in ("shm, rdma or tcp", "l2://udp/"):
                self.assertIn(part, line)

    def test_a_machine_without_rdma_devices_says_how_to_get_one(self):
        info = self.info()
        if info["rdma"]["devices"]:
            self.skipTest("this machine has an RDMA device; the guest's test is for it")
        self.assertFalse(info["rdma"]["usable"])
        for part in ("modprobe", "sluice lab"):
            self.assertIn(part, info["rdma"]["obstacle"])
        self.assertIn("modprobe", self.run_command("info", "--explain").stdout)

    def test_a_moderation_that_was_asked_for_is_told_and_one_that_cannot_be_meant_too(self):
        self.assertIsNone(self.info()["rdma"]["moderation"])
        self.assertNotIn("SLUICE_RDMA_MODERATION", self.run_command("info", "--explain").stdout)
        for asked, understood in (("auto", True), ("16/8", True), ("16", False), ("Auto", False)):
            self.assertEqual(self.info(SLUICE_RDMA_MODERATION=asked)["rdma"]["moderation"], {"asked": asked, "understood": understood})
            line, = [line for line in self.run_command("info", "--explain", SLUICE_RDMA_MODERATION=asked).stdout.splitlines() if line.startswith("moderation ")]
            self.assertIn(asked, line)
            self.assertEqual("is ignored" in line, not understood)

    def test_the_way_to_a_host_has_a_reason(self):
        for arguments in (("--explain", "192.0.2.1"), ("--explain=192.0.2.1",)):
            lines = [line for line in self.run_command("info", *arguments).stdout.splitlines() if line.startswith("towards ")]
            self.assertEqual(len(lines), 1)
            self.assertRegex(lines[0], r"towards +192\.0\.2\.1 (by \S+|not by RDMA): \S+")
        route = json.loads(self.run_command("info", "--json", "--explain", "192.0.2.1").stdout)["rdma"]["route"]
        self.assertEqual(route["host"], "192.0.2.1")
        self.assertTrue(route["why"])
        self.assertNotIn("route", self.info()["rdma"])
        self.assertNotIn("towards", self.run_command("info", "--explain").stdout)

    def test_the_way_to_a_host_has_its_address_and_the_path_that_would_be_taken(self):
        way = {found["check"]: found["text"] for found in json.loads(self.run_command("info", "--json", "--explain", "localhost").stdout)["way"]}
        self.assertRegex(way["name"], r"^localhost is (127\.0\.0\.1|::1)$")
        self.assertIn("shm", way["path"])
        lines = [line for line in self.run_command("info", "--explain", "nobody.invalid").stdout.splitlines() if line.startswith("way ")]
        self.assertEqual(len(lines), 1)
        self.assertIn("'nobody.invalid' has no address", lines[0])
        self.assertNotIn("way", self.info())

    def test_settings_say_where_each_value_comes_from_and_the_document_has_them_all(self):
        settings = {each["name"]: each for each in json.loads(self.run_command("info", "--settings", "--json", SLUICE_LOG="info").stdout)["settings"]}
        self.assertEqual((settings["SLUICE_LOG"]["value"], settings["SLUICE_PEERS"]["value"]), ("info", None))
        lines = self.run_command("info", "--settings", SLUICE_LOG="info").stdout
        self.assertRegex(lines, r"(?m)^SLUICE_LOG +info \(environment\)$")
        self.assertRegex(lines, r"(?m)^SLUICE_PEERS +/etc/sluice/peers \(default\)$")
        lines = self.run_command("info", "--settings", SLUICE_LOG="loud").stdout
        self.assertIn("loud (environment); not in force: SLUICE_LOG cannot be 'loud'; it can be ", lines)
        lines = self.run_command("info", "--settings", SLUICE_TUNING="foo=1").stdout
        self.assertIn("foo=1 (environment); not in force: SLUICE_TUNING: 'foo=1' sets none of", lines)
        lines = self.run_command("info", "--settings", SLUICE_CACHE_DIR="rel").stdout
        self.assertIn("rel (environment); not in force: SLUICE_CACHE_DIR cannot be 'rel'; it can be an absolute path", lines)
        told = self.run_command("info", "--settings-document").stdout
        self.assertTrue(pathlib.Path("docs/settings.md").read_text(encoding="utf-8").endswith(told), "docs/settings.md is not what `sluice info --settings-document` prints")
        for name in settings:
            self.assertIn(f"| `{name}` |", told)

    def test_a_wrong_flag_is_a_usage_error(self):
        done = self.run_command("info", "--bogus", expect=2)
        self.assertIn("--bogus", done.stderr)
        self.assertIn("example", done.stderr)


if __name__ == "__main__":
    command.main()
