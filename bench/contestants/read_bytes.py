"""The bound of a decode step: as many bytes as the larger file and its cache have, read once by all threads."""

import mmap
import sys
from pathlib import Path
from time import perf_counter

import torch

sys.path.insert(0, str(Path(__file__).parent))
from large_file import HEADS, KV_HEADS, LAYERS, WIDTH, large_file

BYTES = 2  # of a number in the cache


def setup(context: int = 0) -> None:
    """``context``: tokens in the cache."""
    global numbers
    cache = 2 * context * LAYERS * KV_HEADS * WIDTH // HEADS * BYTES  # keys and values
    size = (Path(large_file()).stat().st_size + cache) // 4 * 4
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
