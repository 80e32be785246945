#!/usr/bin/env python3
"""The rules hold on the tree as it is."""
import sys
import unittest

sys.dont_write_bytecode = True
import checks  # noqa: E402


class Layering(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.house = checks.House(checks.tree_root())

    def holds(self, check):
        found = list(check(self.house))
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_the_tree_was_found(self):
        self.assertGreater(len(self.house.tree.files), 150)
        self.assertGreater(len(self.house.build.targets), 100)
        self.assertIn("//transport/wire:messages", self.house.build.targets)

    def test_every_include_is_a_direct_dependency(self):
        self.holds(checks.direct_dependencies)

    def test_every_source_file_belongs_to_a_target(self):
        self.holds(checks.orphans)

    def test_rooms_see_only_what_lies_below_them(self):
        self.holds(checks.rooms)

    def test_outside_things_are_reached_through_their_one_door(self):
        self.holds(checks.doors)

    def test_every_public_header_compiles_alone(self):
        self.holds(checks.headers_alone)

    def test_the_core_of_slp_has_no_ring_of_files(self):
        self.holds(checks.cycles)

    def test_no_source_file_is_long(self):
        self.holds(checks.long_files)


if __name__ == "__main__":
    unittest.main(verbosity=2)
