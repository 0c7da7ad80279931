"""Cached examples are the examples, whoever made them."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.processes import PATIENCE, until
from vantage.compare import example_cache
from vantage.compare.example_cache import BATCHES, CachedExamples
from vantage.compare.task_names import task_of
from vantage.training.batch import Batch
from vantage.training.sequences import Sequences

BATCH, STEPS = 4, BATCHES + 5  # a whole block and a part of one


def made(reads: str = "line", seed: int = 0) -> Sequences:
    return Sequences(task_of("ordering" if reads == "ask" else "addition"), reads, (2, 9), (9,), 3, seed)


def batch_of(data: Sequences | CachedExamples, step: int) -> Batch:
    return data.batch(range(step * BATCH, (step + 1) * BATCH))


def same(one: Batch, other: Batch) -> None:
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.targets, other.targets)
    assert (one.positions is None) == (other.positions is None)
    if one.positions is not None and other.positions is not None:
        assert torch.equal(one.positions.order, other.positions.order)
        assert torch.equal(one.positions.pos, other.positions.pos)


@pytest.mark.parametrize("reads", ["line", "ask"])
def test_the_batches_are_the_same(reads: str, tmp_path: Path):
    data = made(reads)
    first, second = (CachedExamples(data, STEPS, BATCH, tmp_path) for _ in range(2))
    for step in range(STEPS):
        same(batch_of(first, step), batch_of(data, step))
    for step in reversed(range(STEPS)):
        same(batch_of(second, step), batch_of(data, step))
    assert first.vocab == data.vocab
    assert list(first.held_out()) == ["length 9"]


def test_what_lies_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    batch_of(CachedExamples(made(), STEPS, BATCH, tmp_path), 0)
    monkeypatch.setattr(Sequences, "example", lambda *_: pytest.fail("made again"))
    batch_of(CachedExamples(made(), STEPS, BATCH, tmp_path), 0)
    with pytest.raises(pytest.fail.Exception, match="made again"):
        batch_of(CachedExamples(made(seed=1), STEPS, BATCH, tmp_path), 0)


def _reads(folder: Path, steps: list[int], said: multiprocessing.Queue) -> None:
    data = CachedExamples(made(), 4 * BATCHES, BATCH, folder)
    said.put([int(batch_of(data, step).tokens.sum()) for step in steps])


@pytest.mark.sampled
@pytest.mark.skipif(example_cache.fcntl is None, reason="there are no such locks here")
def test_a_worker_that_waits_makes_what_comes_next(tmp_path: Path):
    """The first block is being made by somebody who is slow; meanwhile the others are made. Then it comes, and is
    read."""
    data = CachedExamples(made(), 4 * BATCHES, BATCH, tmp_path)
    with example_cache._exclusive(data._path(0).with_suffix(".lock")) as alone:
        assert alone
        context = multiprocessing.get_context("spawn")
        said = context.Queue()
        process = context.Process(target=_reads, args=(tmp_path, [0, 3 * BATCHES], said))
        process.start()
        for number in (1, 2, 3):
            until(data._path(number).exists)
        assert not data._path(0).exists()
    found = said.get(timeout=PATIENCE)  # the lock is free: it makes the block itself
    process.join(PATIENCE)
    assert found == [int(batch_of(made(), step).tokens.sum()) for step in (0, 3 * BATCHES)]
    assert not list(tmp_path.glob("*-4.npy"))


def test_a_block_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = CachedExamples(made(), STEPS, BATCH, tmp_path)

    def fails(file, array):
        file.write(b"half")
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(np, "save", fails)
        with pytest.raises(OSError, match="No space"):
            batch_of(data, 0)
    same(batch_of(data, 0), batch_of(made(), 0))
