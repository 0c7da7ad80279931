"""What our own sources declare, read without running them: the names in a registry, the fields of a dataclass.

A part is a torch module, so importing it takes seconds. A command line that refuses a mistyped name should not take
them, and a part should stay one file and one line, without a second list of names. So the lines themselves are read:
``Entry("rope", …)``, ``entries_of("vantage.position", "rope", …)``, ``flex.COMPILED``. Whatever is written otherwise
is not understood, raises ``Unreadable``, and is left to the registry itself. A test holds both to say the same.
"""

from __future__ import annotations

import ast
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

ROOT = Path(__file__).parents[1]


class Unreadable(Exception):
    """A declaration that is written in another way than this module knows."""


@final
@dataclass(frozen=True)
class DeclaredEntry:
    """An entry as its source has it."""

    name: str
    config: str  # "module:Class"
    compared: bool
    randomised: bool


@final
@dataclass(frozen=True)
class DeclaredRegistry:
    what: str  # the kind of part, in words
    entries: tuple[DeclaredEntry, ...]


@cache
def declared_registry(home: str) -> DeclaredRegistry:
    """The registry that is declared at "module:NAME"."""
    module, _, name = home.partition(":")
    module, value = _resolved(module, name)
    match value:
        case ast.Call(func=ast.Name("Registry"), args=[ast.Constant(str(what)), entries, *_]):
            return DeclaredRegistry(what, tuple(_entries(module, entries)))
    raise Unreadable(home)


@cache
def declared_fields(home: str) -> frozenset[str]:
    """The fields of the dataclass "module:Class", those of its bases included."""
    module, _, name = home.partition(":")
    module, value = _resolved(module, name)
    if not isinstance(value, ast.ClassDef):
        raise Unreadable(home)
    own = {
        node.target.id for node in value.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    bases = [base.id for base in value.bases if isinstance(base, ast.Name)]
    if len(bases) < len(value.bases):
        raise Unreadable(home)
    return frozenset(own).union(*(declared_fields(f"{module}:{base}") for base in bases))


PLAIN = {"int": int, "float": float, "bool": bool, "str": str, "tuple": tuple, "Literal": typing.Literal}


@cache
def declared_types(home: str) -> dict[str, Any]:
    """The types of those fields of the dataclass "module:Class" whose values are plain: numbers, words, truths, and
    tuples of them."""
    module, _, name = home.partition(":")
    module, value = _resolved(module, name)
    if not isinstance(value, ast.ClassDef):
        raise Unreadable(home)
    types: dict[str, Any] = {}
    for base in value.bases:
        if isinstance(base, ast.Name):
            types |= declared_types(f"{module}:{base.id}")
    for node in value.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            types.pop(node.target.id, None)
            if {part.id for part in ast.walk(node.annotation) if isinstance(part, ast.Name)} <= set(PLAIN):
                # an annotation of our own sources that names nothing but the types above
                types[node.target.id] = eval(ast.unparse(node.annotation), {"__builtins__": {}}, PLAIN)
    return types


def declared_classes(home: str) -> tuple[str, ...]:
    """The classes in a tuple that is declared at "module:NAME", or that the annotation ``A | B`` names, as
    "module:Class" each."""
    module, _, name = home.partition(":")
    module, value = _resolved(module, name)
    return tuple(_classes(module, value))


@cache
def declared_hints(home: str) -> dict[str, tuple[str, ...]]:
    """What the annotation of each own field of "module:Class" names, as "module:Name" each; None is left out."""
    module, _, name = home.partition(":")
    module, value = _resolved(module, name)
    if not isinstance(value, ast.ClassDef):
        raise Unreadable(home)
    return {
        node.target.id: tuple(_classes(module, node.annotation))
        for node in value.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


# ---- reading


def _entries(module: str, value: ast.AST) -> Iterator[DeclaredEntry]:
    match value:
        case ast.Tuple(elts=parts):
            for part in parts:
                yield from _entries(module, part.value if isinstance(part, ast.Starred) else part)
        case ast.Call(func=ast.Name("Entry"), args=[ast.Constant(str(name)), ast.Name(config), *_], keywords=keywords):
            values = {k.arg: k.value.value for k in keywords if isinstance(k.value, ast.Constant)}
            compared, randomised = (bool(values.get(flag, True)) for flag in ("compared", "randomised"))
            yield DeclaredEntry(name, f"{module}:{config}", compared, randomised)
        case ast.Call(func=ast.Name("entries_of"), args=[ast.Constant(str(package)), *modules]):
            for one in modules:
                if not isinstance(one, ast.Constant):
                    raise Unreadable(module)
                yield from _entries(*_resolved(f"{package}.{one.value}", "ENTRY"))
        case ast.Name() | ast.Attribute():
            yield from _entries(*_followed(module, value))
        case _:
            raise Unreadable(module)


def _classes(module: str, value: ast.AST) -> Iterator[str]:
    match value:
        case ast.Tuple(elts=parts):
            for part in parts:
                yield from _classes(module, part)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from _classes(module, left)
            yield from _classes(module, right)
        case ast.Name(name):
            yield f"{module}:{name}"
        case ast.Constant(None):
            return
        case _:
            raise Unreadable(module)


def _followed(module: str, value: ast.Name | ast.Attribute) -> tuple[str, ast.AST]:
    """What a name, or a name of an imported module, stands for."""
    if isinstance(value, ast.Name):
        return _resolved(module, value.id)
    imported = _declarations(module).get(value.value.id) if isinstance(value.value, ast.Name) else None
    if not isinstance(imported, str):
        raise Unreadable(module)
    return _resolved(imported.replace(":", "."), value.attr)


def _resolved(module: str, name: str) -> tuple[str, ast.AST]:
    """Where a name is declared, through imports, and as what."""
    value = _declarations(module).get(name)
    if isinstance(value, str):
        return _resolved(*value.split(":"))
    if value is None:
        raise Unreadable(f"{module}:{name}")
    return module, value


@cache
def _declarations(module: str) -> dict[str, ast.AST | str]:
    """The top level of a module: what is assigned, classes, and what comes from where ("module:name")."""
    path = ROOT.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if module.partition(".")[0] != ROOT.name or not path.is_file():
        raise Unreadable(module)
    declared: dict[str, ast.AST | str] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ImportFrom(module=str(source), names=names):
                declared |= {name.asname or name.name: f"{source}:{name.name}" for name in names}
            case ast.ClassDef(name):
                declared[name] = node
            case ast.Assign(targets=[ast.Name(name)], value=value) | ast.AnnAssign(target=ast.Name(name), value=value):
                if value is not None:
                    declared[name] = value
    return declared
