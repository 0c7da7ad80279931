"""A spec as one line of text that stays the same when classes gain fields.

Saved caches and conversations name their model by a digest over it. A field that came later has ``metadata=LATER`` and
is left out where it has its default: then a spec of before reads as it did.
"""

from __future__ import annotations

import dataclasses
from typing import Any

LATER = {"later": True}


def stable_repr(value: Any) -> str:
    """``repr``, without the later fields that are at their default."""
    if isinstance(value, tuple) and type(value) is tuple:
        return "(" + ", ".join(map(stable_repr, value)) + (",)" if len(value) == 1 else ")")
    if not dataclasses.is_dataclass(value) or isinstance(value, type) or not value.__dataclass_params__.repr:  # pyright: ignore[reportAttributeAccessIssue] (every dataclass has them)
        return repr(value)
    shown = (
        f"{f.name}={stable_repr(getattr(value, f.name))}"
        for f in dataclasses.fields(value)
        if f.repr and not (f.metadata.get("later") and getattr(value, f.name) == f.default)
    )
    return f"{type(value).__qualname__}({', '.join(shown)})"
