"""What a checkpoint takes of memory once it is loaded: weights, cache, workspace.

Names, shapes and types are asked, and no weight is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

from vantage.cache.spec_bytes import CacheSettings, cache_bytes
from vantage.checkpoints.folder import Folder
from vantage.checkpoints.gguf_names import GGUFTensors
from vantage.checkpoints.links import Link
from vantage.checkpoints.tensor_names import Tensors
from vantage.families.family import Copies, Family
from vantage.families.packing import BITS, HALF_TYPES, holds_one_weight, keeps_blocks
from vantage.kernels.native import Format
from vantage.kernels.packed_layout import BLOCK, size
from vantage.model import Model
from vantage.model.memory_plan import MemoryNeed
from vantage.model.packed import least_bits
from vantage.model.placement import aligned
from vantage.spec.model import ModelSpec

CONTEXT = 4096  # tokens that there is room for, unless said
ROWS = 64  # that an engine runs at once: each has logits
ON_HOST, ON_GPU = 256, 2048  # tokens of a pass, as the engine cuts prompts
# beside what is counted: libraries' own workspaces
BESIDE_ON_HOST, BESIDE_ON_GPU = 2**26, 2**28
PackedBytes = Callable[[Link], int | None]


@final
@dataclass(frozen=True)
class OpenedCheckpoint:
    """A checkpoint whose config has been read: where its tensors are and what each is for."""

    stored: object  # a folder, a file
    tensors: Tensors
    family: Family
    links: Sequence[Link]
    copies: Copies


def memory_need(
    model: Model, checkpoint: OpenedCheckpoint, how: str | None, dtype: torch.dtype, device: torch.device
) -> MemoryNeed:
    """Of a model without weights. ``how``: its weights are packed; see ``packing.check_dtype``."""
    packed = _packed_bytes(how, model, checkpoint, device)
    layers, others = [0] * len(model.blocks), 0
    for link in checkpoint.links:
        nbytes = packed(link)
        if nbytes is None:
            itemsize = checkpoint.family.dtype_of(link, dtype).itemsize
            nbytes = sum(aligned(model.get_parameter(name).numel() * itemsize) for name in link.our_names)
        index = layer_of(link)
        if index is None:
            others += nbytes
        else:
            layers[index] += nbytes
    others += sum(aligned(buffer.nbytes) for buffer in model.buffers())
    on_gpu = device.type == "cuda"
    workspace = workspace_need(model, dtype, on_gpu=on_gpu)
    return MemoryNeed(
        tuple(layers), others, cache_need(model.spec, dtype), workspace, 0 if on_gpu else resident_bytes()
    )


def layer_of(link: Link) -> int | None:
    """The number of the layer that a link fills a part of."""
    first = link.our_names[0].split(".")
    return int(first[1]) if first[0] == "blocks" else None


def cache_need(spec: ModelSpec, dtype: torch.dtype) -> Callable[[int], int]:
    """Bytes of a cache by its tokens."""
    if not spec.generates:
        return lambda context: 0
    return lambda context: cache_bytes(spec, CacheSettings(context, 1, dtype, "paged"))


def workspace_need(model: Model, dtype: torch.dtype, *, on_gpu: bool) -> Callable[[int], int]:
    """An upper bound on what a pass makes and lets go of."""
    spec = model.spec
    # a layer's experts have one shape, and run one after the other
    shapes = {p.shape for block in model.blocks for p in block.parameters() if p.dim() > 1}
    outputs = sum(shape[-2] for shape in shapes) + 4 * spec.width
    widest = max((shape.numel() for shape in shapes), default=0)
    most, beside = (ON_GPU, BESIDE_ON_GPU) if on_gpu else (ON_HOST, BESIDE_ON_HOST)

    def workspace(context: int) -> int:
        tokens = min(context, most)
        activations = 2 * tokens * outputs * max(dtype.itemsize, 4)
        scores = 4 * tokens * context  # a mask, where one is made
        logits = 3 * ROWS * (spec.vocab or 0) * 4
        return activations + scores + logits + widest * dtype.itemsize + beside

    return workspace


def _packed_bytes(how: str | None, model: Model, checkpoint: OpenedCheckpoint, device: torch.device) -> PackedBytes:
    """What a link's weight takes when it is packed as ``packer`` packs it; ``None``: it is not."""
    stored, tensors, prefix = checkpoint.stored, checkpoint.tensors, checkpoint.family.prefix

    def shape(link: Link) -> tuple[int, int]:
        rows, columns = model.get_parameter(link.our_names[0]).shape
        return rows, columns

    def quantised(link: Link) -> int | None:
        if not holds_one_weight(model, link):
            return None
        bits = max(BITS[str(how)], least_bits(link.our_names[0]))
        return aligned(size(Format.Q8_0 if bits == 8 else Format.Q4_1, *shape(link)))

    def as_stored(link: Link) -> int | None:
        assert isinstance(stored, GGUFTensors)
        names = [name if name in known else name.removeprefix(prefix) for name in link.their_names]
        if not holds_one_weight(model, link) or not known.issuperset(names):
            return None
        kinds = [stored.packed_kind(name) for name in names]
        if None in kinds or (device.type != "cpu" and not set(kinds).isdisjoint(HALF_TYPES.values())):
            return None
        rows = [stored.shape(name) for name in names]
        return sum(aligned(size(Format[str(kind)], *one[:2])) for kind, one in zip(kinds, rows, strict=True))

    def sixteen(link: Link) -> int | None:
        if not holds_one_weight(model, link):
            return None
        kinds = {tensors.get(name).dtype for name in link.their_names}
        if len(kinds) > 1 or not kinds <= HALF_TYPES.keys():
            return None
        return aligned(size(Format[HALF_TYPES[kinds.pop()]], *shape(link)))

    if how in BITS:
        return quantised
    if not keeps_blocks(how, device):
        return lambda link: None
    if isinstance(stored, GGUFTensors):
        known = set(stored.names())
        return as_stored
    return sixteen if isinstance(stored, Folder) and device.type == "cpu" else lambda link: None


def smaller_dtypes(how: str | None, dtype: torch.dtype) -> Mapping[str, float]:
    """What else a model could be loaded in, and what share of its bytes that takes."""
    if how is not None:
        return {}
    bits = {name: size(kind, 16, BLOCK) / (16 * BLOCK * dtype.itemsize) for name, kind in _KINDS.items()}
    return ({"bfloat16": 2 / dtype.itemsize} if dtype.itemsize > 2 else {}) | bits


_KINDS = {"int8": Format.Q8_0, "int4": Format.Q4_1}


# ---- what there is


def resident_bytes() -> int:
    """What this process holds of the machine's memory; 0 where the system does not say."""
    return _kib(Path("/proc/self/status"), "VmRSS")


def free_bytes(device: torch.device) -> int | None:
    """What may still be taken of a device's memory; ``None``: it is not known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    available = _kib(Path("/proc/meminfo"), "MemAvailable") + _kib(Path("/proc/meminfo"), "SwapFree")
    group = [_number(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current")]
    if group[0] is not None and group[1] is not None:
        available = min(available, group[0] - group[1])
    return available or None


def _kib(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":")), 0)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no group, or "max"
        return None
