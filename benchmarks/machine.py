"""What a reader must know about the machine to judge a figure; steal time.

Reads /proc and /sys only. Anything the kernel does not tell is "unknown".
"""
import os
import platform


def _read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def _cpu_model():
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def describe():
    return {
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "clocksource": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "thp": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "thp_shmem": _read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "lo_mtu": _read("/sys/class/net/lo/mtu"),
        "congestion_control": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "load": _read("/proc/loadavg"),
    }


def parse_cpu_ticks(stat_text):
    """(steal, total) ticks of the first line of /proc/stat; guest time is in user time."""
    fields = [int(field) for field in stat_text.splitlines()[0].split()[1:9]]
    fields += [0] * (8 - len(fields))
    return fields[7], sum(fields)


class StealMeter:
    """Percentage of all CPUs' time that the host took since the last reading."""

    def __init__(self):
        self.steal, self.total = parse_cpu_ticks(_read("/proc/stat"))

    def percent_since_last(self):
        steal, total = parse_cpu_ticks(_read("/proc/stat"))
        elapsed = total - self.total
        percent = 100.0 * (steal - self.steal) / elapsed if elapsed > 0 else 0.0
        self.steal, self.total = steal, total
        return percent
