"""Results, kept by workload beside the thresholds of `sluice tune`, and the files of a report.

A workload is a name that the user gives: what is best for large files is not what is best for a web farm.
"""
import json
import os
import re

import curve
from record import cache_folder
from trouble import USAGE, Trouble

SCHEMA = 1


def _folder():
    return os.path.join(cache_folder(), "system")


def _write(path, text):
    """Whole or not at all."""
    made = f"{path}.{os.getpid()}"
    try:
        with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(made, path)
    except OSError as error:
        raise Trouble(f"{path} cannot be written: {error.strerror}; choose another folder") from error


def keep(result):
    """Path of the file that now holds it."""
    folder = _folder()
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise Trouble(f"{folder} cannot be made: {error.strerror}; set SLUICE_CACHE_DIR to another "
                      "folder") from error
    path = os.path.join(folder, result["workload"] + ".json")
    _write(path, json.dumps(dict(result, schema=SCHEMA), indent=1) + "\n")
    return path


def names():
    try:
        return sorted(name[:-5] for name in os.listdir(_folder()) if name.endswith(".json"))
    except FileNotFoundError:
        return []


def kept(workload):
    path = os.path.join(_folder(), workload + ".json")
    try:
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        if result["schema"] != SCHEMA or not isinstance(result["chosen"], dict):
            raise ValueError("another schema")
        return result
    except FileNotFoundError as error:
        known = ", ".join(names()) or "none yet"
        raise Trouble(f"there is no result of workload '{workload}' (kept: {known}); run sluice tune system --workload {workload}", USAGE) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Trouble(f"{path} is not used: {error}; measure anew, which replaces it") from error


def _words(text):
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")


def _curve_files(folder, title, points):
    """Raw and smoothed, as columns of bytes and Gb/s: (name of the one, name of the other)."""
    names_of = []
    for kind, each in (("raw", points), ("bezier", curve.bezier(points))):
        name = f"{_words(title)}.{kind}.dat"
        _write(os.path.join(folder, name), f"# bytes Gb/s: {title}, {kind}\n" + "".join(f"{size:.1f} {rate:.6f}\n" for size, rate in each))
        names_of.append(name)
    return names_of


def curves_of(result):
    """{title: {curve: [(bytes, Gb/s)]}} of a result: the sweeps, and default beside chosen."""
    def points(rates):
        return sorted((int(size), rate) for size, rate in rates.items())

    figures = {table["parameter"]: {str(value): points(sums) for value, sums in table["sums"].items()} for table in result["tables"]}
    compared = result["against_default"]
    if compared["rounds"]:
        figures["default and chosen"] = {which: points(compared[which]) for which in ("default", "chosen")}
    return figures


def write_report(folder, result):
    """result.json and the curves."""
    write_curves(folder, curves_of(result))
    _write(os.path.join(folder, "result.json"), json.dumps(result, indent=1) + "\n")


def write_curves(folder, figures):
    """{title: {curve: points}} as columns, and curves.gp, from which gnuplot draws them raw and smoothed."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise Trouble(f"{folder} cannot be made: {error.strerror}; choose another folder") from error
    script = "set terminal svg size 900,600\nset logscale x 2\nset xlabel 'bytes'\nset ylabel 'Gb/s'\nset key left top\n"
    for title, curves in figures.items():
        files = {name: _curve_files(folder, f"{title} {name}", points) for name, points in curves.items() if points}
        for kind, style in ((0, "linespoints"), (1, "lines")):
            script += f"set output '{_words(title)}.{('raw', 'bezier')[kind]}.svg'\nset title '{title}, {('raw', 'smoothed')[kind]}'\nplot " + ", \\\n  ".join(
                f"'{each[kind]}' with {style} title '{name}'" for name, each in files.items()) + "\n"
    _write(os.path.join(folder, "curves.gp"), script)


def write_lines(path, lines):
    _write(path, "".join(line + "\n" for line in lines))
