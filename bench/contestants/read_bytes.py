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
    global size
    cache = 2 * context * LAYERS * KV_HEADS * WIDTH // HEADS * BYTES  # keys and values
    size = (Path(large_file()).stat().st_size + cache) // 4 * 4


def round() -> dict[str, list[float]]:
    with mmap.mmap(-1, size) as memory:  # given back after each round: several of these wait beside models
        if hasattr(mmap, "MADV_HUGEPAGE"):  # as the weights have them
            memory.madvise(mmap.MADV_HUGEPAGE)
        numbers, seconds = torch.frombuffer(memory, dtype=torch.float32).fill_(1.0), []
        for _ in range(8):
            start = perf_counter()
            numbers.sum()
            seconds.append(perf_counter() - start)
        del numbers  # or the memory could not be given back
    return {"seconds": seconds}
