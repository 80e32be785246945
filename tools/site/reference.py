"""The public headers as Doxygen reads them: their comments become documentation. Runs nothing.

The headers have plain comments. Before a declaration and after it, in the same line, they document
it; the first of a file documents the file; "Thread:", "Errors:" and the like begin a paragraph.
"""
import os
import re

# What programs include by hand; everything that these include is public too.
DOORS = ("sluice.h", "api/asio.h", "exchange/asio.h", "allocator/dlpack.h")
_INCLUDE = re.compile(r"^#include <sluice/([^>]+)>", re.M)
_LABEL = re.compile(r"(?:(?<=^)|(?<=[.;] ))(Requires|Ownership|Thread|Blocks|Errors|Cost|Cancellation|Handler): ")
# What Doxygen would take for a command, markup or a link.
_SPECIAL = re.compile(r"[\\@<>#%&$*_~\[\]]")


def path_of(root, name):
    """Where the tree has the header <sluice/NAME>."""
    for folder in ("transport", ""):
        path = os.path.join(root, folder, name)
        if os.path.isfile(path):
            return path
    raise FileNotFoundError("no header <sluice/%s> in %s" % (name, root))


def public_headers(root):
    """Names under <sluice/...> of every header that a program can see."""
    found, waiting = set(), list(DOORS)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            with open(path_of(root, name), encoding="utf-8") as file:
                waiting += _INCLUDE.findall(file.read())
    return sorted(found)


def escaped(text):
    """A comment's text; code in backticks stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") and len(part) > 1 else
                   _SPECIAL.sub(lambda match: "\\" + match.group(0), part.replace("`", "'"))
                   for part in parts)


def _lines(text):
    """One line of a comment, cut before each label."""
    pieces = _LABEL.split(text)
    if pieces[0].strip() or len(pieces) == 1:
        yield escaped(pieces[0].strip())
    for label, rest in zip(pieces[1::2], pieces[2::2]):
        yield "@par " + label
        yield escaped(rest.strip())


def _trailing(line):
    """(code, comment) of a line with both, else None."""
    at = line.find("  // ")
    if at <= 0 or not line[:at].strip() or line[:at].count('"') % 2:
        return None
    return line[:at], line[at + 5:]


def documented(text):
    """The header with its comments as Doxygen wants them."""
    out, first, after = [], True, None
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped.startswith("//"):
            body = stripped.lstrip("/").strip()
            if after is not None and line.index("//") >= after:
                out.append("///< " + escaped(body))  # goes on from the line above
                continue
            indent = line[:line.index("//")]
            if first:
                out.append("/// @file")
            out += [indent + "/// " + piece for piece in _lines(body)]
            first = False
            continue
        if first and stripped:
            first = False
        both = _trailing(line)
        after = None
        if both and both[0].rstrip()[-1:] in ",;" or both and re.match(r"^\s*k\w+( = [^,;{}()]+)?$", both[0]):
            out.append(both[0] + "  ///< " + escaped(both[1].strip()))
            after = line.index("  // ") + 2
        else:
            out.append(line)
    return "\n".join(out)
