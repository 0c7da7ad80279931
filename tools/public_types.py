"""vantage/__init__.pyi, for type checkers: ``python tools/public_types.py > vantage/__init__.pyi``; a test compares.

The package imports a public name when it is first used, which no type checker follows. This file says where each is.
"""

from __future__ import annotations

import sys

import vantage

HEADER = "# Written by `python tools/public_types.py` from the names in __init__.py.\n"


def stub() -> str:
    homes = [(vantage._HOME[name], name) for name in vantage._HOME]
    homes += [(path.rpartition(".")[0], name) for name, path in vantage._MODULES.items()]
    lines = [f"from {module} import {name} as {name}\n" for module, name in sorted(homes)]
    return "".join([HEADER, *lines, "\n__version__: str\n__all__: list[str]\n"])


if __name__ == "__main__":
    sys.stdout.write(stub())
