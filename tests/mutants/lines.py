"""Makes one-line mutants of a module: small changes of its logic that some test should notice.

Comparisons, arithmetic, and/or, not, min/max, numbers and truth values are changed, and statements that only call or
count are dropped. Left alone: docstrings, annotations, log lines, assertions, texts of errors, and settings (constants
of a module, defaults of fields and parameters), which are choices and not logic.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
COMPUTED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
}
SETTINGS = (ast.AnnAssign, ast.Assign)


@dataclass(frozen=True, order=True)
class Mutant:
    path: str
    """The module, from the package's folder."""
    line: int
    column: int
    old: str
    new: str
    text: str
    """The line as it is in the source."""
    nth: int = 0
    """How many lines before it in the module have the same mutant."""

    @property
    def told(self) -> str:
        """What the mutant is, without its place."""
        column = self.column - (len(self.text) - len(self.text.lstrip()))
        return f"{self.path}|{self.text.strip()}|{column}|{self.old}|{self.new}"

    @property
    def id(self) -> str:
        """Stays the same while the line does, wherever it moves to within its module."""
        return hashlib.sha256(f"{self.told}|{self.nth}".encode()).hexdigest()[:12]

    def rank(self, seed: int) -> str:
        """The order in which mutants are drawn: by a hash, so that a change elsewhere does not draw others."""
        return hashlib.sha256(f"{seed}|{self.id}".encode()).hexdigest()

    @property
    def after(self) -> str:
        return self.text[: self.column] + self.new + self.text[self.column + len(self.old) :]

    def applied(self, source: str) -> str:
        lines = source.splitlines(keepends=True)
        assert lines[self.line - 1].rstrip("\n") == self.text
        lines[self.line - 1] = self.after + "\n"
        return "".join(lines)


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every mutant of a module, each once. A few can't be parsed."""
    lines = source.splitlines()
    found = {
        Mutant(path, line, start, old, new, lines[line - 1])
        for node in _logic(ast.parse(source))
        for line, start, old, new in _changes(node, lines)
    }
    seen: Counter[str] = Counter()
    made = []
    for mutant in sorted(found):
        made.append(replace(mutant, nth=seen[mutant.told]))
        seen[mutant.told] += 1
    return made


def candidates(package: Path, folders: tuple[str, ...]) -> list[Mutant]:
    paths = [path for folder in folders for path in sorted((package / folder).rglob("*.py"))]
    return [
        mutant
        for path in paths
        for mutant in mutants_of(str(path.relative_to(package)), path.read_text(encoding="utf-8"))
    ]


def draw(everything: list[Mutant], package: Path, seed: int, count: int) -> list[Mutant]:
    """The first `count` by rank that can be parsed."""
    drawn: list[Mutant] = []
    for mutant in sorted(everything, key=lambda one: one.rank(seed)):
        if len(drawn) == count:
            break
        try:
            ast.parse(mutant.applied((package / mutant.path).read_text(encoding="utf-8")))
        except SyntaxError:
            continue
        drawn.append(mutant)
    return drawn


def _logic(node: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """The nodes that may be changed. `inside`: within a function."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "defaults", "kw_defaults"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _left_alone(child, inside):
                continue
            yield child
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _logic(child, inside or function)


def _left_alone(node: ast.AST, inside: bool) -> bool:
    if isinstance(node, SETTINGS) and not inside:
        return True
    if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("log.", "logging.", "cast", "warnings."))


def _changes(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, int, str, str]]:
    """Line, column, and what is there and instead."""
    if isinstance(node, ast.Compare):
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            yield from _between(left, right, *COMPARED[type(operator)], lines)
            left = right
    elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
        if not _is_text(node.left) and not _is_text(node.right):
            yield from _between(node.left, node.right, *COMPUTED[type(node.op)], lines)
    elif isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _between(left, right, f" {old} ", f" {new} ", lines)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.lineno, _column(node, lines), "not ", ""
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        yield from _other_value(node, lines)
    elif isinstance(node, ast.Name) and node.id in ("min", "max"):
        yield node.lineno, _column(node, lines), node.id, "max" if node.id == "min" else "min"
    elif _is_effect(node):
        assert isinstance(node, ast.stmt)
        old = lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()
        yield node.lineno, _column(node, lines), old, "pass"


def _is_effect(node: ast.AST) -> bool:
    """Whether a statement only calls something or counts, on one line."""
    if not isinstance(node, ast.Expr | ast.AugAssign) or node.lineno != node.end_lineno:
        return False
    return isinstance(node, ast.AugAssign) or (isinstance(node.value, ast.Call) and not _left_alone(node.value, True))


def _other_value(node: ast.Constant, lines: list[str]) -> Iterator[tuple[int, int, str, str]]:
    old = lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()
    value = node.value
    if isinstance(value, bool):
        new = str(not value)
    elif isinstance(value, int):
        new = str(value + 1)
    else:
        assert isinstance(value, float)
        new = repr(value * 2 if value else 1.0)
    yield node.lineno, _column(node, lines), old, new


def _between(
    left: ast.expr, right: ast.expr, old: str, new: str, lines: list[str]
) -> Iterator[tuple[int, int, str, str]]:
    """Where an operator stands between two operands on one line."""
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    text = lines[right.lineno - 1].encode()
    start = text.find(old.encode(), left.end_col_offset, right.col_offset)
    if start >= 0:
        yield right.lineno, len(text[:start].decode()), old, new


def _column(node: ast.expr | ast.stmt, lines: list[str]) -> int:
    """In characters: ast counts bytes."""
    return len(lines[node.lineno - 1].encode()[: node.col_offset].decode())


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
