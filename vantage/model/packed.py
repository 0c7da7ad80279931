"""Linear maps and embeddings whose weights stay quantised: 8 or 4 bits in blocks of 32, as in GGUF.

A weight is scale · n (+ minimum), with a scale for each block of 32 inputs. The bytes of a Q8_0, Q4_0 or Q4_1 tensor
are only reordered, so the weights are exactly what the file says. On a CPU the product runs in the native kernels,
which round what comes in to 16 bits with a scale for each block of 32 (``kernels/native/linear.h``) and return float32.
Anywhere else the weights are unpacked first, and the product is one of the activations' own dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.kernels.native import Format, Matrix, matrix, native
from vantage.model.ends import Table, check_tokens
from vantage.model.linear import replace_module
from vantage.spec.native import LANES

BLOCK, SUPER = 32, 4  # as in kernels/native/linear.h
AT_ONCE = 16 * SUPER * LANES  # rows packed at a time
BYTES = {Format.PACK8: 2 * LANES + LANES * BLOCK, Format.PACK4: 4 * LANES + LANES * BLOCK // 2}  # of 16 x 32 weights


@final
@dataclass(frozen=True)
class Packed:
    """A quantised matrix (outputs, inputs)."""

    data: Tensor  # bytes
    format: Format
    outputs: int
    inputs: int

    @staticmethod
    def of_blocks(blocks_NKb: Tensor, kind: str) -> Packed:
        """From the blocks of a GGUF tensor of type Q8_0, Q4_0 or Q4_1, (outputs, inputs / 32, bytes)."""
        outputs, count, _ = blocks_NKb.shape
        format = Format.PACK8 if kind == "Q8_0" else Format.PACK4
        data = torch.empty(-(-outputs // LANES) * count * BYTES[format], dtype=torch.uint8)
        at = 0
        for some in blocks_NKb.split(AT_ONCE):  # so that little more than the result is ever in memory
            packed = _pack(some, kind, format)
            data[at : at + len(packed)] = packed
            at += len(packed)
        return Packed(data, format, outputs, count * BLOCK)

    @staticmethod
    def quantise(weight_NK: Tensor, bits: int) -> Packed:
        """8 bits: from -127 to 127 times a scale. 4 bits: 16 steps from the block's lowest to its highest weight."""
        outputs, inputs = weight_NK.shape
        if bits not in (4, 8) or inputs % BLOCK:
            raise BadInput(f"{bits} bits, {inputs} inputs: use 8 or 4 bits, and inputs in blocks of {BLOCK}")
        blocks = weight_NK.detach().to("cpu", torch.float32).reshape(outputs, -1, BLOCK)
        if bits == 8:
            scale = (blocks.abs().amax(2, keepdim=True) / 127).half()
            numbers = torch.where(scale > 0, blocks / scale.float(), 0).round_().clamp_(-127, 127)
            return Packed.of_blocks(
                torch.cat((scale.view(torch.uint8), numbers.to(torch.int8).view(torch.uint8)), 2), "Q8_0"
            )
        low, high = blocks.amin(2, keepdim=True).half(), blocks.amax(2, keepdim=True)
        scale = ((high - low.float()) / 15).half()
        numbers = (
            torch.where(scale > 0, (blocks - low.float()) / scale.float(), 0).round_().clamp_(0, 15).to(torch.uint8)
        )
        halves = numbers[..., :16] | numbers[..., 16:] << 4
        return Packed.of_blocks(torch.cat((scale.view(torch.uint8), low.view(torch.uint8), halves), 2), "Q4_1")

    def sound(self) -> bool:
        """Whether all scales and minima are finite."""
        head = 2 * LANES * (1 if self.format is Format.PACK8 else 2)
        return bool(self.data.view(-1, BYTES[self.format])[:, :head].contiguous().view(torch.float16).isfinite().all())

    def unpack(self) -> Tensor:
        """The weights, float32 (outputs, inputs)."""
        groups, count = -(-self.outputs // LANES), self.inputs // BLOCK
        blocks = _separate(self.data.view(-1, BYTES[self.format]), groups, count)  # (groups, K, bytes)
        head = 2 * LANES * (1 if self.format is Format.PACK8 else 2)
        scales = blocks[..., :head].contiguous().view(torch.float16).float().unflatten(2, (-1, LANES, 1))
        words = blocks[..., head:].contiguous().view(torch.int32).unflatten(2, (-1, LANES)).transpose(2, 3)
        weights = _numbers(words.contiguous(), self.format).float() * scales[:, :, 0]  # (groups, K, lanes, 32)
        if self.format is Format.PACK4:
            weights += scales[:, :, 1]
        return weights.transpose(1, 2).flatten(2).flatten(0, 1)[: self.outputs]


def _pack(blocks_NKb: Tensor, kind: str, format: Format) -> Tensor:
    """The bytes of some rows, of whole groups that lie side by side unless they are the last."""
    head, numbers = blocks_NKb.split((4, 16) if kind == "Q4_1" else (2, blocks_NKb.shape[2] - 2), dim=2)
    scales = head.clone(memory_format=torch.contiguous_format).view(torch.float16)  # (N, K, 1 or 2)
    if kind == "Q4_0":  # d (n - 8) = d n - 8 d, exact in half precision
        scales = torch.cat((scales, -8 * scales), dim=2)
    lanes = -len(blocks_NKb) % LANES
    words = _words(numbers.clone(memory_format=torch.contiguous_format), format)  # (N, K, words)
    by_group = [
        F.pad(part, (0, 0, 0, 0, 0, lanes)).unflatten(0, (-1, LANES)).permute(0, 2, 3, 1).flatten(2)
        for part in (scales, words)
    ]
    return _interleave(torch.cat([part.contiguous().view(torch.uint8) for part in by_group], dim=2))


def _words(numbers_NKb: Tensor, format: Format) -> Tensor:
    """The numbers of a GGUF block in words of 32 bits (N, K, words): inputs j in the lower half, j + 16 above."""
    if format is Format.PACK8:  # two of each
        halves = numbers_NKb.view(torch.int16).unflatten(2, (2, 8))
        return torch.stack((halves[:, :, 0], halves[:, :, 1]), dim=3).view(torch.int32).squeeze(3)
    bytes_ = numbers_NKb.view(torch.int32)  # four bytes with j in their low half and j + 16 in their high one
    return _close(bytes_ & 0x0F0F0F0F) | _close((bytes_ >> 4) & 0x0F0F0F0F) << 16


def _close(nibbles: Tensor) -> Tensor:
    """The low halves of four bytes, side by side in 16 bits."""
    bytes_ = (nibbles | nibbles >> 4) & 0x00FF00FF
    return (bytes_ | bytes_ >> 8) & 0xFFFF


def _numbers(words_gKlw: Tensor, format: Format) -> Tensor:
    """The other way: the 32 numbers of every word's block, (…, 32)."""
    if format is Format.PACK8:
        bytes_ = words_gKlw.view(torch.int8).unflatten(3, (-1, 2, 2))
        return bytes_.transpose(-2, -3).flatten(3)
    halves = [(words_gKlw[..., None] >> shift) & 15 for shift in range(0, 32, 4)]
    return torch.cat((torch.cat(halves[:4], -1).flatten(3), torch.cat(halves[4:], -1).flatten(3)), -1)


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


class PackedWeight(nn.Module):
    """Holds a packed matrix as a buffer."""

    data: Tensor

    def __init__(self, packed: Packed):
        super().__init__()
        self.format, self.outputs, self.inputs = packed.format, packed.outputs, packed.inputs
        self.register_buffer("data", packed.data)

    @property
    def packed(self) -> Packed:
        return Packed(self.data, self.format, self.outputs, self.inputs)

    def unpack(self, dtype: torch.dtype) -> Tensor:
        return self.packed.unpack().to(dtype)

    @property
    def dtype(self) -> torch.dtype:
        """Of what is computed with it."""
        return torch.float32

    @property
    def device(self) -> torch.device:
        return self.data.device

    def matrix(self, bias: Tensor | None = None) -> Matrix:
        """For the native kernels."""
        return matrix(self.data, bias, self.format, (self.outputs, self.inputs))

    def runs_natively(self, x: Tensor) -> bool:
        return (
            self.data.device.type == "cpu"
            and x.dtype is torch.float32
            and not (x.requires_grad and torch.is_grad_enabled())
            and native() is not None
        )


@final
class PackedLinear(nn.Module):
    """x Wᵀ + b. ``weight`` may be shared with an embedding."""

    def __init__(self, weight: PackedWeight, bias: Tensor | None = None):
        super().__init__()
        self.weight = weight
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        backend = native() if self.weight.runs_natively(x) else None
        if backend is None:
            return F.linear(x, self.weight.unpack(x.dtype), self.bias)
        return backend.linear(self.weight.matrix(self.bias), x.contiguous())

    def extra_repr(self) -> str:
        return f"{self.weight.inputs}, {self.weight.outputs}, {self.weight.format.name.lower()}"


@final
class PackedTable(nn.Module):
    """A vector for each token id, unpacked when it is asked for."""

    def __init__(self, weight: PackedWeight):
        super().__init__()
        self.weight = weight
        self.num_embeddings = weight.outputs

    def size(self, tokens_BT: Tensor) -> tuple[int, int]:
        return tokens_BT.shape[0], tokens_BT.shape[1]

    def check(self, tokens_BT: Tensor) -> None:
        check_tokens(tokens_BT, self.num_embeddings)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        backend = native() if self.weight.device.type == "cpu" else None
        if backend is None:
            return F.embedding(tokens_BT, self.weight.unpack(torch.float32))
        return backend.rows(self.weight.matrix(), tokens_BT.to(torch.int64).contiguous())


def fits(model: nn.Module, names: Sequence[str]) -> bool:
    """Whether these are the names of one weight, of linear maps and embeddings alone, in whole blocks."""
    owners = [model.get_submodule(name.rpartition(".")[0]) for name in names]
    plain = all(isinstance(owner, (nn.Linear, Table)) for owner in owners)
    return plain and names[0].endswith(".weight") and model.get_parameter(names[0]).shape[1] % BLOCK == 0


def put(model: nn.Module, names: Sequence[str], packed: Packed) -> None:
    """In the place of every module that held this weight: a tied head shares the embedding's."""
    weight = PackedWeight(packed)
    for name in names:
        owner = name.removesuffix(".weight")
        old = model.get_submodule(owner)
        new = PackedLinear(weight, old.bias) if isinstance(old, nn.Linear) else PackedTable(weight)
        replace_module(model, owner, new)


def least_bits(name: str) -> int:
    """Embeddings and heads lose most by 4 bits, and get 8, as in GGUF files."""
    return 8 if name.startswith(("embed.", "head.")) else 4


def quantise(model: nn.Module, bits: int) -> None:
    """Pack every linear map and embedding of a model in place; those whose inputs are no multiple of 32 stay."""
    names: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    for parameter, all_names in names.items():
        if fits(model, all_names):
            put(model, all_names, Packed.quantise(parameter, max(bits, least_bits(all_names[0]))))
