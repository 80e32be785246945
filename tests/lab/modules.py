"""Where the tests find the lab's own modules: first argument of each test, the folder of lab.py."""
import os
import sys
import unittest

sys.dont_write_bytecode = True
LAB = os.path.dirname(os.path.abspath(sys.argv[1])) if len(sys.argv) > 1 else ""
sys.path.insert(0, LAB)


def main():
    assert os.path.exists(os.path.join(LAB, "lab.py")), "usage: TEST.py tools/lab/lab.py"
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
