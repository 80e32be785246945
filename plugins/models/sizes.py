"""Sizes that are arithmetic with symbolic dimensions, as PyTorch writes them: "2*s0 + 1" in
exported programs of torch 2.5 and in ONNX models, "Add(Mul(Integer(2), Symbol('s0')), Integer(1))"
in exported programs of later versions."""
import ast
import math
from collections.abc import Callable

from model import ModelError, shown

Symbol = Callable[[str], int | str]  # the value of a name, or the name

# The parser recurses.
_MOST_CHARACTERS = 4096
_FIXED = "export the model with fixed sizes"


def _power(base: int, exponent: int) -> int:
    if not 0 <= exponent <= 8:
        raise ValueError(f"the power {exponent} in a size")
    return base ** exponent


# As sympy writes them.
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "Integer": int,
    "Add": lambda *terms: sum(terms),
    "Mul": lambda *factors: math.prod(factors),
    "Pow": _power,
    "FloorDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "CleanDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "Max": max,
    "Min": min,
}
_OPERATORS = {
    ast.Add: "Add",
    ast.Mult: "Mul",
    ast.Pow: "Pow",
    ast.FloorDiv: "FloorDiv",
    ast.Mod: "Mod",
}


def value_of(text: str, symbol: Symbol) -> int | str:
    """The value of a size, or the first symbol in it that has none.
    Errors: ModelError, if the text is something else."""
    if len(text) > _MOST_CHARACTERS:
        raise ModelError(f"a size is an expression of {len(text)} characters, and "
                         f"{_MOST_CHARACTERS} is the most; {_FIXED}")
    try:
        return _value(ast.parse(text, mode="eval").body, symbol)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ModelError(f"the size {shown(text)} is not understood; {_FIXED}") from None


def _value(node: ast.expr, symbol: Symbol) -> int | str:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return symbol(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _apply("Mul", [-1, _value(node.operand, symbol)])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return _apply("Add", [_value(node.left, symbol),
                              _apply("Mul", [-1, _value(node.right, symbol)])])
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        operands = [_value(node.left, symbol), _value(node.right, symbol)]
        return _apply(_OPERATORS[type(node.op)], operands)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "Symbol" and node.args and isinstance(node.args[0], ast.Constant):
            return symbol(str(node.args[0].value))
        return _apply(node.func.id, [_value(argument, symbol) for argument in node.args])
    raise ValueError("no arithmetic")


def _apply(function: str, values: list) -> int | str:
    for value in values:
        if isinstance(value, str):
            return value
    if function not in _FUNCTIONS:
        raise ModelError(f"a size uses {shown(function)}, which is not understood; {_FIXED}")
    try:
        return _FUNCTIONS[function](*values)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ModelError(f"a size cannot be computed ({error}); "
                         "choose other values for --dim") from None
