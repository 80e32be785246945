#!/usr/bin/env python3
"""What of a kernel's log, and of the census of RDMA objects, makes a run fail: recorded logs."""
import pathlib
import unittest

import modules
import verdict

LOGS = pathlib.Path(__file__).parent / "logs"
CENSUS = "0: rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0 srq 0 "


def complaints(name):
    return verdict.complaints((LOGS / f"{name}.log").read_text(encoding="utf-8"))


class Verdict(unittest.TestCase):
    def test_a_clean_boot_under_emulation_is_clean(self):
        self.assertEqual(complaints("clean_boot"), [])

    def test_a_command_that_crashes_is_no_fault_of_the_kernel(self):
        self.assertEqual(complaints("command_crashed"), [])

    def test_each_kind_of_complaint_is_found_and_quoted(self):
        for name, quoted in (("warning", "rxe_pool.c:268"), ("oops", "NULL pointer"), ("hung_task", "blocked for more than 60"), ("kasan", "slab-use-after-free"),
                             ("lockdep", "circular locking")):
            with self.subTest(log=name):
                self.assertIn(quoted, complaints(name)[0])

    def test_what_user_mode_linux_itself_does_wrong_is_known_and_nothing_else_is(self):
        self.assertEqual(complaints("user_mode_flush"), [])
        text = (LOGS / "user_mode_flush.log").read_text(encoding="utf-8")
        for other in (text.replace("lib/maple_tree.c", "drivers/infiniband/core/cm.c"), text.replace("force_flush_all", "cm_destroy_id")):
            self.assertEqual(verdict.complaints(other), ["WARNING: suspicious RCU usage"])

    def test_complaints_in_one_line(self):
        for line in ("watchdog: BUG: soft lockup - CPU#1 stuck for 61s! [ib_send_bw:355]", "Kernel panic - not syncing: Attempted to kill init!",
                     "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", "rcu: INFO: rcu_preempt self-detected stall on CPU",
                     "unregister_netdevice: waiting for lab0 to become free. Usage count = 2", "kernel BUG at mm/slub.c:435!",
                     "general protection fault, probably for non-canonical address 0xdead000000000122: 0000 [#1] PREEMPT SMP",
                     "refcount_t: underflow; use-after-free.", "UBSAN: shift-out-of-bounds in drivers/x.c:5:6", "kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
                     "Out of memory: Killed process 300 (sluice) total-vm:9000kB"):
            with self.subTest(line=line):
                self.assertEqual(verdict.complaints(f"[    1.0] {line}\n"), [f"[    1.0] {line}"])

    def test_an_unchanged_census_leaves_nothing(self):
        self.assertEqual(verdict.left_over(CENSUS, CENSUS), {})

    def test_what_is_left_is_named_with_its_device(self):
        self.assertEqual(verdict.left_over(CENSUS, CENSUS.replace("mr 0", "mr 2").replace("qp 1", "qp 4")), {"rxe0 mr": 2, "rxe0 qp": 3})

    def test_a_device_that_was_removed_leaves_nothing(self):
        self.assertEqual(verdict.left_over(CENSUS, ""), {})

    def test_objects_of_a_second_device_are_its_own(self):
        self.assertEqual(verdict.left_over(CENSUS, CENSUS + "1: rxe1: pd 1 cq 1 qp 1 "), {}, "what the kernel itself has on each device")
        self.assertEqual(verdict.left_over(CENSUS, CENSUS + "1: rxe1: pd 2 cq 0 mr 1 "), {"rxe1 pd": 1, "rxe1 mr": 1})


if __name__ == "__main__":
    modules.main()
