"""When a model's steps run as a whole: with a cache, where every part has a native form for the device."""

from __future__ import annotations

import importlib.util
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vantage.cache import ModelCache
from vantage.errors import Refused
from vantage.kernels.native import native
from vantage.kernels.native.build import enabled
from vantage.model.lowered.run import NATIVE, Lowered
from vantage.model.lowered.shown import WeightsWatcher
from vantage.model.packed import PackedWeight
from vantage.spec.native import CannotLower
from vantage.spec.parts import Kernel
from vantage.spec.positions import Positions
from vantage.spec.sampling import PendingSteps, RowChoice

if TYPE_CHECKING:
    from vantage.model.lowered.gpu_steps import GpuSteps


class WholeSteps:
    """kernel="auto" takes whole steps where it can, kernel="native" refuses where it cannot, any other never does."""

    def __init__(self, kernel: str | Kernel):
        self._kernel = kernel
        self._wanted, self._must = kernel in ("auto", NATIVE), kernel == NATIVE
        self._lowered: Lowered | None = None
        self._last_hidden: weakref.ref[Tensor] | None = None  # what the last whole step gave
        self._why_not: str | None = None  # said by the model's parts: it stays so until the model changes
        self._gpu: GpuSteps | None = None
        self._why_not_on_gpu: str | None = None
        self.watcher: WeightsWatcher | None = None  # who wants the weights of each pass's last query
        self._in_the_way = ""  # why the last pass that could have been a whole step was none

    def hidden(self, model: Any, x_BTD: Tensor, pos: Positions, cache: ModelCache) -> Tensor | None:
        """The model's last hidden states, if a whole step could make them."""
        gpu = self._ready_on_gpu(model, cache) if x_BTD.device.type == "cuda" else None
        if gpu is not None and (hidden := gpu.hidden(x_BTD, pos, cache)) is not None:
            return hidden
        why = "this pass is one for torch: padding, documents, or a cache of another form than float32, float16 or int8"
        if (lowered := self._ready(model, x_BTD)) is not None:
            hidden = lowered.hidden(x_BTD, pos, cache, fast=model.fast, watcher=self.watcher)
            if hidden is not None:
                self._last_hidden = weakref.ref(hidden)
                return hidden
        elif self._wanted:
            why = self._why_not or "it runs on a CPU, in float32 and without gradients"
        if self._must:
            raise Refused(f"kernel='native' was requested, but {why}; use kernel='auto'")
        self._in_the_way = why if self._wanted else f"kernel={self._kernel!r} was chosen"
        return None

    def by_modules(self, *, asked: bool) -> AbstractContextManager[None]:
        """Around a pass that is no whole step: whoever wants weights watches the modules. ``asked``: ``hidden`` was."""
        if self.watcher is None:
            return nullcontext()
        return self.watcher.modules(self._in_the_way if asked else "this pass has no cache, or deep features of images")

    def prefers(self, model: Any) -> bool:
        """Whether a pass without a cache should be a whole step as well: with packed weights it gives the same bits."""
        weight = model.embed.tokens.weight
        if not isinstance(weight, PackedWeight) or torch.is_grad_enabled():
            return False
        lowered = self._ready(model, weight)
        return lowered is not None and not lowered.dense

    def logits(self, hidden_BTD: Tensor) -> Tensor | None:
        """The logits, if a whole step made these hidden states."""
        if self._lowered is None or self._last_hidden is None or self._last_hidden() is not hidden_BTD:
            return None
        return self._lowered.logits(hidden_BTD)

    def _ready(self, model: Any, x: Tensor | PackedWeight) -> Lowered | None:
        if torch.compiler.is_compiling():
            return None  # the compiler makes steps of its own
        if not self._wanted or x.device.type != "cpu" or x.dtype is not torch.float32 or model.training:
            return None
        if torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad:
            return None
        if self._lowered is not None and self._lowered.stale():
            self._lowered = None
        if self._lowered is None and self._why_not is None:
            self._lower(model)
        return None if self._lowered is None or self._lowered.watched() else self._lowered

    def _lower(self, model: Any) -> None:
        try:
            if model.encoder is not None:
                raise CannotLower("cross-attention has no native form")
            if (backend := native()) is None:
                raise CannotLower("the native kernels are not there")
            self._lowered = Lowered(model, backend)
        except CannotLower as why:
            self._why_not = str(why)

    # ---- several steps, and on a GPU

    def step_on_gpu(self, model: Any, tokens_B1: Tensor, pos: Positions, cache: ModelCache) -> Tensor | None:
        """The logits (B, 1, V) after one token a row, which the cache takes in; ``None``: not for this step."""
        steps = self._ready_on_gpu(model, cache)
        if steps is None:
            return None
        cache.begin(pos)
        try:
            logits = steps.logits(tokens_B1, pos, cache)
        except BaseException:
            cache.abandon()
            raise
        cache.abandon() if logits is None else cache.commit()
        return logits

    def steps_ahead(
        self,
        model: Any,
        tokens: Sequence[int] | PendingSteps,
        caches: Sequence[ModelCache],
        steps: int,
        choices: Sequence[RowChoice],
    ) -> PendingSteps | None:
        """So many tokens for each row, each chosen from the one before on the device. ``None``: not for these rows."""
        if (gpu := self._ready_on_gpu(model, caches[0])) is not None:
            return gpu.ahead(tokens, caches, steps, choices)
        lowered = self._ready(model, model.embed.tokens.weight) if self._may_run_ahead(model) else None
        if lowered is None or not isinstance(tokens, Sequence):
            return None
        return lowered.ahead(tokens, caches, steps, choices)

    def _may_run_ahead(self, model: Any) -> bool:
        """On a CPU: not where somebody waits for each of the model's calls, or layers are brought one by one."""
        waited_for = self.watcher is not None or model._forward_hooks or model._forward_pre_hooks
        return model.device.type == "cpu" and not waited_for and not model.placement.layers

    def runs_ahead(self, model: Any) -> bool:
        """Whether ``steps_ahead`` may be worth asking for."""
        return self.runs_on_gpu(model) or (
            self._may_run_ahead(model) and self._ready(model, model.embed.tokens.weight) is not None
        )

    def runs_on_gpu(self, model: Any) -> bool:
        """Whether this model's steps could be graphs: it is on a GPU, and its parts are lowered or can be captured."""
        if model.device.type != "cuda" or self._kernel != "auto" or torch.is_grad_enabled() or model.training:
            return False
        if torch.compiler.is_compiling() or self.watcher is not None:
            return False
        if self._gpu is not None and self._gpu.stale():
            self._gpu = None
        if self._gpu is None and self._why_not_on_gpu is None:
            self._lower_for_gpu(model)
        return self._gpu is not None and self._gpu.why_not is None and not self._gpu.watched()

    def _ready_on_gpu(self, model: Any, cache: ModelCache) -> GpuSteps | None:
        return self._gpu if self.runs_on_gpu(model) and self._gpu is not None and self._gpu.takes(cache) else None

    def _lower_for_gpu(self, model: Any) -> None:
        try:
            if model.encoder is not None:
                raise CannotLower("cross-attention has no native form")
            if not enabled():
                raise CannotLower("VANTAGE_NATIVE=0")
            if importlib.util.find_spec("triton") is None:
                raise CannotLower("Triton is not installed")
            from vantage.model.lowered.gpu_steps import GpuSteps

            self._gpu = GpuSteps(model)
        except CannotLower as why:
            self._why_not_on_gpu = str(why)
