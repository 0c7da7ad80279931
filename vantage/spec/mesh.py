"""How many devices share a model, as frozen data. ``vantage.inspect.mesh_cost`` counts what each of them has to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import final

from vantage.errors import BadInput


@final
@dataclass(frozen=True)
class MeshShape:
    """So many devices share heads and columns, and so many the tokens of a pass."""

    tensor: int = 1
    context: int = 1

    @property
    def devices(self) -> int:
        return self.tensor * self.context

    @staticmethod
    def read(text: str) -> MeshShape:
        """From "tensor=2,context=4"."""
        sizes: dict[str, int] = {}
        for word in text.split(","):
            match = re.fullmatch(r"\s*(tensor|context)=(\d{1,6})\s*", word)
            if match is None or match[1] in sizes or not int(match[2]):
                raise BadInput(f"--mesh {text!r}: give numbers of devices, as in tensor=2,context=4")
            sizes[match[1]] = int(match[2])
        return MeshShape(**sizes)
