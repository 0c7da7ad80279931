"""A decode step of a model whose layers are mapped from a file that the system has forgotten, and reading that file."""

import os
import tempfile
from pathlib import Path
from time import perf_counter

import torch

LAYERS, WIDTH = 12, 1536
AT_ONCE = 2**23  # bytes


def setup(who: str) -> None:
    global model, file, cache, step
    import vantage as vt
    from vantage.model.mapped import MappedLayers, whole_pages
    from vantage.model.placement import layout_of

    spec = vt.decoder(vocab=1000, width=WIDTH, layers=LAYERS, heads=12, position="rope")
    model = vt.build(spec, seed=0).eval()
    file = None
    if who != "memory":
        nbytes = whole_pages(layout_of(model.blocks[0], frozenset()).nbytes)
        # beside the results, not in a folder that may lie in memory
        placement = MappedLayers(Path(tempfile.gettempdir()), tuple(range(LAYERS)), LAYERS * nbytes)
        for i, block in enumerate(model.blocks):
            placement.take(i, block, frozenset())
        model.requires_grad_(False)
        model.placement, file = placement, placement.file
        os.fdatasync(file.fileno())  # the system cannot forget what is not written
    step = _read if who == "file" else _decode
    cache = model.new_cache(1)
    with torch.inference_mode():
        model(torch.arange(1, 9)[None], cache=cache)


def round() -> dict[str, list[float]]:
    if file is not None:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    start = perf_counter()
    step()
    return {"seconds": [perf_counter() - start]}


def _decode() -> None:
    with torch.inference_mode():
        model(torch.tensor([[7]]), cache=cache)


def _read() -> None:
    assert file is not None
    memory, at = bytearray(AT_ONCE), 0
    while count := os.preadv(file.fileno(), [memory], at):
        at += count
