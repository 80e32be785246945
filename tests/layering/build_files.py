"""Reads BUILD and .bzl files by running them as Python, which Starlark nearly is: gives every target's sources, headers
and direct dependencies. Knows no rule of this house."""
import dataclasses
import fnmatch
import os


@dataclasses.dataclass
class Target:
    label: str
    kind: str
    package: str
    srcs: list
    hdrs: list
    deps: list
    actual: str = None
    testonly: bool = False

    @property
    def compiles(self):
        return self.kind.startswith("cc_")

    @property
    def is_test(self):
        return self.testonly or self.kind.endswith("_test")


class BuildFiles:
    """All packages below `root`: `targets` by label, `constants(bzl)` of one .bzl file."""

    def __init__(self, root):
        self.root = root
        self.targets = {}
        self._loaded = {}
        self._package = None
        self._packages = {p for p, _ in _packages(root)}
        for package, path in _packages(root):
            self._package = package
            names = self._globals()
            _run(os.path.join(root, path), names)

    def constants(self, bzl):
        return self._load_file("//" + bzl)

    def owners(self, header):
        """Targets that offer the header, by its path in the tree."""
        return [t for t in self.targets.values() if header in t.hdrs]

    def resolve(self, label):
        """Follows aliases; None for another repository's target."""
        target = self.targets.get(label)
        while target is not None and target.actual is not None:
            target = self.targets.get(target.actual)
        return target

    # What a BUILD or .bzl file may name.
    def _globals(self):
        native = _Native(self)
        names = {
            "load": None, "native": native, "select": _select, "glob": native.glob, "struct": _Struct, "fail": _fail,
            "package_name": native.package_name, "package": _ignore, "package_group": _ignore, "licenses": _ignore,
            "exports_files": _ignore, "workspace": _ignore, "Label": str, "provider": lambda *a, **k: _Struct,
            "depset": lambda items=(), **k: items, "attr": _Anything(), "config_common": _Anything(),
            "rule": lambda *a, **k: native.recorder("rule"), "macro": lambda *a, **k: native.recorder("rule"),
            "repository_rule": lambda *a, **k: _ignore, "aspect": _ignore, "True": True, "False": False, "None": None,
        }
        for kind in ("cc_library", "cc_binary", "cc_test", "cc_import", "sh_test", "sh_binary", "sh_library", "py_test",
                     "py_binary", "py_library", "genrule", "filegroup", "alias", "test_suite", "config_setting",
                     "cc_toolchain", "cc_toolchain_suite", "bool_flag"):
            names[kind] = native.recorder(kind)
        names["load"] = lambda label, *wanted, **renamed: self._load(names, label, wanted, renamed)
        return names

    def _load(self, names, label, wanted, renamed):
        for new, old in [(w, w) for w in wanted] + list(renamed.items()):
            if label.startswith("@"):
                names[new] = _Native(self).recorder(old)
            else:
                names[new] = self._load_file(self._absolute(label))[old]

    def _load_file(self, label):
        if label not in self._loaded:
            package, _, name = label[2:].partition(":")
            path = os.path.join(self.root, package, name) if name else os.path.join(self.root, package)
            self._loaded[label] = self._globals()
            _run(path, self._loaded[label])
        return self._loaded[label]

    def _absolute(self, label):
        if label.startswith(("@", "//")):
            if label.startswith("//") and ":" not in label:
                label += ":" + label.rsplit("/", 1)[-1]
            return label
        return "//%s:%s" % (self._package, label.lstrip(":"))

    def record(self, kind, name, srcs=(), hdrs=(), textual_hdrs=(), deps=(), actual=None, testonly=False, **_):
        package = self._package
        files = lambda labels: [self._file(l) for l in (labels or ())]
        target = Target("//%s:%s" % (package, name), kind, package, files(srcs), files(hdrs) + files(textual_hdrs),
                        [self._absolute(d) for d in (deps or ())], actual and self._absolute(actual), bool(testonly))
        self.targets[target.label] = target

    def _file(self, label):
        return self._absolute(label)[2:].replace(":", "/", 1).lstrip("/")


class _Native:
    def __init__(self, build):
        self._build = build

    def __getattr__(self, kind):
        if kind.startswith("__"):
            raise AttributeError(kind)
        return self.recorder(kind)

    def recorder(self, kind):
        return lambda *args, **attributes: self._build.record(kind, attributes.pop("name", args[0] if args else "?"),
                                                              **attributes)

    def package_name(self):
        return self._build._package

    def glob(self, include=(), exclude=(), **_):
        folder = os.path.join(self._build.root, self._build._package)
        found = []
        for base, folders, names in os.walk(folder):
            inside = os.path.relpath(base, self._build.root)
            folders[:] = [f for f in folders if os.path.normpath(os.path.join(inside, f)) not in self._build._packages]
            found += [os.path.relpath(os.path.join(base, n), folder) for n in names]
        matches = lambda path, patterns: any(_glob_match(path, p) for p in patterns)
        return sorted(p for p in found if matches(p, include) and not matches(p, exclude))


class _Struct:
    def __init__(self, *_, **fields):
        self.__dict__.update(fields)


class _Anything:
    def __getattr__(self, _):
        return lambda *a, **k: None


def _select(branches, **_):
    """All branches at once: an include must be right in each."""
    joined = None
    for value in branches.values():
        joined = value if joined is None else joined + value if isinstance(value, list) else joined
    return joined


def _glob_match(path, pattern):
    if pattern.endswith("/**"):
        return path.startswith(pattern[:-2])
    if "**/" in pattern:
        head, _, tail = pattern.partition("**/")
        return path.startswith(head) and (fnmatch.fnmatch(path[len(head):], tail) or fnmatch.fnmatch(path, head + "*/" + tail))
    return path.count("/") == pattern.count("/") and fnmatch.fnmatch(path, pattern)


def _ignore(*_, **__):
    return None


def _fail(*text):
    raise ValueError(" ".join(map(str, text)))


def _run(path, names):
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), names)  # this tree's own files


def _packages(root):
    for base, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "bazel-")) and f != "__pycache__")
        if "WORKSPACE" in names and base != root:  # a repository of its own
            folders[:] = []
            continue
        for name in ("BUILD.bazel", "BUILD"):
            if name in names:
                package = os.path.relpath(base, root)
                package = "" if package == "." else package
                yield package, os.path.join(package, name)
                break
