"""MXFP4 (OCP Microscaling, 2023): 4-bit floats in groups of 32 that share a power of two, as GPT-OSS is published.

A matrix is stored as two tensors of bytes: ``…_blocks`` (…, rows, groups, 16), two numbers a byte, the first in
the low half; and ``…_scales`` (…, rows, groups), the exponent plus 127. Unpacked it has its columns first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.checkpoints.tensor_names import Tensors
from vantage.errors import CheckpointError

BLOCKS, SCALES = "_blocks", "_scales"
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = (*MAGNITUDES, *(-m for m in MAGNITUDES))
NOT_A_NUMBER = 255  # of the exponents


class Unpacked:
    """A checkpoint whose packed matrices look like plain ones, and are unpacked when they are asked for."""

    def __init__(self, tensors: Tensors):
        self.tensors = tensors
        names = list(tensors.names())
        held = set(names)
        stems = [name.removesuffix(BLOCKS) for name in names if name.endswith(BLOCKS)]
        self._packed = [stem for stem in stems if stem + SCALES in held]
        taken = {stem + end for stem in self._packed for end in (BLOCKS, SCALES)}
        self._plain = [name for name in names if name not in taken]
        if both := sorted(set(self._packed) & held):
            raise CheckpointError(f"the checkpoint holds {both[0]!r} both plain and packed")

    def names(self) -> list[str]:
        return [*self._plain, *self._packed]

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._packed:
            return self.tensors.shape(name)
        blocks, scales = self.tensors.shape(name + BLOCKS), self.tensors.shape(name + SCALES)
        if len(blocks) < 3 or blocks[-1] != 16 or blocks[:-1] != scales:
            raise CheckpointError(
                f"{name + BLOCKS!r} has shape {blocks} and {name + SCALES!r} {scales}: "
                "wanted (…, rows, groups, 16) and (…, rows, groups)"
            )
        *front, rows, groups, _ = blocks
        return (*front, groups * 32, rows)

    def get(self, name: str) -> Tensor:
        if name not in self._packed:
            return self.tensors.get(name)
        blocks, scales = self.tensors.get(name + BLOCKS), self.tensors.get(name + SCALES)
        for end, part in ((BLOCKS, blocks), (SCALES, scales)):
            if part.dtype != torch.uint8:
                raise CheckpointError(f"{name + end!r} holds {part.dtype}, not the bytes of MXFP4")
        if bool((scales == NOT_A_NUMBER).any()):
            raise CheckpointError(f"{name + SCALES!r} holds NaN: the file is damaged")
        return unpack(blocks, scales).transpose(-1, -2)


def unpack(blocks: Tensor, scales: Tensor) -> Tensor:
    """(…, rows, groups, 16) and (…, rows, groups) to (…, rows, groups · 32), in bfloat16, which holds it exactly."""
    values = torch.tensor(VALUES, dtype=torch.bfloat16)
    powers = torch.tensor([2.0 ** (e - 127) for e in range(NOT_A_NUMBER)], dtype=torch.bfloat16)  # exact, unlike exp2
    numbers = torch.stack((values[(blocks & 15).int()], values[(blocks >> 4).int()]), -1).flatten(-2)
    return numbers.mul_(powers[scales.int()][..., None]).flatten(-2)
