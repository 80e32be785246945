#!/usr/bin/env python3
"""`sluice perf --format openmetrics`: text that follows OpenMetrics 1.0, with the figures that the JSON has."""
import json
import pathlib
import re

import command

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
# What a sample's name may add to its family's.
SUFFIXES = {"gauge": {""}, "counter": {"_total"}, "info": {"_info"}, "summary": {"", "_count", "_sum"}}


class BadText(Exception):
    pass


def read_labels(text):
    labels, at = {}, 0
    while text and at < len(text):
        found = LABEL.match(text, at)
        if not found or found[1] in labels:
            raise BadText(f"labels {text!r}")
        labels[found[1]] = found[2].replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
        at = found.end()
        if at < len(text) and text[at] != ",":
            raise BadText(f"labels {text!r}")
        at += 1
    return labels


def parse(text):
    """{family: {"type", "samples": [(name, labels, value)]}}. Raises BadText where a rule of OpenMetrics is broken."""
    if not text.endswith("\n# EOF\n"):
        raise BadText("it does not end with # EOF")
    families, current, seen = {}, None, set()
    for line in text.splitlines()[:-1]:
        meta = re.fullmatch(rf"# (TYPE|UNIT|HELP) ({NAME}) (.*)", line)
        if meta:
            kind, name, value = meta.groups()
            if kind == "TYPE":
                if name in families:
                    raise BadText(f"family {name} comes twice")
                families[name] = {"type": value, "samples": []}
                current = name
            elif name != current or families[name]["samples"]:
                raise BadText(f"{kind} of {name} out of place")
            if kind == "UNIT" and not name.endswith("_" + value):
                raise BadText(f"{name} does not end with its unit, {value}")
            continue
        sample = SAMPLE.fullmatch(line)
        if not sample or current is None:
            raise BadText(f"no sample: {line!r}")
        name, labels, value = sample[1], read_labels(sample[2]), float(sample[3])
        if name.removeprefix(current) not in SUFFIXES[families[current]["type"]] or not name.startswith(current):
            raise BadText(f"{name} is none of {current}")
        identity = (name, tuple(sorted(labels.items())))
        if identity in seen:
            raise BadText(f"{identity} comes twice")
        seen.add(identity)
        families[current]["samples"].append((name, labels, value))
    return families


def value_of(families, wanted, **labels):
    [value] = [value for family in families.values() for sample, found, value in family["samples"] if sample == wanted and labels.items() <= found.items()]
    return value


class OpenMetrics(command.CommandTest):
    def both(self, *arguments):
        path = self.file("result.json")
        done = self.run_command("perf", *arguments, "--format", "openmetrics", "--json", path)
        return parse(done.stdout), json.loads(pathlib.Path(path).read_text(encoding="utf-8"))

    def test_every_size_has_its_figures_in_base_units(self):
        families, document = self.both("send_lat", "--self", "--transport", "shm", "-a", "-n", "5", "--percentiles", "90,99.99")
        self.assertEqual(len(document["results"]), 23)
        for result in document["results"]:
            of = {"test": "send_lat", "transport": "shm", "size_bytes": str(result["size_bytes"])}
            self.assertAlmostEqual(value_of(families, "sluice_perf_bytes_per_second", **of), result["bytes_per_second"], delta=result["bytes_per_second"] * 1e-6)
            self.assertEqual(value_of(families, "sluice_perf_verified_bytes", **of), result["verified_bytes"])
            self.assertEqual(value_of(families, "sluice_perf_latency_seconds_count", **of), 5)
            for quantile, field in (("0", "min"), ("0.5", "p50"), ("0.9", "p90"), ("0.99", "p99"), ("0.999", "p99_9"), ("0.9999", "p99_99"), ("1", "max")):
                ns = result["latency_ns"][field]
                self.assertAlmostEqual(value_of(families, "sluice_perf_latency_seconds", quantile=quantile, **of) * 1e9, ns, delta=ns * 1e-6)
        self.assertEqual(value_of(families, "sluice_perf_info", kernel=document["environment"]["kernel"]), 1)
        self.assertEqual(value_of(families, "sluice_counter_total", name="allocator.extents_added"), document["counters"]["allocator.extents_added"])

    def test_a_batch_is_one_text_in_which_each_line_is_told_apart(self):
        path = self.file("batch")
        pathlib.Path(path).write_text("send_lat --self --transport shm -n 5\nsend_lat --self --transport shm -n 6\nsend_bw --self --transport tcp -n 7\n", encoding="utf-8")
        families = parse(self.run_command("perf", "--batch", path, "--format", "openmetrics").stdout)
        counts = {labels["line"]: value for name, labels, value in families["sluice_perf_latency_seconds"]["samples"] if name.endswith("_count")}
        self.assertEqual(counts, {"1": 5, "2": 6, "3": 7})

    def test_damage_leaves_a_text_without_figures(self):
        done = self.run_command("perf", "send_lat", "--self", "--transport", "shm", "-n", "5", "--corrupt", "--format", "openmetrics", expect=4)
        self.assertNotIn("sluice_perf_latency_seconds", parse(done.stdout))

    def test_what_has_no_place_in_it_is_refused(self):
        for flags in (("-D", "1", "--interval", "0.5"), ("--histogram",), ("--confidence", "5"), ("--under-load", "4K")):
            done = self.run_command("perf", "send_lat", "--self", *flags, "--format", "openmetrics", expect=2)
            self.assertIn("openmetrics", done.stderr)

    def test_text_that_breaks_a_rule_is_found(self):
        good = '# TYPE a_bytes gauge\n# UNIT a_bytes bytes\na_bytes{x="1"} 1\n# EOF\n'
        parse(good)
        for part, bad in (("# EOF\n", ""), ("a_bytes{", "b_bytes{"), ("UNIT a_bytes bytes", "UNIT a_bytes seconds"), ('"1"', '"1'), ("# EOF", 'a_bytes{x="1"} 2\n# EOF'), (" gauge", " counter")):
            with self.assertRaises(BadText, msg=bad):
                parse(good.replace(part, bad))


if __name__ == "__main__":
    command.main()
