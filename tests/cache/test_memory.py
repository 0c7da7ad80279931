"""What a cache's buffers are made of and grow by, without torch's threads."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vantage.cache.memory import LAZY, PIECE, copy_places, grown, zeros
from vantage.model import build, decoder
from vantage.training.micro_batch import is_out_of_memory

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(0, 4), (3, 5, 7), (2, PIECE // 3, 3), (3, 700, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
def test_zeros(shape: tuple[int, ...], dtype: torch.dtype):
    buffer = zeros(shape, dtype, CPU)
    assert torch.equal(buffer, torch.zeros(shape, dtype=dtype))
    assert buffer.dtype == dtype
    assert buffer.is_contiguous()


@pytest.mark.skipif(not hasattr(mmap, "MAP_PRIVATE"), reason="the system has no such memory")
def test_zeros_take_memory_when_they_are_written():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    buffer = zeros((4, 256, LAZY // 4), torch.bfloat16, CPU)
    assert buffer.nbytes == 512 * LAZY
    assert resident() - before < 16 * LAZY
    assert buffer.data_ptr() % mmap.PAGESIZE == 0
    buffer[1, 3].fill_(2.0)
    assert float(buffer[1, 3].sum()) == LAZY / 2
    assert float(buffer[3, 255].abs().sum()) == 0.0
    del buffer
    assert resident() - before < 16 * LAZY


def test_more_than_there_is_is_an_error_of_memory():
    with pytest.raises(RuntimeError, match="can't allocate memory") as raised:
        zeros((1 << 50,), torch.int8, CPU)
    assert is_out_of_memory(raised.value)


def test_room_is_left_at_first_and_doubled_then():
    assert grown(0, 3, 64) == 67
    assert grown(0, 2_000, 64) == 2_500
    assert grown(0, 30, 0) == 30  # nothing follows
    assert grown(67, 68, 64) == 134
    assert grown(67, 500, 64) == 500


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("tokens", [16, 200])
def test_what_follows_a_prompt_finds_room(kind: str, tokens: int):
    """The buffers are those that the prompt filled."""
    model = build(decoder(vocab=11, width=16, layers=1, heads=2), seed=0)
    cache = model.new_cache(1, kind=kind)
    with torch.no_grad():
        model(torch.zeros(1, tokens, dtype=torch.int64), cache=cache)
        first = cache.layers[0].store.tensors[0].data_ptr()
        for _ in range(40):
            model(torch.zeros(1, 1, dtype=torch.int64), cache=cache)
            assert cache.layers[0].store.tensors[0].data_ptr() == first


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
