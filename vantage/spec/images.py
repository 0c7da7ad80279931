"""Images in a text: where their patches stand, and what stands there in the place of token embeddings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, final

import torch
from torch import Tensor, nn

from vantage.errors import BadInput

if TYPE_CHECKING:
    from vantage.spec.model import ModelSpec
    from vantage.spec.parts import Kernel


class VisionConfig(Protocol):
    """What makes tokens of a text model out of images: ``build`` gives a module that takes a ``PreparedImage``."""

    @property
    def token(self) -> int:
        """The token id that stands in a text for one of an image's."""
        ...

    @property
    def merge(self) -> int:
        """So many patches by so many become one token."""
        ...

    @property
    def encoder(self) -> ModelSpec:
        """What the patches go through."""
        ...

    def build(self, width: int, kernel: str | Kernel) -> nn.Module: ...


class ImageGrid(NamedTuple):
    """How many patches an image has."""

    rows: int
    columns: int

    def merged(self, merge: int) -> ImageGrid:
        """The same in squares of merged patches."""
        return ImageGrid(self.rows // merge, self.columns // merge)

    def axes(self, merge: int = 1) -> Tensor:
        """(2, rows · columns): row and column of each patch. Patches that are merged follow one another."""
        places = torch.stack(torch.meshgrid(torch.arange(self.rows), torch.arange(self.columns), indexing="ij"))
        squares = places.unflatten(2, (-1, merge)).unflatten(
            1, (-1, merge)
        )  # (2, row, row in it, column, column in it)
        return squares.transpose(2, 3).flatten(1)


@final
@dataclass(frozen=True, eq=False)
class PreparedImage:
    """An image as a tower reads it, and a digest of its pixels, by which two images are told apart."""

    patches: Tensor  # (rows · columns, values of a patch), merged ones one after another
    grid: ImageGrid
    digest: bytes

    def tokens(self, merge: int) -> int:
        """How many tokens it takes in a text."""
        rows, columns = self.grid.merged(merge)
        return rows * columns


class ImageFeatures(NamedTuple):
    """What a tower makes of an image, (tokens, D) each."""

    embeddings: Tensor
    deep: tuple[Tensor, ...] = ()  # added after the first layers of the text model, one each (DeepStack 2024)


@final
@dataclass(frozen=True, eq=False)
class ImageTokens:
    """What stands at the tokens of a pass that are an image's."""

    index: Tensor  # (B, T): which of the features; -1: a token of text
    features: ImageFeatures  # of all images of the pass, (N, D) each

    def check(self, shape: tuple[int, int]) -> None:
        if tuple(self.index.shape) != shape:
            raise BadInput(f"images for tokens of shape {tuple(self.index.shape)}, and these are {shape}")

    def narrow(self, start: int, width: int) -> ImageTokens:
        """Of columns start … start + width - 1."""
        return replace(self, index=self.index[:, start : start + width])

    def put(self, x_BTD: Tensor) -> Tensor:
        """The features in the place of the embeddings."""
        return torch.where(self.index[..., None] >= 0, self._at(self.features.embeddings, x_BTD), x_BTD)

    def after(self, layer: int, x_BTD: Tensor) -> Tensor:
        """What a layer gave, with what is added after it."""
        if layer >= len(self.features.deep):
            return x_BTD
        deep = self._at(self.features.deep[layer], x_BTD)
        return torch.where(self.index[..., None] >= 0, x_BTD + deep, x_BTD)

    def _at(self, features_ND: Tensor, x: Tensor) -> Tensor:
        return features_ND.to(x)[self.index.clamp(min=0)]
