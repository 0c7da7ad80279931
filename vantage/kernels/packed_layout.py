"""How quantised weights are laid out for the native kernels, in torch: ``kernels/native/formats.h`` says it in C++.

What a GGUF block holds for one output stands there side by side for 16, and the bits of its numbers in words of 32
bits: inputs 2p and 2p + 1 at the same place of the lower and the upper half. Numbers of 16 bits stand as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vantage.kernels.native import Format
from vantage.spec.native import LANES

BLOCK, SUPER = 32, 4  # inputs that stand together, and groups side by side
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # in halves


class Form(NamedTuple):
    """w = scale · (n - offset), or scale · n + minimum, or scale · table[n]."""

    low: int  # bits of a number, and those that stand apart from them
    high: int = 0
    share: int = 32  # inputs that share a scale
    wide: bool = False  # blocks of 256 inputs, with a scale for all and a factor for each part
    minimum: bool = False
    offset: int = 0
    table: tuple[int, ...] | None = None
    number: torch.dtype | None = None  # of 16 bits, as they are: no scales

    @property
    def inputs(self) -> int:
        """Of a block."""
        return 256 if self.wide else BLOCK

    @property
    def nibbles(self) -> bool:
        """Whether the factors of a scale and a minimum share a byte."""
        return self.wide and self.minimum and self.share == 16

    @property
    def factors(self) -> int:
        """Bytes for each output."""
        return self.inputs // self.share * (2 if self.minimum and not self.nibbles else 1) if self.wide else 0

    @property
    def scales(self) -> int:
        """Bytes before the numbers, of a group of outputs."""
        return 0 if self.number else LANES * (2 * (1 + self.minimum) + self.factors)

    @property
    def bytes(self) -> int:
        """Of a group's block."""
        return self.scales + LANES * self.inputs * (self.low + self.high) // 8


FORMS = {
    Format.Q8_0: Form(8),
    Format.Q4_0: Form(4, offset=8),
    Format.Q4_1: Form(4, minimum=True),
    Format.Q5_0: Form(4, 1, offset=16),
    Format.Q5_1: Form(4, 1, minimum=True),
    Format.Q2_K: Form(2, share=16, wide=True, minimum=True),
    Format.Q3_K: Form(2, 1, share=16, wide=True, offset=4),
    Format.Q4_K: Form(4, wide=True, minimum=True),
    Format.Q5_K: Form(4, 1, wide=True, minimum=True),
    Format.Q6_K: Form(6, share=16, wide=True, offset=32),
    Format.IQ4_NL: Form(4, table=IQ4),
    Format.IQ4_XS: Form(4, wide=True, table=IQ4),
    Format.MXFP4: Form(4, table=E2M1),
    Format.F16: Form(16, number=torch.float16),
    Format.BF16: Form(16, number=torch.bfloat16),
}

# Bytes of so many inputs in a GGUF file.
BLOCK_BYTES = {
    Format.Q8_0: 34,
    Format.Q4_0: 18,
    Format.Q4_1: 20,
    Format.Q5_0: 22,
    Format.Q5_1: 24,
    Format.Q2_K: 84,
    Format.Q3_K: 110,
    Format.Q4_K: 144,
    Format.Q5_K: 176,
    Format.Q6_K: 210,
    Format.IQ4_NL: 18,
    Format.IQ4_XS: 136,
    Format.MXFP4: 17,
    Format.F16: 64,
    Format.BF16: 64,
}


def size(format: Format, outputs: int, inputs: int) -> int:
    """Bytes of a matrix; the last group is filled up."""
    form = FORMS[format]
    return -(-outputs // LANES) * (inputs // form.inputs) * form.bytes


def pack(numbers_NK: Tensor, scales_NKS: Tensor, format: Format) -> Tensor:
    """Bytes from the numbers of a format with blocks of 32, and their scales (and minima) in half precision."""
    form, lanes = FORMS[format], -len(numbers_NK) % LANES
    numbers = _lanes_last(torch.nn.functional.pad(numbers_NK, (0, 0, 0, lanes)), BLOCK)  # (groups, K, 32, lanes)
    scales = _lanes_last(torch.nn.functional.pad(scales_NKS.flatten(1), (0, 0, 0, lanes)), scales_NKS.shape[2])
    words = _words(numbers.to(torch.int64), form.low)
    blocks = torch.cat([part.contiguous().view(torch.uint8).flatten(2) for part in (scales, words)], 2)
    return _interleave(blocks)


def unpack(data: Tensor, format: Format, outputs: int, inputs: int) -> Tensor:
    """The weights, float32 (outputs, inputs)."""
    form, groups = FORMS[format], -(-outputs // LANES)
    blocks = _separate(data.view(-1, form.bytes), groups, inputs // form.inputs)  # (groups, K, bytes)
    if form.number:
        numbers = blocks.contiguous().view(form.number).float().unflatten(2, (form.inputs, LANES))
        return numbers.flatten(1, 2).transpose(1, 2).flatten(0, 1)[:outputs]
    head, body = blocks[..., : form.scales], blocks[..., form.scales :]
    apart = body.unflatten(2, (form.inputs // BLOCK, -1)).split(
        [LANES * BLOCK * bits // 8 for bits in (form.low, form.high)], 3
    )
    numbers = _numbers(apart[0], form.low)  # (groups, K, parts of 32, 32, lanes)
    if form.high:
        numbers = numbers | _numbers(apart[1], form.high) << form.low
    if form.low == 8:
        numbers = (numbers ^ 128) - 128
    if form.table is not None:
        numbers = torch.tensor(form.table, device=data.device)[numbers]
    scale, minimum = _scales(head, form, bfloat=format is Format.MXFP4)  # (groups, K, shares, 1, lanes)
    weights = (numbers - form.offset).float().flatten(2, 3).unflatten(2, (-1, form.share)) * scale
    if minimum is not None:
        weights += minimum
    return weights.flatten(1, 3).transpose(1, 2).flatten(0, 1)[:outputs]


def _scales(head: Tensor, form: Form, *, bfloat: bool) -> tuple[Tensor, Tensor | None]:
    count = 1 + form.minimum
    halves = head[..., : 2 * LANES * count].contiguous().view(torch.bfloat16 if bfloat else torch.float16)
    both = halves.float().unflatten(2, (count, 1, 1, LANES))
    if not form.wide:
        return both[:, :, 0], both[:, :, 1] if form.minimum else None
    factors = head[..., 2 * LANES * count :].contiguous().view(torch.int8).to(torch.int32)
    factors = factors.unflatten(2, (-1, form.inputs // form.share, 1, LANES))
    scale = both[:, :, 0] * (factors[:, :, 0] & 15 if form.nibbles else factors[:, :, 0])
    if not form.minimum:
        return scale, None
    return scale, -both[:, :, 1] * ((factors[:, :, 0] >> 4) & 15 if form.nibbles else factors[:, :, 1])


def _lanes_last(x_NK: Tensor, of: int) -> Tensor:
    return x_NK.unflatten(0, (-1, LANES)).unflatten(2, (-1, of)).permute(0, 2, 3, 1)


def _words(numbers: Tensor, bits: int) -> Tensor:
    """(…, 32, lanes) numbers to (…, words, lanes)."""
    per = 16 // bits
    pairs = (numbers & ((1 << bits) - 1)).unflatten(-2, (-1, per, 2))  # (…, words, per, 2, lanes)
    shifts = bits * torch.arange(per, device=numbers.device)[:, None] + torch.tensor([0, 16], device=numbers.device)
    words = (pairs << shifts[..., None]).sum((-3, -2))
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _numbers(body: Tensor, bits: int) -> Tensor:
    """The other way: (…, bytes) to (…, 32, lanes)."""
    if bits == 6:
        return _six_bits(body)
    words = body.contiguous().view(torch.int32).unflatten(-1, (-1, 1, 1, LANES))
    per = 16 // bits
    shifts = bits * torch.arange(per, device=body.device)[:, None] + torch.tensor([0, 16], device=body.device)
    return ((words >> shifts[..., None]) & ((1 << bits) - 1)).flatten(-4, -2)


def _six_bits(body: Tensor) -> Tensor:
    """Eight pairs in three words: at the lower and upper end of each half, and two in the four bits between them."""
    three = body.contiguous().view(torch.int32).unflatten(-1, (2, 3, 1, LANES))
    halves = three >> torch.tensor([[0], [16]], device=body.device)  # (…, 2, 3, halves, lanes)
    low, between, high = halves & 63, (halves >> 6) & 15, (halves >> 10) & 63
    ends = torch.stack((low, high), -3).flatten(-4, -3)  # six pairs
    seventh = between[..., 0, :, :] | (between[..., 1, :, :] & 3) << 4
    eighth = between[..., 2, :, :] | (between[..., 1, :, :] >> 2) << 4
    return torch.cat((ends, torch.stack((seventh, eighth), -3)), -3).flatten(-4, -2)


def _interleave(blocks_gKb: Tensor) -> Tensor:
    """Groups, four side by side block by block, as one stream of bytes."""
    whole = len(blocks_gKb) // SUPER * SUPER
    front = blocks_gKb[:whole].unflatten(0, (-1, SUPER)).transpose(1, 2).flatten()
    return torch.cat((front, blocks_gKb[whole:].transpose(0, 1).flatten()))


def _separate(blocks_b: Tensor, groups: int, count: int) -> Tensor:
    """The other way: (groups, K, bytes)."""
    whole = groups // SUPER * SUPER
    front, rest = blocks_b.split((whole * count, (groups - whole) * count))
    front = front.unflatten(0, (-1, count, SUPER)).transpose(1, 2).flatten(0, 1)
    return torch.cat((front, rest.unflatten(0, (count, -1)).transpose(0, 1))) if groups > whole else front
