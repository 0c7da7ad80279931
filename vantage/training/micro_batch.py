"""How many rows of a batch fit into memory at a time: measured on a GPU, estimated on a CPU.

The gradient of a batch is the sum over its rows, divided by the number of all its targets. So it may be computed in
pieces of any size, and is the same to rounding: pieces weigh by their targets, not each alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from vantage.training.batch import Batch

Loss = Callable[[Batch], Tensor]  # the summed loss of a batch
GPU_SHARE, CPU_SHARE = 0.9, 0.5  # of the free memory that a pass may take
BACKWARD = 2.0  # what a pass takes on a CPU, as a multiple of what it saves for the way back
CGROUP = Path("/sys/fs/cgroup")


def rows_that_fit(loss: Loss, batch: Batch, device: torch.device, clear: Callable[[], None]) -> int:
    """How many rows of this batch can be computed at a time. ``clear`` forgets the gradients of a trial."""
    count = len(batch.tokens)
    most = _measured(loss, batch, device, clear) if device.type == "cuda" else _estimated(loss, batch, device)
    parts = -(-count // max(1, min(most, count)))
    return -(-count // parts)  # the same number of parts, as equal as can be


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on a GPU or on a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


# ---- a GPU


def _measured(loss: Loss, batch: Batch, device: torch.device, clear: Callable[[], None]) -> int:
    """Passes of 1, 2, 4, … rows, while twice as many can be expected to fit; then what is left by the last two."""
    count, free = len(batch.tokens), _free_on(device) * GPU_SHARE
    _peak(loss, batch, 1, device, clear)  # what libraries set up once is not counted
    rows, peak = 1, _peak(loss, batch, 1, device, clear)
    each = float(peak)
    while rows < count and peak + each * (min(2 * rows, count) - rows) < free:
        more = min(2 * rows, count)
        try:
            higher = _peak(loss, batch, more, device, clear)
        except torch.OutOfMemoryError:
            return rows
        each = max(1.0, (higher - peak) / (more - rows))
        rows, peak = more, higher
    return rows + max(0, int((free - peak) / each))


def _peak(loss: Loss, batch: Batch, rows: int, device: torch.device, clear: Callable[[], None]) -> int:
    """The bytes that a pass over these rows adds at its highest."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        loss(batch.split(rows)[0].to(device)).backward()
        return torch.cuda.max_memory_allocated(device) - before
    finally:
        clear()


def _free_on(device: torch.device) -> int:
    free, total = torch.cuda.mem_get_info(device)
    used = torch.cuda.memory_allocated(device)
    allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total) - used
    return min(free + torch.cuda.memory_reserved(device) - used, allowed)


# ---- a CPU


def _estimated(loss: Loss, batch: Batch, device: torch.device) -> int:
    """From what one row more saves for the way back, and the memory that is free."""
    free = free_memory()
    if free is None or len(batch.tokens) == 1:
        return len(batch.tokens)
    each = _saved(loss, batch, 2, device) - _saved(loss, batch, 1, device)
    return max(1, int(free * CPU_SHARE / max(1.0, BACKWARD * each)))


def _saved(loss: Loss, batch: Batch, rows: int, device: torch.device) -> int:
    """The bytes that a pass over these rows keeps for its way back."""
    storages: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        kept = loss(batch.split(rows)[0].to(device))
    del kept
    return sum(storages.values())


def free_memory() -> int | None:
    """The bytes that this process may still take; None where the system does not say."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except (OSError, ValueError, AttributeError):
        return None
    try:  # a container's limit, which /proc does not know of
        limit = (CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            free = min(free, int(limit) - int((CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(0, free)
