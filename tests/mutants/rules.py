"""The rules by which bugs are planted. Each finds its sites in a text and says what stands there instead.

A site is one small edit. What cannot matter is left out here: comments, texts, static assertions, what is logged
and what is only counted. What does not compile, or compiles to the same object, is left out by the runner."""
import dataclasses
import hashlib
import re

import tokens
from tokens import NAME, NUMBER, SIGN, TEXT


@dataclasses.dataclass(frozen=True)
class Site:
    rule: str
    at: int      # [at, end) of the text
    end: int
    instead: str

    def apply(self, text):
        return text[:self.at] + self.instead + text[self.end:]

    def key(self, file, text):
        """The same wherever the line moves to, as long as the line, its neighbours and the edit are the same."""
        first = text.rfind("\n", 0, self.at) + 1
        last = text.find("\n", self.end)
        last = len(text) if last < 0 else last
        before = text.rfind("\n", 0, max(first - 1, 0)) + 1
        seen = "\0".join((file, self.rule, text[before:last], str(self.at - first), self.instead))
        return hashlib.sha256(seen.encode()).hexdigest()[:10]


OTHER_COMPARISON = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
# Statements that only say or count something.
SPOKEN = re.compile(r"^(log|LogLine|fmt|trace|note_once|warn|assert|static_assert|SLUICE_TRACE|fault_point|WARN_ON_ONCE)$")
KEYWORDS = {"return", "if", "else", "for", "while", "do", "switch", "case", "default", "break", "continue", "goto", "using", "typedef",
            "struct", "class", "enum", "union", "namespace", "template", "static_assert", "public", "private", "protected", "friend",
            "try", "catch", "throw", "co_return", "co_await", "co_yield", "constexpr", "static", "const", "auto", "extern", "volatile"}
COUNTER = re.compile(r"^\s*(?:static\s+|constinit\s+)*Counter\s+([^;]*);", re.MULTILINE)


def counters_of(text):
    names = set()
    for declared in COUNTER.findall(text):
        names.update(re.findall(r"([A-Za-z_]\w*)\s*[({]", declared))
    return names


class Text:
    """A text with what all rules ask of it."""

    def __init__(self, text, is_c=False):
        self.text, self.is_c = text, is_c
        self.source = tokens.Source(text)
        self.counters = counters_of(text)
        self.silent = self._ranges_that_only_say()

    def _ranges_that_only_say(self):
        """Arguments of what logs, asserts at compile time or declares a counter; texts of errors as a whole."""
        source, silent = self.source, []
        for index, token in enumerate(source.tokens):
            if token.kind != NAME or not source.is_text(index + 1, "("):
                continue
            mate = source[index + 1].mate
            if mate is not None and (SPOKEN.match(token.text) or token.text in self.counters):
                silent.append((token.at, source[mate].end))
        return silent

    def in_silence(self, at):
        return any(first <= at < last for first, last in self.silent)

    def statement_is_silent(self, index):
        token = self.source[index]
        if SPOKEN.match(token.text) or token.text in self.counters:
            return True
        return token.text == "(" and self.source.is_text(index + 1, "void") and self.source.is_text(index + 2, ")") and \
            bool(SPOKEN.match(self.source[index + 3].text))


def compare(of):
    """a < b becomes a <= b, a == b becomes a != b."""
    source = of.source
    for index, token in enumerate(source.tokens):
        if token.kind != SIGN or token.text not in OTHER_COMPARISON or not token.code or of.in_silence(token.at):
            continue
        if source.is_text(index - 1, "operator", "template") or not source.spaced(index):
            continue
        yield Site("compare", token.at, token.end, OTHER_COMPARISON[token.text])


def _declares(source, first, last):
    """Whether the statement looks like a declaration: two names side by side, or a type's end before a name."""
    for index in range(first, last):
        token, after = source[index], source[index + 1]
        if token.text in ("(", "=", "+=", "-=", "|=", "&=", "++", "--", "<<", "."):
            return False
        if token.kind == NAME and after.kind == NAME:
            return True
        if token.text in ("*", "&", ">") and after.kind == NAME and index > first:
            return True
    return False


def _only_says(source, first, last):
    """`what += " (status " + ...;`: a text for people."""
    for index in range(first, last):
        if source[index].text in ("=", "+="):
            return any(source[at].kind == TEXT for at in range(index, last))
        if source[index].text == "(":
            return False
    return False


def drop(of):
    """A call or an assignment is not made."""
    source = of.source
    for index, token in enumerate(source.tokens):
        if not token.code or not source.begins_statement(index):
            continue
        if token.kind not in (NAME,) and token.text not in ("++", "--", "*", "("):
            continue
        if token.text in KEYWORDS or of.statement_is_silent(index):
            continue
        last = source.statement_end(index)
        if last is None or last == index or _declares(source, index, last):
            continue
        words = {source[at].text for at in range(index, last)}
        if not words & {"(", "=", "+=", "-=", "*=", "/=", "|=", "&=", "^=", "<<=", "++", "--", "%="}:
            continue
        if source.is_text(index + 1, ":"):
            continue
        if _only_says(source, index, last):
            continue
        yield Site("drop", token.at, source[last].end, ";")


ORDERS = {"memory_order_acquire": "memory_order_relaxed", "memory_order_release": "memory_order_relaxed",
          "memory_order_acq_rel": "memory_order_relaxed", "memory_order_seq_cst": "memory_order_relaxed"}


def order(of):
    """An atomic access or a fence orders less, or nothing."""
    source = of.source
    for index, token in enumerate(source.tokens):
        if token.kind != NAME:
            continue
        if token.text in ORDERS:
            yield Site("order", token.at, token.end, ORDERS[token.text])
        # The strongest order where none is said.
        if token.text in ("load", "store", "exchange", "fetch_add", "fetch_sub", "fetch_or", "fetch_and", "compare_exchange_strong",
                          "compare_exchange_weak") and source.is_text(index - 1, ".", "->") and source.is_text(index + 1, "("):
            mate = source[index + 1].mate
            if mate is None or any("memory_order" in source[at].text for at in range(index + 2, mate)):
                continue
            comma = ", " if mate > index + 2 else ""
            yield Site("order", source[mate].at, source[mate].at, comma + "std::memory_order_relaxed")
        if token.text == "atomic_thread_fence":
            first = index - 2 if source.is_text(index - 1, "::") else index
            last = source.statement_end(first) if source.begins_statement(first) else None
            if last is not None:
                yield Site("order", source[first].at, source[last].end, ";")


LEAVES = {"return", "continue", "break", "goto", "co_return"}


def check(of):
    """`if (wrong) return ...;` is left out, or asks the opposite; a status is not looked at."""
    source = of.source
    for index, token in enumerate(source.tokens):
        if not token.code or token.kind != NAME:
            continue
        if token.text == "SLUICE_RETURN_IF_ERROR" and source.is_text(index + 1, "("):
            yield Site("check", token.at, token.end, "(void)")
        if token.text != "if":
            continue
        opening = index + 2 if source.is_text(index + 1, "constexpr") else index + 1
        if opening != index + 1 or not source.is_text(opening, "(") or source[opening].mate is None:
            continue
        closing = source[opening].mate
        condition = opening + 1
        at = opening + 1
        while at < closing:  # behind an initialiser
            if source[at].text in "([{" and source[at].mate is not None and source[at].kind == SIGN:
                at = source[at].mate
            elif source[at].text == ";":
                condition = at + 1
            at += 1
        if condition < closing and not any(SPOKEN.match(source[at].text) or source[at].text == "log_enabled" for at in range(condition, closing)):
            declares = any(source[i].kind == NAME and source[i + 1].kind == NAME or source[i].text == "*" and source[i + 1].kind == NAME and source.is_text(i + 2, "=")
                           for i in range(condition, min(closing, condition + 4)) if not source.is_text(i, "not"))
            if not declares:
                first, last = source[condition].at, source[closing].at
                yield Site("check", first, last, "!(" + source.text[first:last] + ")")
        inner = closing + 1
        braced = source.is_text(inner, "{")
        leaf = inner + 1 if braced else inner
        if leaf < len(source) and source[leaf].text in LEAVES and not source.is_text(index - 1, "else"):
            end = source.statement_end(leaf)
            if end is None:
                continue
            last = end + 1 if braced else end
            if braced and not source.is_text(last, "}"):
                continue
            if source.is_text(last + 1, "else"):
                continue
            yield Site("check", token.at, source[last].end, ";")


def early(of):
    """A function returns at once, or before its last statement."""
    source = of.source
    for body in source.bodies:
        head = source._head(body)
        if "(" not in head or source[body].mate is None or source[body].mate == body + 1:
            continue
        name_at = head.index("(")
        before = [word for word in head[:name_at] if word not in ("static", "inline", "constexpr", "virtual", "explicit", "friend")]
        if len(before) < 2 or "~" in before or "operator" in before or "if" in before:
            continue
        if len(before) == 3 and before[1] == "::" and before[0] == before[2]:
            continue  # a constructor
        if before[:3] == ["std", "::", "string"] or "char" in before:
            continue  # a text
        value = "" if before[0] == "void" and "*" not in before else " 0" if of.is_c else " {}"
        yield Site("early", source[body].end, source[body].end, f" return{value};")
        if value:
            continue
        starts = [at for at in range(body + 1, source[body].mate)
                  if source.begins_statement(at) and _enclosing(source, at) == body and not source[at].text == "else"]
        if len(starts) > 1 and not of.statement_is_silent(starts[-1]):
            yield Site("early", source[starts[-1]].at, source[starts[-1]].at, "return; ")


def _enclosing(source, index):
    depth = 0
    for at in range(index - 1, -1, -1):
        if source[at].text == "}" and source[at].kind == SIGN:
            depth += 1
        elif source[at].text == "{" and source[at].kind == SIGN:
            if depth == 0:
                return at
            depth -= 1
    return None


def bound(of):
    """A bound is off by one."""
    source = of.source
    for index, token in enumerate(source.tokens):
        if not token.code or token.kind != SIGN or of.in_silence(token.at):
            continue
        # `+ 1` and `- 1` are not said.
        if token.text in ("+", "-") and source.spaced(index) and index + 1 < len(source) and source[index + 1].text in ("1", "1u", "1U") \
                and not source.is_text(index + 2, "<<"):
            yield Site("bound", token.at, source[index + 1].end, "")
        if token.text not in ("<", "<=", ">", ">=") or not source.spaced(index) or source.is_text(index - 1, "operator", "template"):
            continue
        operand = source[index + 1]
        number = operand.kind == NUMBER and re.fullmatch(r"[0-9]+[uU]?", operand.text)
        constant = operand.kind == NAME and re.fullmatch(r"k[A-Z]\w*|[A-Z][A-Z0-9_]{3,}", operand.text)
        if (number or constant) and source.is_text(index + 2, ")", ";", "&&", "||", "?"):
            yield Site("bound", operand.at, operand.end, f"{operand.text} + 1")


RULES = {rule.__name__: rule for rule in (compare, drop, order, check, early, bound)}


def sites(text, is_c=False):
    """All of them, by rule, in the order of the text; no two that do the same."""
    of = Text(text, is_c)
    found = {}
    for name, rule in RULES.items():
        seen = set()
        found[name] = [s for s in sorted(rule(of), key=lambda s: (s.at, s.end, s.instead))
                       if not of.in_silence(s.at) and not ((s.at, s.end, s.instead) in seen or seen.add((s.at, s.end, s.instead)))]
    return found
