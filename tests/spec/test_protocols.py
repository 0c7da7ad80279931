"""Protocols that are asked for at run time can be answered by every supported Python."""

from __future__ import annotations

import ast
from pathlib import Path

import vantage

# Python 3.12's isinstance looks for values in the class and in the instance's own dictionary. ``nn.Module`` keeps
# modules and parameters elsewhere and finds them by ``__getattr__``, so a protocol that asks for one holds for nobody.
UNSEEN = ("Module", "Parameter", "Tensor", "Linear")


def runtime_protocols() -> list[ast.ClassDef]:
    files = Path(vantage.__file__).parent.rglob("*.py")
    classes = [
        node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)
    ]
    return [c for c in classes if any(ast.unparse(d) == "runtime_checkable" for d in c.decorator_list)]


def test_no_value_is_asked_for_that_a_module_keeps_elsewhere():
    protocols = runtime_protocols()
    values = [
        f"{protocol.name}.{ast.unparse(node)}"
        for protocol in protocols
        for node in protocol.body
        if isinstance(node, ast.AnnAssign)
    ]
    assert len(protocols) > 40
    assert len(values) > 5
    unseen = [value for value in values if any(kind in value for kind in UNSEEN)]
    assert not unseen, "make these methods"
