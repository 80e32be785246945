"""The C and C++ files of the tree, without comments and string literals, and what they include."""
import os
import re

SUFFIXES = (".h", ".hpp", ".c", ".cc", ".cpp", ".inc")
_TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.M)
_COMMENTS = re.compile(r'//[^\n]*|/\*.*?\*/', re.S)


class SourceTree:
    def __init__(self, root, rooms):
        """`rooms`: folder in the tree -> folder under <...>, as tools/build/sluice.bzl has it."""
        self.root = root
        self._prefixes = sorted(((under + "/", folder) for folder, under in rooms.items()), key=lambda p: -len(p[0]))
        self.files = sorted(self._walk())
        self._known = set(self.files)

    def sources(self):
        """The files that are read as programs, in any language."""
        return sorted(self._walk(SUFFIXES + (".py", ".sh", ".bzl")))

    def _walk(self, suffixes=SUFFIXES):
        for base, folders, names in os.walk(self.root):
            folders[:] = [f for f in folders if not f.startswith((".", "bazel-")) and f != "__pycache__"]
            for name in names:
                if name.endswith(suffixes):
                    yield os.path.relpath(os.path.join(base, name), self.root)

    def text(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
            return file.read()

    def code(self, path):
        """Without comments, and with empty literals; lines keep their numbers."""
        return _TOKENS.sub(self._blank, _INCLUDE.sub(lambda m: m.group(0).replace('"', "<", 1), self.text(path)))

    @staticmethod
    def _blank(match):
        text = match.group(0)
        lines = "\n" * text.count("\n")
        return lines if text.startswith("/") else '""' + lines if text[0] in '"R' else "' '"

    def includes(self, path):
        """(line, spelling, path in the tree or None for a system header)."""
        text = _COMMENTS.sub(lambda m: "\n" * m.group(0).count("\n"), self.text(path))
        for match in _INCLUDE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            spelling = match.group(1) + match.group(2) + (">" if match.group(1) == "<" else '"')
            yield line, spelling, self._resolve(path, match.group(1), match.group(2))

    def _resolve(self, path, kind, name):
        if kind == "<":
            for prefix, folder in self._prefixes:
                if name.startswith(prefix):
                    return folder + "/" + name[len(prefix):]
            return None
        beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
        return beside if beside in self._known and name not in self._known else name


def room_of(path):
    """The room (docs/design.md) that a file belongs to; test code is of room `tests` wherever it lies."""
    parts = path.split("/")
    base = parts[-1]
    if "_test." in base or base.startswith(("testing.", "testing_")):
        return "tests"
    if parts[0] == "transport":
        if parts[1] == "l2" and len(parts) > 3:
            return "/".join(parts[1:3])
        return parts[1] if len(parts) > 2 else "sluice"
    if parts[0] == "kernel_compat" or parts[:2] in (["tools", "dump"], ["tools", "demo_job"]):
        return "/".join(parts[:2])
    return parts[0]
