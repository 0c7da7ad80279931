"""Linear maps and embeddings whose weights stay as a file has them: in the blocks of a GGUF file, or in 16 bits.

Numbers and scales are only reordered (``kernels/packed_layout.py``), so the weights are exactly what the file says. On
a CPU the product runs in the native kernels, which round what meets quantised weights to 16 bits with a scale for each
block of 32 (``kernels/native/linear.h``) and return float32. On a GPU a single token meets the blocks as they are
(``kernels/gpu/packed_product.py``); for more, and anywhere else, one matrix at a time is unpacked, and the product is
one of the activations' own dtype.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.kernels.native import Format, Matrix, WeightMemory, matrix, native
from vantage.kernels.packed_layout import BLOCK, BLOCK_BYTES, FORMS, pack, size, unpack
from vantage.model.ends import Table, check_tokens
from vantage.model.linear import replace_module

if TYPE_CHECKING:
    from vantage.kernels.gpu.packed import DeviceBlocks

PACKED_TYPES = frozenset(format.name for format in FORMS)  # GGUF's types that stay as they are in the file


@final
@dataclass(frozen=True)
class Packed:
    """A matrix (outputs, inputs), quantised or in 16 bits."""

    data: Tensor  # bytes
    format: Format
    outputs: int
    inputs: int

    @staticmethod
    def of_blocks(rows_Nb: Tensor, kind: str, memory: WeightMemory | None = None) -> Packed | None:
        """From the rows of a GGUF tensor of this type, bytes; ``None``: it holds NaN or infinity."""
        format, backend = Format[kind], native()
        if backend is None:
            raise BadInput(f"blocks of {kind} need the native kernels, which are not there: unpack them to float32")
        inputs = rows_Nb.shape[1] * FORMS[format].inputs // BLOCK_BYTES[format]
        packed = Packed.empty(format, len(rows_Nb), inputs, memory or WeightMemory())
        return packed if backend.repack(packed.matrix(), rows_Nb.contiguous()) else None

    @staticmethod
    def empty(format: Format, outputs: int, inputs: int, memory: WeightMemory) -> Packed:
        """To be filled."""
        return Packed(memory.take(size(format, outputs, inputs)), format, outputs, inputs)

    @staticmethod
    def quantise(weight_NK: Tensor, bits: int) -> Packed:
        """8 bits: from -127 to 127 times a scale. 4 bits: 16 steps from the block's lowest to its highest weight."""
        outputs, inputs = weight_NK.shape
        if bits not in (4, 8) or inputs % BLOCK:
            raise BadInput(f"{bits} bits, {inputs} inputs: use 8 or 4 bits, and inputs in blocks of {BLOCK}")
        blocks = weight_NK.detach().to("cpu", torch.float32).reshape(outputs, -1, BLOCK)
        if bits == 8:
            format, scales = Format.Q8_0, (blocks.abs().amax(2, keepdim=True) / 127).half()
            scale, low = scales.float(), 0.0
        else:
            lowest = blocks.amin(2, keepdim=True).half()
            format = Format.Q4_1
            scales = torch.cat((((blocks.amax(2, keepdim=True) - lowest.float()) / 15).half(), lowest), 2)
            scale, low = scales[..., :1].float(), lowest.float()
        numbers = torch.where(scale > 0, (blocks - low) / scale, 0).round_()
        numbers = numbers.clamp_(-127, 127) if bits == 8 else numbers.clamp_(0, 15)
        return Packed(pack(numbers.to(torch.int8).flatten(1), scales, format), format, outputs, inputs)

    def unpack(self) -> Tensor:
        """The weights, float32 (outputs, inputs)."""
        return unpack(self.data, self.format, self.outputs, self.inputs)

    def matrix(self, bias: Tensor | None = None) -> Matrix:
        """For the native kernels."""
        return matrix(self.data, bias, self.format, (self.outputs, self.inputs))

    def blocks(self) -> DeviceBlocks:
        """For the kernels of a GPU."""
        from vantage.kernels.gpu.packed import DeviceBlocks

        return DeviceBlocks(self.data, self.format, self.outputs, self.inputs)


def _buffer_name(i: int) -> str:
    return f"data{i or ''}"


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def gpu_reads(formats: Iterable[Format]) -> bool:
    """Whether a GPU's kernels read weights of these formats: blocks of all kinds, where there is Triton."""
    return _has_triton() and all(FORMS[format].number is None for format in formats)


class PackedWeight(nn.Module):
    """Holds a packed matrix, or several one below the other, as buffers: a file may keep q and k in 4 bits, v in 6."""

    def __init__(self, *parts: Packed):
        super().__init__()
        self._shapes = [(part.format, part.outputs, part.inputs) for part in parts]
        self.outputs, self.inputs = sum(part.outputs for part in parts), parts[0].inputs
        for i, part in enumerate(parts):
            self.register_buffer(_buffer_name(i), part.data)
        # holds nothing but the dtype that a model is moved to, as its other tensors are
        self.register_buffer("_like", torch.empty(0, dtype=torch.float32), persistent=False)

    @property
    def parts(self) -> list[Packed]:
        return [Packed(self._buffers[_buffer_name(i)], *shape) for i, shape in enumerate(self._shapes)]  # pyright: ignore[reportArgumentType] (never None)

    @property
    def formats(self) -> list[Format]:
        return [format for format, _, _ in self._shapes]

    def unpack(self, dtype: torch.dtype) -> Tensor:
        if self.on_gpu:
            from vantage.kernels.gpu.packed import unpacked

            parts = [unpacked(part.blocks(), dtype) for part in self.parts]
        else:
            parts = [part.unpack().to(dtype) for part in self.parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def dtype(self) -> torch.dtype:
        """Of what is computed with it."""
        return self.get_buffer("_like").dtype

    @property
    def on_gpu(self) -> bool:
        """Whether the kernels for a GPU read it."""
        return self.device.type == "cuda" and gpu_reads(self.formats)

    @property
    def device(self) -> torch.device:
        return self.get_buffer(_buffer_name(0)).device

    def matrices(self, bias: Tensor | None = None) -> Iterator[tuple[int, Matrix]]:
        """For the native kernels: the first output of every part, and the part."""
        first = 0
        for part in self.parts:
            yield first, part.matrix(None if bias is None else bias[first : first + part.outputs])
            first += part.outputs

    def runs_natively(self, x: Tensor) -> bool:
        return (
            self.device.type == "cpu"
            and x.dtype is torch.float32
            and not (x.requires_grad and torch.is_grad_enabled())
            and native() is not None
        )


def packed_weights(model: nn.Module) -> list[PackedWeight]:
    """Every packed matrix of a model."""
    return [module for module in model.modules() if isinstance(module, PackedWeight)]


@final
class PackedLinear(nn.Module):
    """x Wᵀ + b. ``weight`` may be shared with an embedding."""

    def __init__(self, weight: PackedWeight, bias: Tensor | None = None):
        super().__init__()
        self.weight = weight
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        backend = native() if self.weight.runs_natively(x) else None
        if backend is None and self.weight.on_gpu and x.numel() == self.weight.inputs and not x.requires_grad:
            return self._one_token(x)
        if backend is None:
            return F.linear(x, self.weight.unpack(x.dtype), self.bias)
        x = x.contiguous()
        products = [backend.linear(part, x) for _, part in self.weight.matrices(self.bias)]
        return products[0] if len(products) == 1 else torch.cat(products, -1)

    def _one_token(self, x: Tensor) -> Tensor:
        from vantage.kernels.gpu.packed_product import arranged, multiply

        out = x.new_empty((*x.shape[:-1], self.weight.outputs))
        column, flat = 0, out.view(-1)
        for part in self.weight.parts:
            end, row = column + part.outputs, arranged(x.reshape(-1), part.format)
            multiply(row, part.blocks(), flat[column:end], bias=None if self.bias is None else self.bias[column:end])
            column = end
        return out

    def extra_repr(self) -> str:
        names = ", ".join(format.name for format in self.weight.formats)
        return f"{self.weight.inputs}, {self.weight.outputs}, {names}"


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
        weight = self.weight
        if weight.on_gpu:
            from vantage.kernels.gpu.packed import unpacked

            (part,) = weight.parts
            rows = unpacked(part.blocks(), weight.dtype, tokens_BT.reshape(-1).contiguous())
            return rows.view(*tokens_BT.shape, weight.inputs)
        backend = native() if weight.device.type == "cpu" else None
        if backend is None:
            return F.embedding(tokens_BT, weight.unpack(weight.dtype))
        (_, table), *others = weight.matrices()
        assert not others, "a table is one tensor of a file"
        return backend.rows(table, tokens_BT.to(torch.int64).contiguous()).to(weight.dtype)


def fits(model: nn.Module, names: Sequence[str]) -> bool:
    """Whether these are the names of one weight, of linear maps and embeddings alone, in whole blocks."""
    owners = [model.get_submodule(name.rpartition(".")[0]) for name in names]
    if not all(isinstance(owner, (nn.Linear, Table)) for owner in owners) or not names[0].endswith(".weight"):
        return False
    weight: Any = owners[0].weight
    return weight.shape[1] % BLOCK == 0


def put(model: nn.Module, names: Sequence[str], packed: Sequence[Packed]) -> None:
    """In the place of every module that held this weight: a tied head shares the embedding's."""
    weight = PackedWeight(*packed)
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
            put(model, all_names, [Packed.quantise(parameter, max(bits, least_bits(all_names[0])))])
