"""The parameters that can be tuned: names, layers, ranges, and how a value is written.

Knows no node and sets nothing. A value is text, as the kernel shows it: "4096 131072 6291456", "1", "bbr".
"""
import dataclasses
import re

KERNEL, INTERFACE, APPLICATION, LIBRARY = "kernel", "interface", "application", "library"
# sk_buff and its data: below it the kernel raises a buffer by itself (SOCK_MIN_RCVBUF, include/net/sock.h).
LEAST_BUFFER = 2048
MOST_BUFFER = 1 << 30
# The first element of a triple that is pinned: one page, the kernel's own default.
PAGE = 4096
# IPV6_MIN_MTU, include/uapi/linux/ipv6.h: RFC 8200, section 5.
IPV6_LEAST_MTU = 1280


class WrongValue(Exception):
    """Says what a value has to look like."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    name: str
    layer: str
    kind: str  # triple, number, flag, word
    low: int = 0
    high: int = 1
    why_fixed: str = ""  # not empty: shown, never set
    why_low: str = ""  # what a value below `low` would do

    @property
    def of_machine(self):
        """Whether setting it changes the machine, so that it has to be put back."""
        return self.layer in (KERNEL, INTERFACE)

    def checked(self, text):
        """The value in the kernel's spelling. Raises WrongValue."""
        text = " ".join(str(text).split())
        if self.kind == "word":
            if not re.fullmatch(r"[a-z0-9_]{1,15}", text):
                raise WrongValue(f"{self.name}: '{text}' is no name of at most 15 letters, such as reno")
            return text
        if self.kind == "triple":
            return triple_text(parse_triple(text, self.low, self.high, self.name))
        if not re.fullmatch(r"[0-9]{1,12}", text) or not self.low <= int(text) <= self.high:
            why = f"; {self.why_low}" if self.why_low else ""
            raise WrongValue(f"{self.name}: '{text}' is no whole number from {self.low} to "
                             f"{self.high}{why}")
        return str(int(text))  # the kernel takes 010 for octal


def parse_triple(text, low=1, high=MOST_BUFFER, name="triple", most=None):
    """(least, default, most) of "4096 87380 8388608". The kernel takes any order without a word; we do not.

    `most`: net.core.{r,w}mem_max, where the third has to stay below it as the original demands.
    """
    parts = text.split()
    if len(parts) != 3 or not all(re.fullmatch(r"[0-9]{1,12}", part) for part in parts):
        raise WrongValue(f"{name}: '{text}' is no triple such as '4096 87380 8388608'")
    numbers = tuple(int(part) for part in parts)
    if not all(low <= number <= high for number in numbers):
        raise WrongValue(f"{name}: '{text}' is out of range: each from {low} to {high}")
    if list(numbers) != sorted(numbers):
        raise WrongValue(f"{name}: '{text}' is not ascending: least, default and most, in this order")
    if most is not None and numbers[2] > most:
        raise WrongValue(f"{name}: the third of '{text}' is above {most}, which is net.core's maximum")
    return numbers


def triple_text(numbers):
    return " ".join(str(number) for number in numbers)


def pinned(size):
    """A buffer of this size and no other: the kernel's autotuning has no room."""
    return triple_text((min(size, PAGE), size, size))


def raised(size, now):
    """The first element alone, and what must not be below it: the original's own reading."""
    _, default, most = parse_triple(now)
    return triple_text((size, max(size, default), max(size, most)))


def is_pinned(text):
    """Whether a triple leaves the kernel nothing to choose."""
    _, default, most = parse_triple(text)
    return default == most


def _buffers(name):
    return Parameter(f"net.core.{name}", KERNEL, "number", LEAST_BUFFER, MOST_BUFFER)


def _ipv4(name, kind, low=0, high=1):
    return Parameter(f"net.ipv4.{name}", KERNEL, kind, low, high)


def _library(name, low, high):
    """A threshold of sluice itself (docs/tuning.md), by SLUICE_TUNING of the test's own processes."""
    return Parameter(f"sluice.{name}", LIBRARY, "number", low, high)


_HARDWARE = "hardware and its link partner decide it"
REGISTRY = {parameter.name: parameter for parameter in (
    _buffers("rmem_max"), _buffers("rmem_default"), _buffers("wmem_max"), _buffers("wmem_default"),
    _ipv4("tcp_rmem", "triple", 1, MOST_BUFFER), _ipv4("tcp_wmem", "triple", 1, MOST_BUFFER),
    _ipv4("tcp_mem", "triple", 1, 1 << 40), _ipv4("tcp_window_scaling", "flag"), _ipv4("tcp_timestamps", "number", 0, 2),
    _ipv4("tcp_sack", "flag"), _ipv4("tcp_moderate_rcvbuf", "flag"), _ipv4("tcp_slow_start_after_idle", "flag"),
    _ipv4("tcp_keepalive_time", "number", 1, 32767), _ipv4("tcp_congestion_control", "word"),
    _ipv4("tcp_limit_output_bytes", "number", PAGE, MOST_BUFFER), _ipv4("udp_rmem_min", "number", PAGE, MOST_BUFFER),
    # The original lists it. No kernel has it.
    _ipv4("tcp_stack", "number", 0, 1),
    Parameter("interface.mtu", INTERFACE, "number", IPV6_LEAST_MTU, 65535,
              why_low="a smaller one removes the interface's IPv6 addresses and routes, "
                      "and --undo cannot bring them back"),
    Parameter("interface.ring_rx", INTERFACE, "number", 1, 65536),
    Parameter("interface.ring_tx", INTERFACE, "number", 1, 65536),
    Parameter("interface.rx_usecs", INTERFACE, "number", 0, 65535),
    Parameter("interface.tx_usecs", INTERFACE, "number", 0, 65535),
    Parameter("interface.tso", INTERFACE, "flag"), Parameter("interface.gso", INTERFACE, "flag"),
    Parameter("interface.gro", INTERFACE, "flag"),
    Parameter("interface.speed", INTERFACE, "number", 0, 1 << 20, why_fixed=_HARDWARE),
    Parameter("interface.duplex", INTERFACE, "word", why_fixed=_HARDWARE),
    # By setsockopt(2), in the test tool's own sockets: nothing of the machine changes. 0: the kernel decides.
    Parameter("socket.sndbuf", APPLICATION, "number", 0, MOST_BUFFER),
    Parameter("socket.rcvbuf", APPLICATION, "number", 0, MOST_BUFFER),
    _library("shm_eager_bytes", 64, 65536), _library("shm_eager_sleeping_bytes", 64, 65536), _library("tcp_eager_bytes", 64, 65536),
    _library("spin_ns", 0, 1_000_000), _library("l2_batch_frames", 1, 92), _library("stream_copy_bytes", 1 << 18, 1 << 40),
)}
