"""Sentence embeddings, in a thread of their own for each model: the mean of the hidden states, of length 1."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import final

import torch

from vantage.model import Model
from vantage.model.pooling import mean_pool
from vantage.serve.errors import ApiError, failed, overloaded
from vantage.serve.logs import ServerLog
from vantage.serve.settings import Batching

PASS_TOKENS = 4096  # of a pass, padding included: between two passes a call can be given up


@final
class Embedder:
    def __init__(self, name: str, model: Model, batching: Batching, log: ServerLog):
        self._name, self._model, self._log = name, model, log
        self._most = batching.queue + 1
        self._calls = 0
        self._mean_s = 1.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"embed-{name}")

    def start(self) -> None:
        """As a worker does; its thread begins with the first call."""

    @property
    def busy(self) -> int:
        return self._calls

    @contextlib.contextmanager
    def seat(self) -> Iterator[None]:
        """A place for a call, or 429."""
        if self._calls >= self._most:
            raise overloaded(min(60, max(1, math.ceil(self._mean_s * self._calls))))
        self._calls += 1
        began = time.perf_counter()
        try:
            yield
            self._mean_s += 0.2 * (time.perf_counter() - began - self._mean_s)
        finally:
            self._calls -= 1

    async def embed(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """One vector a row. Rows of like length share a pass."""
        loop = asyncio.get_running_loop()
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        vectors: dict[int, list[float]] = {}
        for group in _groups(rows, order):
            try:
                computed = await loop.run_in_executor(self._thread, self._pass, [rows[i] for i in group])
            except Exception as e:
                self._log.fault(self._name, "embed", e)
                raise failed(e, own=False) from e
            vectors.update(zip(group, computed, strict=True))
        return [vectors[i] for i in range(len(rows))]

    @torch.inference_mode()
    def _pass(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        device = self._model.device
        ids, mask = ids.to(device), mask.to(device)
        pooled = mean_pool(self._model.hidden(ids, mask=mask), mask).double()
        vectors = torch.nn.functional.normalize(pooled, dim=-1).float()
        if not bool(torch.isfinite(vectors).all()):
            raise ApiError(500, "step_failed", "the model's output is not a number")
        return vectors.tolist()

    async def stop(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)


def _groups(rows: Sequence[Sequence[int]], order: Sequence[int]) -> Iterator[list[int]]:
    group: list[int] = []
    for i in order:  # shortest first, so the newest is the longest
        if group and (len(group) + 1) * len(rows[i]) > PASS_TOKENS:
            yield group
            group = []
        group.append(i)
    if group:
        yield group
