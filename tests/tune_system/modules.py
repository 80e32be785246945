"""The modules of tools/tune_system, for tests: the folder of the program is their first argument."""
import os
import sys

sys.dont_write_bytecode = True
PROGRAM = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else ""
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.dirname(PROGRAM))
os.environ["PATH"] += ":/usr/sbin:/sbin"
