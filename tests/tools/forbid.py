#!/usr/bin/env python3
"""forbid.py NUMBER COMMAND...: runs COMMAND, for which the system call NUMBER fails with EPERM, as in a container with a seccomp profile."""
import ctypes
import errno
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF: ld [k], jeq k, ret k


def instruction(code, if_true, if_false, k):
    return struct.pack("<HBBI", code, if_true, if_false, k)


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


program = b"".join([instruction(LOAD, 0, 0, 0),  # seccomp_data.nr
                    instruction(EQUAL, 0, 1, int(sys.argv[1])), instruction(RETURN, 0, 0, ERRNO | errno.EPERM), instruction(RETURN, 0, 0, ALLOW)])
prctl = ctypes.CDLL(None, use_errno=True).prctl
for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(Program(4, program)), 0, 0)):
    if prctl(*arguments) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
os.execvp(sys.argv[2], sys.argv[2:])
