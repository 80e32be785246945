"""C and C++ text as tokens, as far as planting bugs needs it: what is code, which braces hold statements,
where a statement or a condition ends. Knows no types and no preprocessor."""
import re

COMMENT, TEXT, LINE, NUMBER, NAME, SIGN = "comment", "text", "line", "number", "name", "sign"

PATTERN = re.compile(r"""
    (?P<comment> //[^\n]* | /\*.*?\*/ )
  | (?P<line>    ^[ \t]*\#(?:[^\n\\]|\\.)* )
  | (?P<raw>     (?:u8|[uUL])?R"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)" )
  | (?P<text>    (?:u8|[uUL])?"(?:[^"\\\n]|\\.)*" | (?<![0-9A-Fa-f])[uUL]?'(?:[^'\\\n]|\\.)+' )
  | (?P<number>  \.?[0-9](?:['0-9A-Za-z_.]|(?<=[eEpP])[+-])* )
  | (?P<name>    [A-Za-z_][A-Za-z0-9_]* )
  | (?P<sign>    <=> | <<= | >>= | \.\.\. | ->\* | :: | -> | \+\+ | -- | << | <= | >= | == | != | && | \|\| | [-+*/%&|^]= | [^\sA-Za-z0-9_] )
""", re.VERBOSE | re.MULTILINE | re.DOTALL)
# `>>` is left as two: it closes templates more often than it shifts, and no rule asks for it.

OPEN, CLOSE = "([{", ")]}"
NOT_A_BODY = {"struct", "class", "union", "enum", "namespace", "extern"}


class Token:
    __slots__ = ("kind", "text", "at", "mate", "code")

    def __init__(self, kind, text, at):
        self.kind, self.text, self.at = kind, text, at
        self.mate = None   # of a bracket: the index of the other one
        self.code = False  # inside a function's body

    @property
    def end(self):
        return self.at + len(self.text)

    def __repr__(self):
        return f"{self.text!r}"


class Source:
    """The tokens of a text without comments and preprocessor lines."""

    def __init__(self, text):
        self.text = text
        self.tokens = []
        for match in PATTERN.finditer(text):
            kind = match.lastgroup if match.lastgroup != "mark" else "raw"
            if match.group("raw") is not None:
                kind = "raw"
            if kind in ("comment", "line"):
                continue
            self.tokens.append(Token(TEXT if kind == "raw" else kind, match.group(0), match.start()))
        self._match_brackets()
        self._find_bodies()

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index]

    def is_text(self, index, *texts):
        return 0 <= index < len(self.tokens) and self.tokens[index].text in texts

    def line_of(self, at):
        return self.text.count("\n", 0, at) + 1

    def spaced(self, index):
        """Written as an operator between two operands, as clang-format does; `<` of a template is not."""
        token = self.tokens[index]
        before, after = self.text[token.at - 1:token.at], self.text[token.end:token.end + 1]
        return before.isspace() and after.isspace()

    def _match_brackets(self):
        stack = []
        for index, token in enumerate(self.tokens):
            if token.kind != SIGN:
                continue
            if token.text in OPEN:
                stack.append(index)
            elif token.text in CLOSE and stack:
                token.mate = stack.pop()
                self.tokens[token.mate].mate = index

    def _holds_statements(self, brace, outer_is_code):
        before = self.tokens[brace - 1] if brace > 0 else None
        if before is None:
            return False
        if before.text in ("else", "do", "try"):
            return True
        head = self._head(brace)
        if any(word in head for word in NOT_A_BODY) and "(" not in head:
            return False
        if before.text in (")", "noexcept", "const", "override", "mutable", "final"):
            return True
        if before.text == "}" and not outer_is_code:
            return "(" in head  # after a constructor's list of members
        if outer_is_code and before.text in ("{", "}", ";", ":"):
            return True  # a block
        # `-> Type {` of a lambda or function
        return "->" in head and ")" in head and before.text not in ("=", ",", "(", "return")

    def _head(self, brace):
        """The texts between the last end of anything and this brace."""
        texts, index = [], brace - 1
        while index >= 0 and len(texts) < 200:
            token = self.tokens[index]
            if token.text in (";", "{") or (token.text == "}" and not texts):
                break
            if token.text in ")]}" and token.mate is not None:
                if token.text == "}":
                    before = self.tokens[token.mate - 1] if token.mate > 0 else None
                    if before is None or before.kind not in (NAME,):
                        break
                texts.append(token.text)
                texts.append(self.tokens[token.mate].text)
                index = token.mate - 1
                continue
            texts.append(token.text)
            index -= 1
        return texts[::-1]

    def _find_bodies(self):
        stack = [False]
        self.bodies = []  # braces that open a function's outermost body
        for index, token in enumerate(self.tokens):
            if token.text == "{" and token.kind == SIGN:
                inside = self._holds_statements(index, stack[-1])
                if inside and not stack[-1]:
                    self.bodies.append(index)
                # An initializer inside a body is no place of statements, but its text is code.
                stack.append(inside or (stack[-1] and not self._declares(index)))
                token.code = stack[-1]
            elif token.text == "}" and token.kind == SIGN:
                token.code = stack[-1]
                if len(stack) > 1:
                    stack.pop()
            else:
                token.code = stack[-1]

    def _declares(self, brace):
        return any(word in self._head(brace) for word in NOT_A_BODY)

    def is_block(self, brace):
        return self._holds_statements(brace, self.tokens[brace].code)

    def begins_statement(self, index):
        """Behind a semicolon, a brace of statements, or a label."""
        if not self.tokens[index].code or index == 0:
            return False
        before = self.tokens[index - 1]
        if before.text == ";":
            return not self._in_parentheses(index)
        if before.text == "{":
            return self.is_block(index - 1)
        if before.text == "}" and before.mate is not None:
            return self.is_block(before.mate)
        return False

    def _in_parentheses(self, index):
        depth = 0
        for at in range(index - 1, -1, -1):
            text = self.tokens[at].text
            if text in "}" and self.tokens[at].kind == SIGN:
                depth += 1
            elif text == "{":
                if depth == 0:
                    return False
                depth -= 1
            elif depth == 0 and text == ")":
                depth_parens = self.tokens[at].mate
                if depth_parens is None:
                    return True
            elif depth == 0 and text == "(":
                mate = self.tokens[at].mate
                if mate is not None and mate >= index:
                    return True
        return False

    def statement_end(self, index):
        """Of the simple statement that begins here: its semicolon; None if a brace of statements comes first."""
        at = index
        while at < len(self.tokens):
            token = self.tokens[at]
            if token.text == ";":
                return at
            if token.text == "{" and self.is_block(at) and not self._is_lambda(at):
                return None
            if token.text in OPEN and token.kind == SIGN:
                if token.mate is None:
                    return None
                at = token.mate + 1
                continue
            if token.text in CLOSE and token.kind == SIGN:
                return None
            at += 1
        return None

    def _is_lambda(self, brace):
        at = brace - 1
        while at > 0 and self.tokens[at].text not in (";", "{", "}", "("):
            if self.tokens[at].text == "]":
                return True
            if self.tokens[at].text == ")" and self.tokens[at].mate is not None:
                at = self.tokens[at].mate
            at -= 1
        return False
