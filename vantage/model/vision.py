"""A vision tower: patches through an encoder, squares of them merged into tokens of a text model (Qwen2-VL 2024).

An image is a pass of its own: what it gives does not depend on what else stands in a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.model.linear import dense
from vantage.model.norms import LayerNorm
from vantage.model.part_errors import build_norm
from vantage.model.transformer import Model
from vantage.spec.images import ImageFeatures, PreparedImage
from vantage.spec.model import ModelSpec, NormConfig
from vantage.spec.parts import Kernel
from vantage.spec.positions import Positions


@dataclass(frozen=True)
class VisionTower:
    """``encoder`` reads patches, whose positions are rows and columns; ``deep`` are those of its layers whose output is
    merged as well, for the first layers of the text model, one each (DeepStack)."""

    token: int
    encoder: ModelSpec
    merge: int = 2
    norm: NormConfig = field(default_factory=lambda: LayerNorm(1e-6))  # before merging
    deep: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "deep", tuple(self.deep))
        if self.token < 0 or self.merge < 1:
            raise BadInput(f"token={self.token}, merge={self.merge}: give a token id, and at least 1 patch to a side")
        encoder = self.encoder
        if encoder.embedding.source is None or encoder.head is not None or encoder.vision is not None:
            raise BadInput("the encoder of a vision tower reads patches (embedding.source), without head and tower")
        if list(self.deep) != sorted({*self.deep}) or not all(0 <= i < len(self.encoder.layers) for i in self.deep):
            raise BadInput(f"deep={self.deep}: give layers of the tower, 0 to {len(self.encoder.layers) - 1}, in order")

    def build(self, width: int, kernel: str | Kernel) -> nn.Module:
        return ImageTower(self, width, kernel)


class ImageTower(nn.Module):
    """``tower(image)``: what stands in the text for an image."""

    def __init__(self, config: VisionTower, width: int, kernel: str | Kernel):
        super().__init__()
        self.config = config
        self.encoder = Model(config.encoder, kernel=kernel)
        self.merger = Merger(config, width, normed_apart=True)
        self.deep_mergers = nn.ModuleList([Merger(config, width, normed_apart=False) for _ in config.deep])

    def forward(self, image: PreparedImage) -> ImageFeatures:
        encoder, merge = self.encoder, self.config.merge
        self._check(image)
        patches = image.patches[None].to(encoder.device, encoder.dtype)
        pos = Positions.of_axes(image.grid.axes(merge)[:, None]).to(encoder.device)
        encoder.embed.tokens.check(patches)
        x, ctx, deep = encoder.embed(patches, pos), encoder.context(pos, None), list[Tensor]()
        for i, block in enumerate(encoder.blocks):
            x = block(x, ctx)
            if i in self.config.deep:
                deep.append(self.deep_mergers[len(deep)](x)[0])
        return ImageFeatures(self.merger(encoder.norm(x))[0], tuple(deep))

    def _check(self, image: PreparedImage) -> None:
        (rows, columns), merge = image.grid, self.config.merge
        if rows * columns != len(image.patches) or min(rows, columns) < 1 or rows % merge or columns % merge:
            raise BadInput(
                f"an image of {rows} × {columns} patches, of which there are {len(image.patches)}: both sides must be "
                f"multiples of {merge}"
            )


class Merger(nn.Module):
    """(B, T, tower's width) to (B, T / merge², D): each square of patches as one vector, through two maps."""

    def __init__(self, config: VisionTower, width: int, *, normed_apart: bool):
        super().__init__()
        own, self.square = config.encoder.width, config.merge**2
        self.normed_apart = normed_apart  # each patch by itself, not the square as a whole
        self.norm = build_norm(config.norm, own if normed_apart else own * self.square)
        self.up = dense(own * self.square, own * self.square, True)
        self.down = dense(own * self.square, width, True)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x = self._squares(self.norm(x_BTD)) if self.normed_apart else self.norm(self._squares(x_BTD))
        return self.down(F.gelu(self.up(x)))

    def _squares(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, self.square)).flatten(2)
