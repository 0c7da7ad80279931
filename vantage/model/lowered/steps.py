"""When a model's steps run as a whole: with a cache, on a CPU, where every part has a native form."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from vantage.cache import ModelCache
from vantage.errors import Refused
from vantage.kernels.native import native
from vantage.model.lowered.run import NATIVE, Lowered
from vantage.model.packed import PackedWeight
from vantage.spec.native import CannotLower
from vantage.spec.parts import Kernel
from vantage.spec.positions import Positions


class WholeSteps:
    """kernel="auto" takes whole steps where it can, kernel="native" refuses where it cannot, any other never does."""

    def __init__(self, kernel: str | Kernel):
        self._wanted, self._must = kernel in ("auto", NATIVE), kernel == NATIVE
        self._lowered: Lowered | None = None
        self._last_hidden: weakref.ref[Tensor] | None = None  # what the last whole step gave
        self._why_not: str | None = None  # said by the model's parts: it stays so until the model changes

    def hidden(self, model: Any, x_BTD: Tensor, pos: Positions, cache: ModelCache) -> Tensor | None:
        """The model's last hidden states, if a whole step could make them."""
        why = "this pass is one for torch: padding, documents, or a cache of another form than float32, float16 or int8"
        if (lowered := self._ready(model, x_BTD)) is not None:
            if (hidden := lowered.hidden(x_BTD, pos, cache, fast=model.fast)) is not None:
                self._last_hidden = weakref.ref(hidden)
                return hidden
        elif self._wanted:
            why = self._why_not or "it runs on a CPU, in float32 and without gradients"
        if self._must:
            raise Refused(f"kernel='native' was asked for, but {why}; use kernel='auto'")
        return None

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
