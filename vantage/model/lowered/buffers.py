"""What every lowered program has, whatever runs it: buffers of rows by name, and modules that say their own steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from torch import nn

from vantage.spec.native import (
    HasNativeForm,
    HasNativeTransform,
    HeadColumns,
    implements,
    no_native_form,
)

if TYPE_CHECKING:
    from vantage.spec.native import Program


@dataclass
class ProgramBuffers:
    """A buffer goes by its number; the same name and width is the same buffer."""

    widths: list[int] = field(default_factory=list)
    names: dict[tuple[str, int], int] = field(default_factory=dict)
    out: int = 0  # the buffer of the result

    def width(self, buffer: int) -> int:
        return self.widths[buffer]

    def buffer(self, name: str, width: int) -> int:
        if (name, width) not in self.names:
            self.names[name, width] = len(self.widths)
            self.widths.append(width)
        return self.names[name, width]

    def lower(self: Program, module: nn.Module, src: int, into: int | None = None) -> int:
        if isinstance(module, nn.Identity):
            return src
        if implements(module, HasNativeForm):
            return cast(HasNativeForm, module).native(self, src, into)
        dst = self.buffer("normed", self.width(src))
        self.norm(module, src, dst)
        return dst

    def transform(self: Program, module: nn.Module, queries: HeadColumns, keys: HeadColumns) -> None:
        if not implements(module, HasNativeTransform):
            raise no_native_form(module)
        cast(HasNativeTransform, module).native_transform(self, queries, keys)
