"""Reads what one benchmark command printed or wrote, into records of one form.

A record is {"identity": {...}, "metrics": {...}, "verified": True | False | "unchecked"}.
Knows the three formats (a bare program's line, sluice.perf/1, sluice.demo/1) and
nothing of rounds, ratios or reports.

Metrics: one_way_ns (the median), one_way_p99_ns, seconds (of one iteration or step),
step_seconds (of one step of a parameter server, weights and gradients),
bytes_per_second, messages_per_second, cpu_seconds_per_gb, cpu_ns_per_message (of both ends), kernel_copied_percent (of
what was to be sent without a copy), interrupts_per_message and switches_per_message (of the whole
machine), communication_percent (of the time), link_share, jain_index (fairness of shares, 1 is
equal), queued_bytes (at most, in a switch), found_share (of the best setting, by a tuner),
run_share (of an exhaustive search's runs), speed_up (by more workers), kernel_functions (that a
send enters), cpu_percent_client and cpu_percent_server (of one processor). A record that did not
verify has no metrics at all.
"""
import json
import math

# Metrics where more is better; all others are costs.
MORE_IS_BETTER = {
    "bytes_per_second", "messages_per_second", "link_share", "jain_index", "found_share",
    "speed_up"}
METRICS = {
    "one_way_ns", "one_way_p99_ns", "seconds", "bytes_per_second", "cpu_seconds_per_gb",
    "cpu_ns_per_message", "step_seconds", "kernel_copied_percent", "interrupts_per_message",
    "switches_per_message", "communication_percent", "link_share", "jain_index", "queued_bytes",
    "found_share", "run_share", "speed_up", "kernel_functions", "cpu_percent_client",
    "cpu_percent_server", "messages_per_second"}

PERF_SCHEMA = "sluice.perf/1"
DEMO_SCHEMA = "sluice.demo/1"


class Unreadable(Exception):
    """The output is not one of the formats; the message says what was wrong."""


def parse(text):
    """Records of one command's output: a whole JSON document, or its last JSON line."""
    try:
        document = json.loads(text)
    except ValueError:
        document = _last_json_line(text)
    if not isinstance(document, dict):
        raise Unreadable("the output is not a JSON object")
    schema = document.get("schema")
    if schema == PERF_SCHEMA:
        return [_from_perf(result) for result in document.get("results", [])]
    if schema == DEMO_SCHEMA:
        return [_from_demo(result) for result in document.get("results", [])]
    if schema is not None:
        raise Unreadable(f"unknown schema {schema!r}")
    return [_from_line(document)]


def select(records, wanted):
    """The one record whose identity has all of `wanted`."""
    matching = [record for record in records
                if all(record["identity"].get(key) == value for key, value in wanted.items())]
    if len(matching) != 1:
        raise Unreadable(f"{len(matching)} of {len(records)} results match {wanted}")
    return matching[0]


def _last_json_line(text):
    for line in reversed(text.splitlines()):
        if line.lstrip().startswith("{"):
            try:
                return json.loads(line)
            except ValueError as error:
                raise Unreadable(f"broken JSON line: {error}") from error
    raise Unreadable("no JSON in the output")


def _record(identity, metrics, verified):
    """Drops every figure of a payload that did not verify."""
    if verified is not True and verified != "unchecked":
        return {"identity": identity, "metrics": {}, "verified": False}
    known = {
        name: value
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)}
    return {"identity": identity, "metrics": known, "verified": verified}


def _p50(value):
    """A distribution's median, or the number itself."""
    return value.get("p50", value.get("median")) if isinstance(value, dict) else value


def _product(*factors):
    return None if None in factors else math.prod(factors)


def _from_line(line):
    identity = {key: line[key] for key in ("name", "mode", "size_bytes") if key in line}
    metrics = {
        "one_way_ns": _p50(line.get("one_way_ns")),
        "seconds": _p50(line.get("seconds")),
        "bytes_per_second": line.get("bytes_per_second"),
        "messages_per_second": line.get("messages_per_second"),
        "cpu_seconds_per_gb": line.get("cpu_seconds_per_gb"),
        "cpu_ns_per_message": line.get("cpu_ns_per_message"),
        "kernel_copied_percent": line.get("kernel_copied_percent"),
        **{
            name: line.get(name)
            for name in (
                "link_share", "jain_index", "queued_bytes", "found_share", "run_share", "speed_up",
                "kernel_functions")},
        "communication_percent": _product(line.get("communication_share"), 100),
        "interrupts_per_message": line.get("interrupts_per_message"),
        "switches_per_message": line.get("switches_per_message"),
    }
    return _record(identity, metrics, line.get("verified", False))


def _from_perf(result):
    identity = {key: result[key] for key in ("test", "transport", "size_bytes") if key in result}
    # An empty message has no byte to compare.
    verified = result.get("errors") == 0 and (
        result.get("verified_bytes", 0) > 0 or result.get("size_bytes") == 0)
    metrics = {
        "one_way_ns": _p50(result.get("latency_ns")),
        "bytes_per_second": result.get("bytes_per_second"),
        "messages_per_second": _rate(result),
        "one_way_p99_ns": (result.get("latency_ns") or {}).get("p99"),
        **{
            f"cpu_percent_{end}": _product(used.get("cpu_share"), 100)
            for end, used in _ends(result).items()},
        # ns per byte and s per GB (10^9) are the same number.
        "cpu_seconds_per_gb": result.get("cpu_ns_per_byte"),
        "cpu_ns_per_message": _product(
            result.get("cpu_ns_per_byte"), result.get("size_bytes") or None)}
    return _record(identity, metrics, verified)


def _rate(result):
    """Of a test that has one; an empty message has no byte to count by."""
    size, bytes_per_second = result.get("size_bytes"), result.get("bytes_per_second")
    return bytes_per_second / size if size and bytes_per_second is not None else None


def _ends(result):
    used = result.get("used")
    return (
        {end: used[end] for end in ("client", "server") if isinstance(used.get(end), dict)}
        if isinstance(used, dict)
        else {})


def _from_demo(result):
    identity = {key: result[key] for key in ("mode", "path", "workers", "servers") if key in result}
    metrics = {
        "seconds": _p50(result.get("pull_seconds") or result.get("step_seconds")),
        "step_seconds": _p50(result.get("step_seconds")),
        "bytes_per_second": result.get("bytes_per_second"),
        "cpu_seconds_per_gb": result.get("cpu_seconds_per_gb"),
    }
    return _record(identity, metrics, result.get("verified", False))
