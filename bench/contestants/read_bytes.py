"""The bound of a decode step: as many bytes as the larger file has, read once from memory by all threads."""

import mmap
import sys
from pathlib import Path
from time import perf_counter

import torch

sys.path.insert(0, str(Path(__file__).parent))
from large_file import large_file


def setup() -> None:
    global numbers
    size = Path(large_file()).stat().st_size // 4 * 4
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # as the weights have them
        memory.madvise(mmap.MADV_HUGEPAGE)
    numbers = torch.frombuffer(memory, dtype=torch.float32).fill_(1.0)


def round() -> dict[str, list[float]]:
    seconds = []
    for _ in range(8):
        start = perf_counter()
        numbers.sum()
        seconds.append(perf_counter() - start)
    return {"seconds": seconds}
