"""The models: loaded when first asked for, within a limit, the least recently used given up first.

A request names a model; the name is looked up among those the server was started with, and never
becomes a path.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, final

from vantage.checkpoints.pull import find
from vantage.errors import Refused, VantageError
from vantage.families.adapters import with_adapter
from vantage.generation.prompts import end_tokens
from vantage.model import Model
from vantage.serve.embedder import Embedder
from vantage.serve.errors import ApiError, bad, draining, overloaded, unknown_model
from vantage.serve.logs import ServerLog
from vantage.serve.metrics import Metrics
from vantage.serve.model_group import ModelGroup
from vantage.serve.safe_tokenizer import SafeTokenizer, TokenTexts
from vantage.serve.settings import ServedModel, ServerSettings
from vantage.serve.worker import Worker

Load = Callable[[ServedModel], Model]


class Backend(Protocol):
    """What takes requests, and one day stops taking them."""

    draining: bool

    @property
    def busy(self) -> int: ...
    async def close(self) -> None: ...


@final
@dataclass(eq=False)
class LoadedModel:
    """A model in memory, with whatever its requests need."""

    name: str
    model: Model
    safe_tokenizer: SafeTokenizer
    texts: TokenTexts
    ends: frozenset[int]
    context: int | None
    runner: Worker | Embedder
    bytes: int
    adapters: Mapping[str, Model] = field(default_factory=dict)  # by the name that requests use
    adapter: str | None = None  # the one that this stands for: same weights, same runner

    def with_adapter(self, name: str) -> LoadedModel:
        """What requests for an adapter need."""
        if not self.generates:
            raise bad(
                f"{self.name} makes embeddings, and adapters are for models that generate", "model", "wrong_model"
            )
        if name not in self.adapters:
            raise _adapter_failed(name)
        return replace(self, name=name, model=self.adapters[name], adapter=name)

    @property
    def generates(self) -> bool:
        """Whether it goes on from texts; otherwise it makes embeddings of them."""
        return isinstance(self.runner, Worker)

    @property
    def kind(self) -> str:
        return "generate" if self.generates else "embed"

    @property
    def worker(self) -> Worker:
        if not isinstance(self.runner, Worker):
            raise bad(f"{self.name} makes embeddings and cannot generate: use /v1/embeddings", "model", "wrong_model")
        return self.runner

    @property
    def embedder(self) -> Embedder:
        if not isinstance(self.runner, Embedder):
            raise bad(f"{self.name} generates and has no embeddings: use an encoder", "model", "wrong_model")
        return self.runner


@final
class _Slot:
    """A place for a model, whether it is loaded or not."""

    def __init__(self, served: ServedModel):
        self.served = served
        self.loaded: LoadedModel | None = None
        self.loading: asyncio.Task[LoadedModel] | None = None
        self.leases, self.used = 0, 0.0
        self.bytes = 0  # what it took the last time


@final
class ModelPool:
    def __init__(
        self, settings: ServerSettings, log: ServerLog, metrics: Metrics, load: Load, group: ModelGroup | None = None
    ):
        self._settings, self._log, self._metrics, self._load = settings, log, metrics, load
        self._group = group  # the processes that the model lies over
        self._slots = {served.name: _Slot(served) for served in settings.models}
        self._bases = {adapter.name: adapter.base for adapter in settings.adapters}
        self._one = asyncio.Lock()  # one load at a time: two would not know of each other's memory
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._prepare = ThreadPoolExecutor(2, thread_name_prefix="prepare")
        self._tasks: set[asyncio.Task[LoadedModel]] = set()
        self.created = int(time.time())
        self.draining = False

    # ---- using them

    @contextlib.asynccontextmanager
    async def lease(self, name: str) -> AsyncIterator[LoadedModel]:
        """The model, loaded, and not unloaded before this ends."""
        slot = self._slots.get(self._bases.get(name, name))
        if slot is None:
            raise unknown_model(name)
        if self.draining:
            raise draining()
        if slot.loaded is None and slot.leases > self._settings.batching.queue:
            raise overloaded(5)
        slot.leases += 1
        try:
            loaded = await self._get(slot)
            yield loaded.with_adapter(name) if name in self._bases else loaded
        finally:
            slot.leases -= 1
            slot.used = time.monotonic()

    async def prepare(self, work: Callable[[], Any]) -> Any:
        """Encoding and compiling, away from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._prepare, work)

    async def preload(self) -> None:
        for name in self._slots:
            async with self.lease(name):
                pass

    def listed(self) -> list[dict[str, Any]]:
        return [self.card(name) for name in self._settings.model_names]

    def card(self, name: str) -> dict[str, Any]:
        base = self._bases.get(name)
        slot = self._slots.get(name if base is None else base)
        if slot is None:
            raise unknown_model(name)
        loaded = slot.loaded
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "vantage",
            "parent": base,
            "loaded": loaded is not None,
            "kind": None if loaded is None else loaded.kind,
            "context": None if loaded is None else loaded.context,
        }

    def loaded(self) -> list[LoadedModel]:
        return [slot.loaded for slot in self._slots.values() if slot.loaded is not None]

    @property
    def busy(self) -> int:
        return sum(slot.leases for slot in self._slots.values())

    # ---- loading

    async def _get(self, slot: _Slot) -> LoadedModel:
        if slot.loaded is not None:
            return slot.loaded
        if slot.loading is None:
            slot.loading = asyncio.create_task(self._bring(slot))
            self._tasks.add(slot.loading)
            slot.loading.add_done_callback(self._tasks.discard)
        # whoever asked first may leave: the others still want it
        return await asyncio.shield(slot.loading)

    async def _bring(self, slot: _Slot) -> LoadedModel:
        name, began = slot.served.name, time.monotonic()
        try:
            async with self._one:
                await self._room(slot, slot.bytes or await asyncio.to_thread(_guess, slot.served.source))
                loop = asyncio.get_running_loop()
                try:
                    loaded = await loop.run_in_executor(self._threads, self._make, slot.served)
                except Exception as e:
                    self._log.fault(name, "load", e)
                    raise _not_loaded(name, e) from e
                slot.bytes = loaded.bytes
                try:
                    await self._room(slot, loaded.bytes)
                except ApiError:
                    await loaded.runner.stop()
                    raise
                loaded.runner.start()
                slot.loaded = loaded
                self._metrics.loads.add(model=name)
                self._log.write("info", "loaded", model=name, bytes=loaded.bytes, seconds=time.monotonic() - began)
                return loaded
        finally:
            slot.loading = None

    def _make(self, served: ServedModel) -> LoadedModel:
        model = self._load(served)
        if model.tokenizer is None:
            raise Refused(f"{served.name} has no tokenizer: a server speaks in texts")
        batching, limits = self._settings.batching, self._settings.limits
        safe_tokenizer, context = SafeTokenizer(model.tokenizer), model.context_length
        adapters: dict[str, Model] = {}
        runner: Worker | Embedder
        if model.generates:
            context = batching.capacity if context is None else min(context, batching.capacity)
            adapters = self._adapted(served, model)
            runner = Worker(served.name, model, batching, limits.backlog, self._log, adapters, self._group)
            cache = batching.capacity * _token_bytes(model)
        elif model.spec.embedding.source is not None:
            raise Refused(f"{served.name} reads {model.spec.embedding.source}: a server speaks in texts")
        else:
            runner, cache = Embedder(served.name, model, batching, self._log), 0
        held = {id(x): x.nbytes for one in (model, *adapters.values()) for x in (*one.parameters(), *one.buffers())}
        texts, ends, size = TokenTexts(model.tokenizer), end_tokens(model), sum(held.values()) + cache
        return LoadedModel(served.name, model, safe_tokenizer, texts, ends, context, runner, size, adapters)

    def _adapted(self, served: ServedModel, model: Model) -> dict[str, Model]:
        """The model with each of its adapters. One that cannot be read is left out, and its requests are refused."""
        adapters: dict[str, Model] = {}
        for adapter in self._settings.adapters:
            if adapter.base == served.name:
                try:
                    adapters[adapter.name] = with_adapter(model, adapter.path)
                except Exception as e:
                    self._log.fault(adapter.name, "load", e)
        return adapters

    async def _room(self, wanted: _Slot, bytes: int) -> None:
        """Unload idle models, the least recently used first, until this many bytes fit."""
        limit = self._settings.limits.memory_bytes
        while limit:
            others = [slot for slot in self._slots.values() if slot.loaded is not None and slot is not wanted]
            if bytes + sum(slot.bytes for slot in others) <= limit:
                return
            idle = [slot for slot in others if slot.leases == 0]
            if not idle:
                raise _no_room(wanted.served.name, alone=not others)
            await self._unload(min(idle, key=lambda slot: slot.used))

    async def _unload(self, slot: _Slot) -> None:
        loaded, slot.loaded = slot.loaded, None
        assert loaded is not None, "it was chosen because it is loaded"
        await loaded.runner.stop()
        del loaded
        gc.collect()
        self._metrics.unloads.add(model=slot.served.name)
        self._log.write("info", "unloaded", model=slot.served.name)

    async def close(self) -> None:
        for slot in self._slots.values():
            if slot.loaded is not None:
                await self._unload(slot)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._prepare.shutdown(wait=False, cancel_futures=True)


def _not_loaded(name: str, error: Exception) -> ApiError:
    """Paths and details are for the log, not for a client."""
    if isinstance(error, MemoryError):
        return ApiError(500, "out_of_memory", f"there was not enough memory to load {name}")
    kind = "cannot be used" if isinstance(error, VantageError) else "could not be read"
    return ApiError(500, "model_load_failed", f"{name} could not be loaded, its files {kind}: see the server's log")


def _adapter_failed(name: str) -> ApiError:
    return ApiError(500, "model_load_failed", f"the adapter {name} could not be loaded: see the server's log")


def _no_room(name: str, *, alone: bool) -> ApiError:
    if alone:
        return ApiError(503, "model_too_large", f"{name} needs more memory than this server allows")
    return ApiError(503, "models_busy", f"there is no room for {name} while other models are in use", retry=10)


def _guess(source: str) -> int:
    """What a model that was never loaded may take: its files."""
    try:
        path = find(source)
        files = [path] if path.is_file() else [*Path(path).glob("*.safetensors"), *Path(path).glob("*.gguf")]
        return sum(file.stat().st_size for file in files)
    except (OSError, VantageError):
        return 0  # loading will say what is wrong


def _token_bytes(model: Model) -> int:
    """Keys and values of one token, in all layers."""
    return sum(layer.store.token_bytes for layer in model.new_cache(1, kind="paged", capacity=1, block=1).layers)
