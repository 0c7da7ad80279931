"""Checkpoints of a run: tensors in safetensors, everything else in JSON, no pickle.

The tensors are written by ``torch.distributed.checkpoint``, each process its own part, so a checkpoint of two
processes loads in one and the other way round. A checkpoint is a folder. It is written under another name, brought
to the disk, and only then renamed: a name that ends in a number is a checkpoint that is whole. What is in it is
checked by size and checksum before anything is loaded.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts

from vantage.checkpoints.run_folder import STATE, folder_name, metadata, steps, verified_metadata
from vantage.checkpoints.stored_tensors import StoredTensors
from vantage.errors import CheckpointError
from vantage.files import PART, remove_folder, replace_folder, sha256_of
from vantage.training.distributed import World

if TYPE_CHECKING:
    from vantage.training.mesh_shares import MeshShares

__all__ = ["STATE", "folder_name", "metadata", "prune", "read", "read_shares", "steps", "verified_metadata", "write"]


def write(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    world: World,
    describe: Callable[[Path], None] | None = None,
) -> Path:
    """A checkpoint of this step. Until it is whole, nothing else in the folder is touched.

    ``describe`` writes into it what it takes to make a model of the tensors.
    """
    whole = folder / folder_name(step)
    part = whole.with_name(whole.name + PART)
    with _clear_errors(f"the checkpoint of step {step} could not be written", part, world):
        if world.first:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        world.wait()
        writer = HuggingFaceStorageWriter(str(part), save_distributed=True)
        with _quiet():
            if world.first or _together(world):  # else the first has all of them
                save_parts(dict(tensors), storage_writer=writer, no_dist=not _together(world))
        world.wait()
        if world.first:
            if describe is not None:
                describe(part)
            files = {path.name: _checksum_of(path) for path in sorted(part.iterdir())}
            (part / STATE).write_text(json.dumps({"step": step, "facts": dict(metadata), "files": files}, indent=1))
            replace_folder(part, whole)
        world.wait()
    return whole


def prune(folder: Path, keep: int, world: World) -> None:
    """Remove all but the last ``keep``, and what was left half written."""
    if not world.first:
        return
    for step in steps(folder)[:-keep]:
        remove_folder(folder / folder_name(step))
    for left in folder.glob(f"*{PART}"):
        shutil.rmtree(left, ignore_errors=True)


def read(folder: Path, step: int, into: Mapping[str, Tensor], world: World) -> None:
    """Fill these tensors. Every one must be there, in its shape, and none besides. ``facts`` has checked the files."""
    here = folder / folder_name(step)
    check(here, {name: tuple(tensor.shape) for name, tensor in into.items()}, into)
    with _quiet():
        load_parts(dict(into), storage_reader=HuggingFaceStorageReader(str(here)), no_dist=not _together(world))


def read_shares(folder: Path, step: int, into: Mapping[str, Tensor], shares: MeshShares) -> None:
    """Fill tensors that are shares of what is stored. Files are mapped, and of each tensor the share is read."""
    here = folder / folder_name(step)
    check(here, {key: shares.stored_shape(key, x) for key, x in into.items()}, shares.all_names(into))
    stored = StoredTensors(here)
    for key, x in into.items():
        shares.take(key, stored.get(key), x)


def check(here: Path, shapes: Mapping[str, tuple[int, ...]], names: Iterable[str]) -> None:
    """Refuse a checkpoint that has other tensors than these ``names``, or others of these shapes."""
    stored_tensors = HuggingFaceStorageReader(str(here)).read_metadata().state_dict_metadata
    for name, shape in shapes.items():
        stored = stored_tensors.get(name)
        if not isinstance(stored, TensorStorageMetadata):
            raise CheckpointError(f"{here} has no {name}: it is of another model or another optimiser")
        if tuple(stored.size) != shape:
            raise CheckpointError(f"{here}: {name} is {tuple(stored.size)} there, {shape} here: it is of another model")
    if extra := sorted(set(stored_tensors) - set(names)):
        raise CheckpointError(f"{here} has {extra[0]}, which is not wanted here: it is of another model or optimiser")


def _together(world: World) -> bool:
    """Whether every process writes and reads its own part: all have the same model, and different shards of it."""
    return world.shards > 1 and not world.cut


# ---- files


def _checksum_of(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


@contextlib.contextmanager
def _clear_errors(what: str, part: Path, world: World) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, CheckpointException) as e:
        if world.first:
            shutil.rmtree(part, ignore_errors=True)
        full = " (the disk is full)" if _is_full(e) else ""
        raise CheckpointError(
            f"{what}{full}: {_reason(e)}. The earlier checkpoints are as they were; free some space and continue with "
            f"--resume"
        ) from e


def _is_full(e: BaseException) -> bool:
    return (isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT)) or "No space left" in str(e)


def _reason(e: BaseException) -> str:
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    return lines[-1] if lines else type(e).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch warns that it checkpoints without processes to example to, which is what was asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
