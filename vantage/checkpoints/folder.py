"""A folder in the Hugging Face layout: config.json, safetensors in one file or in shards, tokenizer files.

Tensors are mapped, not read, until they are asked for. Nothing but JSON and safetensors is ever opened:
no pickle, no code, and no file outside the folder.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vantage.checkpoints.file_names import CONFIG, INDEX, SINGLE
from vantage.checkpoints.json_files import inside, read_json
from vantage.checkpoints.model_folder import METADATA
from vantage.errors import BadInput, CheckpointError
from vantage.files import SHARD_BYTES


class Folder:
    """The tensors of a checkpoint by name, without their data until ``get``."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_dir():
            raise BadInput(f"{self.path} is not a folder: give one that holds {CONFIG} and safetensors files")
        self.config: dict[str, Any] = read_json(self.path, CONFIG)
        self._open: dict[str, Any] = {}
        self._home = self._homes()

    def names(self) -> Iterator[str]:
        return iter(self._home)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def get(self, name: str) -> Tensor:
        """The tensor, mapped from the file."""
        return self._file(self._home[name]).get_tensor(name)

    def release(self) -> None:
        """Let go of the pages that were read, but for tensors in use. What is asked for later is mapped anew."""
        self._open.clear()

    def _homes(self) -> dict[str, str]:
        """Which file holds which tensor."""
        if (self.path / INDEX).exists():
            return self._sharded()
        if not (self.path / SINGLE).exists():
            others = sorted(p.name for p in self.path.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"))
            why = f"; {others[0]} may hold code and is never opened: convert it to safetensors" if others else ""
            raise CheckpointError(f"{self.path} holds neither {SINGLE} nor {INDEX}{why}")
        return dict.fromkeys(self._file(SINGLE).keys(), SINGLE)

    def _sharded(self) -> dict[str, str]:
        home = read_json(self.path, INDEX).get("weight_map")
        if not isinstance(home, dict) or not all(isinstance(f, str) for f in home.values()):
            raise CheckpointError(f"{INDEX}: 'weight_map' must give a file name for each tensor")
        held = {file: set(self._file(file).keys()) for file in sorted(set(home.values()))}
        for name, file in home.items():
            if name not in held[file]:
                raise CheckpointError(f"{INDEX}: {name!r} should be in {file} and is not")
        for file, names in held.items():
            if extra := sorted(n for n in names if home.get(n) != file):
                raise CheckpointError(f"{file}: {extra[0]!r} is not in the index")
        return home

    def _file(self, file: str) -> Any:
        if file not in self._open:
            path = inside(self.path, file)
            if path.suffix != ".safetensors":
                raise CheckpointError(f"{file} is no safetensors file, and no other kind is opened")
            try:
                self._open[file] = safe_open(path, framework="pt", device="cpu")
            except (SafetensorError, OSError) as e:
                raise CheckpointError(f"{file}: {e}") from e
        return self._open[file]

    def _slice(self, name: str) -> Any:
        return self._file(self._home[name]).get_slice(name)


def write_folder(
    path: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write config.json and safetensors, in shards of at most ``shard_bytes`` if one file would be larger."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in tensors.items():
        if shards[-1] and sum(t.nbytes for t in shards[-1].values()) + tensor.nbytes > shard_bytes:
            shards.append({})
        shards[-1][name] = tensor.detach().cpu().contiguous()
    if len(shards) == 1:
        write_tensors(shards[0], folder / SINGLE, METADATA)
    else:
        files = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
        for file, shard in zip(files, shards, strict=True):
            write_tensors(shard, folder / file, METADATA)
        home = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        total = sum(t.nbytes for shard in shards for t in shard.values())
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": home})
    _write_json(folder / CONFIG, dict(config))


def write_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """A safetensors file that others may read as any new file: the library gives its own to their owner alone."""
    new = not path.exists()
    path.touch()  # the umask and the folder decide
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        save_file(dict(tensors), path, metadata)
    except BaseException:
        if new:
            path.unlink(missing_ok=True)
        raise
    if stat.S_IMODE(path.stat().st_mode) != mode:  # some file systems have one mode, and let nobody say it
        path.chmod(mode)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def plain_dtype(dtype: torch.dtype) -> str:
    """As config files write it: "float32"."""
    return str(dtype).removeprefix("torch.")
