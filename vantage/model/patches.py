"""Images as sequences (ViT, Dosovitskiy et al. 2020): a linear map of each patch, behind a learned class token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.spec.parts import INIT_STD


@dataclass(frozen=True)
class Patches:
    """Sizes are (height, width) in pixels. Row by row, the patches stand at positions 1, 2, …; 0 is the class token."""

    image: tuple[int, int]
    patch: tuple[int, int]
    channels: int = 3

    def __post_init__(self) -> None:
        if self.channels < 1 or min(self.patch) < 1 or any(i < p for i, p in zip(self.image, self.patch, strict=True)):
            raise BadInput(f"{self}: an image needs a channel and room for one patch of at least 1 pixel")

    @property
    def places(self) -> int:
        """Patches and the class token. Pixels that fill no whole patch are left out, as in the original."""
        return 1 + (self.image[0] // self.patch[0]) * (self.image[1] // self.patch[1])

    def build(self, width: int) -> nn.Module:
        return PatchEmbedding(self, width)


@dataclass(frozen=True)
class PatchVectors:
    """Patches that were cut before: each comes as its values, ``frames`` times ``channels`` · ``size`` · ``size``."""

    size: int
    frames: int = 1  # of a film, which make one patch; an image is repeated
    channels: int = 3
    bias: bool = True

    def __post_init__(self) -> None:
        if min(self.size, self.frames, self.channels) < 1:
            raise BadInput(f"{self}: a patch needs at least 1 pixel, frame and channel")

    @property
    def values(self) -> int:
        return self.frames * self.channels * self.size**2

    def build(self, width: int) -> nn.Module:
        return PatchMap(self, width)


class PatchMap(nn.Module):
    """(B, T, values) to (B, T, D)."""

    def __init__(self, config: PatchVectors, width: int):
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(width, config.values))
        self.bias = nn.Parameter(torch.zeros(width)) if config.bias else None
        nn.init.normal_(self.weight, std=INIT_STD)

    def check(self, patches: Tensor) -> None:
        if patches.dim() != 3 or patches.shape[2] != self.config.values or not patches.is_floating_point():
            raise BadInput(
                f"patches are {patches.dtype} of shape {tuple(patches.shape)}: give numbers with a fraction, (batch, "
                f"patches, {self.config.values})"
            )

    def size(self, patches: Tensor) -> tuple[int, int]:
        return patches.shape[0], patches.shape[1]

    def forward(self, patches_BTv: Tensor) -> Tensor:
        return F.linear(patches_BTv.to(self.weight.dtype), self.weight, self.bias)


class PatchEmbedding(nn.Module):
    """(B, C, H, W) to (B, T, D): a convolution whose steps are as wide as its window is a linear map of each patch."""

    def __init__(self, config: Patches, width: int):
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(width, config.channels, *config.patch))
        self.bias = nn.Parameter(torch.zeros(width))
        self.first = nn.Parameter(torch.empty(width))  # the class token
        nn.init.normal_(self.weight, std=INIT_STD)
        nn.init.normal_(self.first, std=INIT_STD)

    def check(self, images: Tensor) -> None:
        wanted = (self.config.channels, *self.config.image)
        if images.dim() != 4 or images.shape[1:] != wanted or images.shape[0] < 1 or not images.is_floating_point():
            raise BadInput(
                f"images are {images.dtype} of shape {tuple(images.shape)}: give numbers with a fraction, (batch, "
                f"{', '.join(map(str, wanted))}) for channels, height and width"
            )

    def size(self, images: Tensor) -> tuple[int, int]:
        return images.shape[0], self.config.places

    def forward(self, images: Tensor) -> Tensor:
        patches = F.conv2d(images.to(self.weight.dtype), self.weight, self.bias, stride=self.config.patch)
        first = self.first.expand(len(images), 1, -1)
        return torch.cat((first, patches.flatten(2).transpose(1, 2)), dim=1)
