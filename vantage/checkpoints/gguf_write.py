"""A GGUF file: the header first, then each tensor quantised where our own reader looks for it.

So no more than one tensor is held twice, and what the reader refuses is refused before anything is quantised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from torch import Tensor

from vantage.checkpoints.gguf_names import COMPUTED, GGUFTensors
from vantage.checkpoints.gguf_quantise import quantise
from vantage.errors import BadInput
from vantage.files import replacing

ALIGNMENT = 32
LONGEST_PIECE = 2**26  # weights quantised at a time, in whole rows
Progress = Callable[[int, int], None]  # weights done, of how many


def write_gguf(
    path: str | Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    types: Mapping[str, str],
    check: Callable[[GGUFTensors], None],
    progress: Progress | None = None,
) -> None:
    """Whole or not at all. ``types``: of each tensor; ``check`` sees what a reader makes of the header."""
    total = sum(tensor.numel() for tensor in tensors.values())
    with replacing(path) as part:
        _write_header(part, metadata, {name: (tuple(tensors[name].shape), types[name]) for name in tensors})
        with part.open("r+b") as out:
            for name in COMPUTED & tensors.keys():  # the reader draws conclusions from these
                _write_tensor(part, out, name, tensors[name], types[name])
            out.flush()
            reader = GGUFTensors(part)
            check(reader)
            done = 0
            for name, tensor in tensors.items():
                first = done
                out.seek(reader.file.tensors[name].start)
                for piece in tensor.split(max(1, LONGEST_PIECE // tensor.shape[-1])) if tensor.dim() > 1 else [tensor]:
                    try:
                        out.write(quantise(piece, types[name], _from(first, total, progress)).numpy().tobytes())
                    except BadInput as e:
                        raise BadInput(f"{name}: {e}") from e
                    first += piece.numel()
                done += tensor.numel()
                if progress is not None:
                    progress(done, total)


def _from(first: int, total: int, progress: Progress | None) -> Callable[[int], None] | None:
    return None if progress is None else lambda done: progress(first + done, total)


def _write_tensor(part: Path, out: Any, name: str, tensor: Tensor, kind: str) -> None:
    from vantage.checkpoints.gguf import GGUF

    out.seek(GGUF(part).tensors[name].start)
    out.write(quantise(tensor, kind).numpy().tobytes())


def _write_header(part: Path, metadata: Mapping[str, Any], entries: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    """All but the data of the tensors, for which there is room."""
    writer = GGUFWriter(part, str(metadata["general.architecture"]))  # which writes that key itself
    for key, value in metadata.items():
        if key != "general.architecture":
            _add(writer, key, value)
    room = 0
    for name, (shape, kind_name) in entries.items():
        kind = GGMLQuantizationType[kind_name]
        block, width = GGML_QUANT_SIZES[kind]
        size = math.prod(shape) // block * width
        writer.add_tensor_info(name, shape, np.dtype(np.float32), size, raw_dtype=kind)
        room += -(-size // ALIGNMENT) * ALIGNMENT
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with part.open("r+b") as file:
        header = file.seek(0, 2)
        file.truncate(-(-header // ALIGNMENT) * ALIGNMENT + room)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, (list, tuple)):
        if len(value):
            writer.add_array(key, [one.item() if isinstance(one, np.generic) else one for one in value])
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        small = GGUFValueType.UINT32 if value >= 0 else GGUFValueType.INT32
        writer.add_key_value(key, value, small if abs(value) < 2**31 else GGUFValueType.INT64)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, str(value))
