"""A GGUF file as if it were a Hugging Face folder: the same tensor names, the same config keys.

Families load a GGUF file without knowing it. What is particular to an architecture is in ``gguf_tables`` and
``gguf_configs``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vantage.checkpoints.config import Config
from vantage.checkpoints.gguf import GGUF, StoredTensor
from vantage.checkpoints.gguf_tables import ARCHITECTURES
from vantage.errors import CheckpointError, unknown
from vantage.model.packed import PACKED_TYPES


class GGUFTensors:
    """The tensors of a GGUF file under Hugging Face's names, and the config that they fit."""

    def __init__(self, path: str | Path, dtype: torch.dtype = torch.float32):
        self.file, self._dtype = GGUF(path), dtype
        self.file.tensors = dict(_experts_apart(self.file.tensors))
        arch = self.file.metadata.get("general.architecture")
        if not isinstance(arch, str) or arch not in ARCHITECTURES:
            raise CheckpointError(f"{self.file.path.name}: {unknown('architecture of GGUF', arch, ARCHITECTURES)}")
        self._arch = ARCHITECTURES[arch]
        self._metadata = metadata_of(self.file, arch)
        self.config = self._arch.config(self._metadata, self.file)
        self._metadata.settle(INERT)
        self._home = self._homes()

    def names(self) -> Iterator[str]:
        return iter(self._home)

    def shape(self, name: str) -> tuple[int, ...]:
        """As Hugging Face stores it: found by undoing the changes on a tensor without data."""
        theirs = self._home[name]
        stored = self.file.tensors[theirs].shape
        if self._arch.rewriting(theirs) is None:
            return stored
        return tuple(self._undone(theirs, torch.empty(stored, device="meta")).shape)

    def get(self, name: str) -> Tensor:
        return self._undone(self._home[name], self.file.get(self._home[name], self._dtype))

    def packed_kind(self, name: str) -> str | None:
        """The type of a matrix of blocks or of 16-bit numbers; ``None``: it has none of these."""
        stored = self.file.tensors[self._home[name]]
        return stored.kind.name if stored.kind.name in PACKED_TYPES and len(stored.shape) == 2 else None

    def row_length(self, name: str) -> int:
        """Of a matrix as the file has it: Hugging Face may have it turned."""
        return self.file.tensors[self._home[name]].shape[1]

    def row_addresses(self, name: str) -> Tensor:
        """(N, 1): where the rows of a matrix lie in memory.

        Undoing what llama.cpp changed moves whole rows of a matrix, or turns it twice.
        """
        return self._undone(self._home[name], self.file.row_addresses(self._home[name])[:, None])

    def pages(self, name: str) -> tuple[int, int]:
        """The address and the length of a tensor's pages, whose memory may be given back: the file still has them."""
        return self.file.pages(self._home[name])

    def release(self) -> None:
        """Let go of the pages that were read: the file still has them."""
        self.file.release()

    def _undone(self, theirs: str, tensor: Tensor) -> Tensor:
        rewriting = self._arch.rewriting(theirs)
        try:
            return tensor if rewriting is None else rewriting.undo(tensor, self._metadata)
        except RuntimeError as e:
            raise CheckpointError(f"{self.file.path.name}: {theirs!r} has shape {tuple(tensor.shape)}: {e}") from e

    def _homes(self) -> dict[str, str]:
        """Hugging Face's name to theirs."""
        home: dict[str, str] = {}
        for theirs in self.file.tensors:
            if theirs in COMPUTED:
                continue
            stem, _, kind = theirs.rpartition(".")
            layer = re.match(r"blk\.(\d+)\.", stem)
            number = layer[1] if layer else ""
            stem = stem.replace(f"blk.{number}.", "blk.{i}.", 1) if layer else stem
            expert = re.search(r"_exps\.(\d+)$", stem)
            which = expert[1] if expert else ""
            name = self._arch.names.get(f"{stem.removesuffix(which)}{{e}}" if expert else stem)
            # what has no other name keeps its own, and is refused with it where the tensors are counted
            name = None if name is None else name.replace("{i}", number).replace("{e}", which)
            home[theirs if name is None else f"{name}.{kind}"] = theirs
        return home


def _experts_apart(tensors: Mapping[str, StoredTensor]) -> Iterator[tuple[str, StoredTensor]]:
    """A file keeps the maps of all experts in one tensor: here each is one, which lies in a part of it."""
    for name, stored in tensors.items():
        stem, _, kind = name.rpartition(".")
        if not stem.endswith("_exps") or len(stored.shape) < 2:
            yield name, stored
            continue
        count, nbytes = stored.shape[0], stored.nbytes // stored.shape[0]
        for e in range(count):
            yield (
                f"{stem}.{e}.{kind}",
                replace(stored, shape=stored.shape[1:], start=stored.start + e * nbytes, nbytes=nbytes),
            )


def metadata_of(file: GGUF, arch: str) -> Config:
    """The metadata that shapes the model, under account: a key that nobody reads is refused."""
    about = {k.removeprefix(arch + "."): _plain(v) for k, v in file.metadata.items() if k.startswith(arch + ".")}
    return Config(about, f"{file.path.name}: {arch}")


def _plain(value: Any) -> Any:
    """float32 numbers as their shortest decimals (1e-05, not 9.999999747378752e-06); arrays as lists."""
    if isinstance(value, float):
        return float(str(np.float32(value))) if np.float32(value) == value else value
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value


# Said in many files, and without effect on what is computed.
INERT = frozenset(["tensor_data_layout", "rope.scaling.finetuned", "attention.causal", "pooling_type"])
# Tables that follow from the config, where they are compared (see ``_llama3``) or not needed at all.
COMPUTED = frozenset(["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"])
