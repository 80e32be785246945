"""How fast this machine's time stamp counter counts: what an emulated guest reads is that counter.

A guest that boots on a busy machine measures it against an emulated timer while its processor stands still, and may be
wrong by a factor: 298 MHz for 2596 were seen, and a clock that ran nine times as fast as ours. So it is told.
"""
import ctypes
import mmap
import platform
import time

# rdtsc; shl rdx, 32; or rax, rdx; ret
_CODE = bytes.fromhex("0f3148c1e2204809d0c3")
_TRIES = 20
# With readings that are off by a microsecond: 50 millionths.
_APART_SECONDS = 0.02


def _reader():
    """A function that reads the counter, or None where there is none or no memory may be executed."""
    if platform.machine() != "x86_64":
        return None
    try:
        memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except (OSError, ValueError):
        return None
    memory.write(_CODE)
    function = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    function.memory = memory  # as long as the function
    return function


def _sample(read):
    """(nanoseconds, ticks) at one moment: of several tries the one that nothing came between."""
    tries = []
    for _ in range(_TRIES):
        before = time.monotonic_ns()
        ticks = read()
        after = time.monotonic_ns()
        tries.append((after - before, (before + after) // 2, ticks))
    return min(tries)[1:]


def frequency_khz():
    """None if it cannot be known. Blocks: for 20 ms."""
    read = _reader()
    if read is None:
        return None
    begun, first = _sample(read)
    time.sleep(_APART_SECONDS)
    ended, last = _sample(read)
    return round((last - first) * 1_000_000 / (ended - begun))
