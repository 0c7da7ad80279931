"""docs/reference.md, from docstrings: ``python tools/reference.py > docs/reference.md``; a test compares.

Its examples stand in ``tools/reference_examples.py``, one section for each group of names; those of the page are run
by the test of the documents.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import vantage as vt
from vantage.parts import KINDS, is_config, registry
from vantage.spec.registry import Entry, parameters

EXAMPLES = Path(__file__).with_name("reference_examples.py")
HEADING = re.compile(r"^# ---- (.+)$", re.MULTILINE)
ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): (.*(?:\n {4,}.*)*)", re.MULTILINE)  # of a docstring: a name and its help
INTRODUCTION = """# Public names

Everything in `vantage.__all__`, written `vt.NAME` after `import vantage as vt`. These names are stable
([what that means](install.md#versions)). Generated from the docstrings by `python tools/reference.py`.
"""


def sections() -> dict[str, str]:
    """The code of each group, by its title."""
    pieces = HEADING.split(EXAMPLES.read_text(encoding="utf-8"))[1:]
    return {title: code.strip() for title, code in zip(pieces[::2], pieces[1::2], strict=True)}


def grouped() -> dict[str, list[str]]:
    """Each public name once: in the first group whose example uses it."""
    left = dict.fromkeys(vt.__all__)
    groups: dict[str, list[str]] = {}
    for title, code in sections().items():
        used = [name for name in left if re.search(rf"\bvt\.{name}\b", code)]
        groups[title] = sorted(used, key=str.lower)
        for name in used:
            del left[name]
    if left:
        raise SystemExit(f"no example in {EXAMPLES.name} uses {', '.join(left)}")
    return groups


def signature(name: str, value: Any) -> str:
    try:
        found = inspect.signature(value)
    except ValueError:  # a warning's own
        return f"vt.{name}"
    parameters = [
        re.sub(r"(?<=: )'([^']*)'|(?<=: )\"([^\"]*)\"", r"\1\2", str(one)) for one in found.parameters.values()
    ]
    kinds = [one.kind for one in found.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parameters.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    line = f"vt.{name}({', '.join(parameters)})"
    return line if len(line) <= 110 else "\n".join([f"vt.{name}(", *(f"    {one}," for one in parameters), ")"])


def words(value: Any) -> str:
    """A docstring as Markdown: its code is marked as there, and its arguments are a list."""
    text = (inspect.getdoc(value) or "").replace("``", "`")
    text = ARGUMENT.sub(lambda match: f"- `{match[1].replace(', ', '`, `')}`: {' '.join(match[2].split())}", text)
    return re.sub(r"<(?=[A-Za-z])", "&lt;", text)


@functools.cache
def registered() -> dict[type, Entry[Any]]:
    """The entry of each class that is a part of the package."""
    return {entry.config: entry for kind in KINDS for entry in registry(kind).entries()}


def summary(value: Any) -> str:
    """What a part is, as its registry has it, where its docstring does not say so itself."""
    entry = registered().get(value) if inspect.isclass(value) else None
    if entry is None or not entry.summary or words(value).startswith(entry.summary.rstrip(".")):
        return ""
    return f"**{entry.title}.** {entry.summary}\n\n"


def fields(value: Any) -> str:
    """The parameters of a part that have help, as a list."""
    if not inspect.isclass(value) or not is_config(value):
        return ""
    return "".join(f"- `{name}`: {info.help}\n" for name, info in parameters(value).items() if info.help)


def entry(name: str) -> str:
    value = getattr(vt, name)
    if inspect.ismodule(value):
        public = [one for one in getattr(value, "__all__", ()) if not one.startswith("_")]
        has = f"\n\nIt has {', '.join(f'`{one}`' for one in sorted(public))}.\n" if public else "\n"
        return f"### vt.{name}\n\n{words(value)}{has}"
    help = fields(value)
    text = f"{summary(value)}{words(value)}\n" + (f"\n{help}" if help else "")
    return f"### vt.{name}\n\n```\n{signature(name, value)}\n```\n\n{text}"


def page() -> str:
    code = sections()
    parts = [INTRODUCTION]
    for title, names in grouped().items():
        parts.append(f"## {title}\n\n```python\n{code[title]}\n```\n")
        parts += [entry(name) for name in names]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
