"""Small wrong changes to a source file: a sign, a comparison, a constant, a condition."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


# A condition turned round is the same program as one whose comparison is.
OPPOSITES = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)


@dataclass(frozen=True)
class Mutant:
    """One change. ``line`` and ``change`` name it, so that an explanation survives code that moves."""

    file: str
    number: int
    line: str
    change: str
    site: int | None  # which of the file's; None: nothing is changed

    @property
    def name(self) -> str:
        return f"{self.file}:{self.number}: {self.change}\n      {self.line}"

    def tree(self, root: Path) -> ast.Module:
        """The file with the change, each line where it was."""
        tree = ast.parse((root / self.file).read_text())
        if self.site is not None:
            list(_sites(tree))[self.site].apply()
        return ast.fix_missing_locations(tree)

    def source(self, root: Path) -> str:
        """The file with the change."""
        return (root / self.file).read_text() if self.site is None else ast.unparse(self.tree(root))


def mutants(path: Path, root: Path) -> Iterator[Mutant]:
    """Every mutant of a file. Messages, annotations, assertions and __all__ are left alone."""
    text = path.read_text()
    lines = text.splitlines()
    for i, site in enumerate(_sites(ast.parse(text))):
        yield Mutant(str(path.relative_to(root)), site.number, lines[site.number - 1].strip(), site.change, i)


class _Site(NamedTuple):
    """A place in a tree where something can be changed."""

    number: int  # of its line
    change: str
    apply: Callable[[], None]


def _sites(tree: ast.AST) -> Iterator[_Site]:
    for node in _walk(tree):
        number = getattr(node, "lineno", 1)
        if isinstance(node, ast.Compare):
            for i, op in enumerate(node.ops):
                new = SWAPS[type(op)]()
                yield _Site(number, _swap(op, new), lambda n=node, i=i, new=new: n.ops.__setitem__(i, new))
        elif isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)) and type(node.op) in SWAPS:
            new = SWAPS[type(node.op)]()
            yield _Site(number, _swap(node.op, new), lambda n=node, new=new: setattr(n, "op", new))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not, ast.Invert)):
            # the operand twice over means the operator is gone: --x, not not x, ~~x
            again = ast.UnaryOp(type(node.op)(), node.operand)
            change = f"drop {type(node.op).__name__}"
            yield _Site(number, change, lambda n=node, a=again: setattr(n, "operand", a))
        elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            value = _other(node.value)
            yield _Site(number, f"{node.value} -> {value}", lambda n=node, v=value: setattr(n, "value", v))
        elif isinstance(node, (ast.If, ast.IfExp)) and not _turned_below(node.test):
            turned = ast.UnaryOp(ast.Not(), node.test)
            yield _Site(number, "condition turned round", lambda n=node, t=turned: setattr(n, "test", t))


def _turned_below(test: ast.expr) -> bool:
    """Whether another mutant turns this condition round already."""
    if isinstance(test, ast.Compare):
        return len(test.ops) == 1 and isinstance(test.ops[0], OPPOSITES)
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def _other(value: bool | int | float) -> bool | int | float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value * 2 if value else 1.0


def _swap(old: ast.AST, new: ast.AST) -> str:
    return f"{type(old).__name__} -> {type(new).__name__}"


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node whose change could matter to a caller."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "type_comment", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)) or not isinstance(child, ast.AST):
                continue  # what an error says is not what a test should spell out
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id == "damaged":
                continue  # of cache/dump.py: a raise in disguise
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue  # of zip: an assertion in disguise
            if isinstance(child, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "__all__" for t in child.targets
            ):
                continue
            if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
                continue
            yield from _walk(child)
