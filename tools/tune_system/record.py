"""The record of what was changed: written before anything is, and read by --undo.

One line of JSON for each change: node, how it is reached, which boot and network namespace, parameter, the value
before and the value that is set. A line is on the disk before the change is made. So a line without its change
is possible, and undoing it changes nothing; a change without its line is not. A last line that was cut short
belongs to a change that was never made.
"""
import fcntl
import json
import os
import sys

import node as nodes
from trouble import NodeLost, Trouble

FILE_NAME = "system-undo.jsonl"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def cache_folder():
    """That of `sluice tune`'s thresholds: $SLUICE_CACHE_DIR, $XDG_CACHE_HOME/sluice, ~/.cache/sluice."""
    for variable, below in (("SLUICE_CACHE_DIR", ""), ("XDG_CACHE_HOME", "sluice"), ("HOME", ".cache/sluice")):
        value = os.environ.get(variable, "")
        if os.path.isabs(value):
            return os.path.join(value, below) if below else value
    raise Trouble("there is no place for the record: set SLUICE_CACHE_DIR, XDG_CACHE_HOME or HOME to an absolute path")


def _synced(descriptor, data):
    while data:
        data = data[os.write(descriptor, data):]
    os.fsync(descriptor)


class Record:
    """Held by one process at a time."""

    def __init__(self, folder=None):
        folder = folder or cache_folder()
        self.path = os.path.join(folder, FILE_NAME)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._descriptor = self._opened()
            # Whoever held it may have removed or replaced it before it was locked here.
            while not self._is_at_path():
                os.close(self._descriptor)
                self._descriptor = self._opened()
        except OSError as error:
            raise Trouble(f"the record {self.path} cannot be written: {error.strerror}; set SLUICE_CACHE_DIR to another folder") from error
        status = os.fstat(self._descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            os.close(self._descriptor)
            raise Trouble(f"{self.path} can be written by others, so it is not trusted; remove it")
        folder_descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder_descriptor)
        os.close(folder_descriptor)

    def _opened(self):
        descriptor = os.open(self.path, _FLAGS, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise Trouble(f"another `sluice tune system` runs: it holds {self.path}; "
                          "wait for its end") from error
        return descriptor

    def _is_at_path(self):
        try:
            there = os.stat(self.path, follow_symlinks=False)
            return os.path.samestat(os.fstat(self._descriptor), there)
        except FileNotFoundError:
            return False

    def entries(self):
        """What is recorded, in order. A torn last line is left out; any other that is wrong is Trouble."""
        with open(self.path, encoding="utf-8", errors="replace") as file:
            lines = file.read().split("\n")
        torn = lines.pop()
        if torn:
            print(f"sluice tune system: the last line of {self.path} was cut short: that change was never made", file=sys.stderr)
        found = []
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                found.append({name: entry[name] for name in ("node", "reach", "interface", "ssh", "boot", "network", "name", "before", "after")})
            except (ValueError, TypeError, KeyError) as error:
                raise Trouble(f"{self.path}, line {number}, is no entry of a record; repair or remove it") from error
        return found

    def add(self, node, changes):
        """`changes`: {name: (before, after)}. Returns when they are on the disk."""
        lines = b""
        for name, (before, after) in changes.items():
            entry = {"node": node.name, "reach": node.reach, "interface": node.interface, "ssh": node.ssh, "boot": node.identity["boot"],
                     "network": node.identity["network"], "name": name, "before": before, "after": after}
            lines += json.dumps(entry).encode() + b"\n"
        try:
            if lines:
                _synced(self._descriptor, lines)
        except OSError as error:
            raise Trouble(f"the record {self.path} cannot be written: {error.strerror}; make room "
                          "there, or set SLUICE_CACHE_DIR to another folder") from error

    def clear(self):
        """Without what it holds, which is at most a line that was cut short."""
        os.ftruncate(self._descriptor, 0)

    def keep_only(self, entries):
        """Replaces the record as a whole; without entries its file goes."""
        if not entries:
            os.unlink(self.path)
            return
        made = self.path + ".new"
        descriptor = os.open(made, _FLAGS | os.O_TRUNC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # before anybody finds it at the path
            _synced(descriptor, b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))
            os.rename(made, self.path)
        except OSError as error:
            os.close(descriptor)
            raise Trouble(f"{made} cannot be written: {error.strerror}; {self.path} is as it was: "
                          "make room there, then run `sluice tune system --undo`") from error
        os.close(self._descriptor)
        self._descriptor = descriptor

    def close(self):
        os.close(self._descriptor)


def first_values(entries):
    """{(node, boot, network, interface): (entry, {parameter: the value before its first change})}."""
    found = {}
    for entry in entries:
        _, values = found.setdefault((entry["node"], entry["boot"], entry["network"], entry["interface"]), (entry, {}))
        values.setdefault(entry["name"], entry["before"])
    return found


def put_back(node, values):
    """The last change first. {parameter: why it could not be undone}."""
    refused = node.ask("write", values=dict(reversed(values.items())), interface=node.interface)["refused"]
    return refused


def undo(record, say=print):
    """Undoes all that is recorded. What could not be undone stays in the record. Returns whether all was."""
    entries = record.entries()
    left = []
    for (name, boot, network, _), (entry, values) in first_values(entries).items():
        if entry["reach"] == "new":
            say(f"{name}: its network namespace ended with the run, and its values with it")
            continue
        node = nodes.Node(name, None, entry["reach"], entry["interface"], entry["ssh"])
        try:
            node.start()
            if node.identity["boot"] != boot:
                say(f"{name}: it was booted since, and the values went with that")
                continue
            if node.identity["network"] != network:
                raise Trouble(f"{name}: this is another network namespace than the one that was changed; run --undo inside that one")
            refused = put_back(node, values)
            for parameter, value in values.items():
                say(f"{name}: {parameter} = {value}" if parameter not in refused else f"{name}: {parameter} is not undone: {refused[parameter]}")
        except (NodeLost, Trouble) as trouble:
            say(str(trouble))
            refused = values
        finally:
            node.stop()
        left += [each for each in entries if each["node"] == name and each["network"] == network and each["name"] in refused]
    record.keep_only(left)
    for name in dict.fromkeys(each["node"] for each in left):
        lines = [str(number) for number, each in enumerate(left, 1) if each["node"] == name]
        say(f"{name}: not all is undone. If this node or its network namespace is gone for good, "
            f"remove these lines of {record.path}: {', '.join(lines)}")
    return not left
