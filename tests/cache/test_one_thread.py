"""What a cache's buffers are made of and grow by, without torch's threads."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vantage.cache.one_thread import PIECE, copy_places, zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(0, 4), (3, 5, 7), (2, PIECE // 3, 3), (3, 700, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
def test_zeros(shape: tuple[int, ...], dtype: torch.dtype):
    buffer = zeros(shape, dtype, CPU)
    assert torch.equal(buffer, torch.zeros(shape, dtype=dtype))
    assert buffer.dtype == dtype
    assert buffer.is_contiguous()


@pytest.mark.parametrize("lead", [(1,), (3,), (2, 3), (PIECE,)], ids=str)  # the last: a place is more than a piece
@pytest.mark.parametrize(("held", "places"), [(0, 4), (1, 2), (500, 700), (5, 5)])
def test_places_are_copied_and_others_left(lead: tuple[int, ...], held: int, places: int):
    places = min(places, 8) if lead[0] == PIECE else places
    held, width = min(held, places), 2 if lead[0] == PIECE else 64
    source = torch.arange(float(torch.Size((*lead, held, width)).numel())).view(*lead, held, width)
    to = torch.full((*lead, places, width), -1.0)
    copy_places(to, source)
    assert torch.equal(to[..., :held, :], source)
    assert bool((to[..., held:, :] == -1).all())


def test_elsewhere_than_on_a_processor_nothing_is_cut():
    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    with Names() as run:
        zeros((3, 700, 64), torch.float32, torch.device("meta"))
    assert run.names == ["aten.zeros.default"]


def test_no_piece_is_shared_out():
    """A profile of the operators: none has as many numbers as torch gives to several threads."""
    from torch.profiler import ProfilerActivity, profile

    source = torch.ones(3, 500, 64)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as record:
        copy_places(zeros((3, 1000, 64), torch.float32, CPU), source)
    sizes = [
        torch.Size(event.input_shapes[0]).numel()
        for event in record.events()
        if event.name in ("aten::fill_", "aten::zero_", "aten::copy_")
    ]
    assert len(sizes) >= 9
    assert max(sizes) <= PIECE
