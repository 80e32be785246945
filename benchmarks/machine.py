"""What a reader must know about the machine to judge a figure; who else used it.

Reads /proc and /sys only. Anything the kernel does not tell is "unknown".
"""
import os
import platform
import resource


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


def rdma_devices():
    try:
        return sorted(os.listdir("/sys/class/infiniband"))
    except OSError:
        return []


def has_module():
    """Whether this kernel has ours: it belongs into a guest of the lab."""
    return os.path.isdir("/sys/module/sluice")


def _mitigations():
    """What the kernel pays for: "name: how" of each vulnerability that it works around."""
    folder = "/sys/devices/system/cpu/vulnerabilities"
    try:
        found = {name: _read(f"{folder}/{name}") for name in sorted(os.listdir(folder))}
    except OSError:
        return "unknown"
    return (
        ", ".join(f"{name}: {how}" for name, how in found.items() if how.startswith("Mitigation"))
        or "none")


def _memory_gib():
    kib = next(
        (
            line.split()[1]
            for line in _read("/proc/meminfo").splitlines()
            if line.startswith("MemTotal")),
        "0")
    return round(int(kib) / (1 << 20), 1)


def describe():
    return {
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "mitigations": _mitigations(),
        "rdma_devices": ", ".join(rdma_devices()) or "none",
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "clocksource": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "thp": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "thp_shmem": _read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "lo_mtu": _read("/sys/class/net/lo/mtu"),
        "default_qdisc": _read("/proc/sys/net/core/default_qdisc"),
        "congestion_control": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "load": _read("/proc/loadavg"),
    }


def parse_cpu_ticks(stat_text):
    """{"steal","busy","total"} ticks of all CPUs (first line of /proc/stat).

    Guest time is inside user time and not counted again.
    """
    fields = [int(field) for field in stat_text.splitlines()[0].split()[1:9]]
    fields += [0] * (8 - len(fields))
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return {"steal": steal, "busy": user + nice + system + irq + softirq, "total": sum(fields)}


class Disturbance:
    """What share of all CPUs' time went elsewhere since the last reading, in percent.

    `steal`: to the host. `foreign`: to processes that are not ours (softirq time
    that nobody is charged for is in it too, so a few percent mean nothing).
    """

    def __init__(self):
        self.ticks, self.own_seconds = self._read()

    @staticmethod
    def _read():
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return (parse_cpu_ticks(_read("/proc/stat")),
                sum(each.ru_utime + each.ru_stime for each in used))

    def since_last(self):
        ticks, own_seconds = self._read()
        spent = {key: ticks[key] - self.ticks[key] for key in ticks}
        own_ticks = (own_seconds - self.own_seconds) * os.sysconf("SC_CLK_TCK")
        self.ticks, self.own_seconds = ticks, own_seconds
        total = max(spent["total"], 1)
        return {"steal": round(100.0 * spent["steal"] / total, 2),
                "foreign": round(max(100.0 * (spent["busy"] - own_ticks) / total, 0.0), 1)}
