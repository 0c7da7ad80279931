"""How many devices share a model, as frozen data. ``vantage.inspect.mesh_cost`` counts what each of them has to do."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import final

from vantage.errors import BadInput


@final
@dataclass(frozen=True)
class MeshShape:
    """So many devices share heads and columns, and so many the tokens of a pass.

    With ``data`` or ``experts`` it is the mesh of a training (``vantage train``): over so many lie rows, and experts
    over so many more, and FSDP2 shares the weights out over all that have different tokens.
    """

    tensor: int = 1
    context: int = 1
    data: int | None = None
    experts: int = 1

    @property
    def devices(self) -> int:
        return self.tensor * self.context * (self.data or 1) * self.experts

    @property
    def shards(self) -> int:
        """Over how many devices weights are shared out; 1: they are whole."""
        return self.expert_shards * self.experts if self.trains else 1

    @property
    def expert_shards(self) -> int:
        """The same for those of an expert."""
        return (self.data or 1) * self.context if self.trains else 1

    @property
    def trains(self) -> bool:
        return self.data is not None or self.experts > 1

    @staticmethod
    def read(text: str) -> MeshShape:
        """From "tensor=2,context=4", "data=2,tensor=2" or "experts=8"."""
        axes = "|".join(f.name for f in fields(MeshShape))
        sizes: dict[str, int] = {}
        for word in text.split(","):
            match = re.fullmatch(rf"\s*({axes})=(\d{{1,6}})\s*", word)
            if match is None or match[1] in sizes or not int(match[2]):
                raise BadInput(
                    f"--mesh {text!r}: give numbers of devices, as in tensor=2,context=4; for a training also data and "
                    "experts"
                )
            sizes[match[1]] = int(match[2])
        return MeshShape(**sizes)
