"""The same computation, faster or in less memory: half precision, torch.compile, computing again instead of keeping."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from vantage.spec.parts import Context, EncoderOutput
from vantage.spec.positions import Positions
from vantage.training.batch import Batch
from vantage.training.learners import losses

Logits = Callable[[Batch], Tensor]


def in_precision(learner: nn.Module, dtype: torch.dtype | None) -> Logits:
    """The learner, computing in ``dtype`` with weights that stay as they are: a copy is cast for each pass.

    Unlike under autocast, what flows from block to block is in ``dtype`` as well, which halves what norms and sums
    read and write. Norms and softmaxes sum in float32 by themselves, and so does the loss.
    """
    if dtype is None:
        return learner

    names = {p: name for name, p in learner.named_parameters() if p.is_floating_point()}
    places = {place: names[p] for place, p in _places(learner) if p in names}

    def call(batch: Batch) -> Tensor:
        cast = {name: p.to(dtype) for name, p in learner.named_parameters() if p.is_floating_point()}
        cast_places = {place: cast[name] for place, name in places.items()}
        return functional_call(learner, cast_places, (batch,), tie_weights=False)

    return call


def _places(learner: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Every place that holds a parameter, once: a module that has two names (an embedding that an encoder and a
    decoder share, T5's bias) is one place, and a parameter in two modules (a tied head) has two.

    ``tie_weights`` of ``functional_call`` takes a module with two names for two places, and when it puts the
    parameters back, leaves the cast copy of the first in the second: the module would never learn again.
    """
    for prefix, module in learner.named_modules():
        for name, p in module.named_parameters(recurse=False):
            yield f"{prefix}.{name}" if prefix else name, p


def loss_of(logits: Logits, smoothing: float) -> Callable[[Batch], Tensor]:
    """The summed loss of a batch, as it is."""
    return lambda batch: losses(logits(batch), batch.targets, smoothing)


def compiled_loss(logits: Logits, smoothing: float, note: Callable[[str], None]) -> Callable[[Batch], Tensor]:
    """The summed loss of a batch through torch.compile; where that cannot run, as it is, and ``note`` says so once."""

    def loss(tokens: Tensor, targets: Tensor, place: Any, source: Tensor | None, mask: Tensor | None) -> Tensor:
        positions = None if place is None else Positions(*place)  # made inside: a graph holds tensors, no objects
        return losses(logits(Batch(tokens, targets, positions, source, mask)), targets, smoothing)

    fast = torch.compile(loss)
    plain = False

    def run(batch: Batch) -> Tensor:
        nonlocal plain
        place = None if batch.positions is None else tuple(batch.positions.place)
        args = (batch.tokens, batch.targets, place, batch.source, batch.source_mask)
        if plain:
            return loss(*args)
        try:
            return fast(*args)
        except BackendCompilerFailed as e:
            plain = True
            note(f"not compiled, because the compiler failed ({str(e).splitlines()[0]}): this is slower, not different")
            return loss(*args)

    return run


def recompute(blocks: Sequence[nn.Module]) -> None:
    """Keep only what goes into each block, and compute the rest again on the way back (Chen et al. 2016).

    The block's own ``forward`` is wrapped, so that no parameter's name changes and hooks stay where they are.
    """
    for block in blocks:
        block.forward = functools.partial(_again, block.forward)


def recompute_no_more(blocks: Sequence[nn.Module]) -> None:
    """Give the blocks their own ``forward`` back."""
    for block in blocks:
        block.__dict__.pop("forward", None)


def _again(forward: Callable[[Tensor, Context], Tensor], x: Tensor, ctx: Context) -> Tensor:
    """The block, with a memo of its own each time it is computed.

    What layers work out once for all of them (a mask, T5's bias) lies in a memo. The second time it would be found
    there, and a block that made it the first time would not be computed as it was.
    """
    result: Any = checkpoint(lambda x: forward(x, _afresh(ctx)), x, use_reentrant=False)
    return result


def _afresh(ctx: Context) -> Context:
    memory = None if ctx.memory is None else EncoderOutput(ctx.memory.hidden, replace(ctx.memory.pos, memo={}))
    return replace(ctx, pos=replace(ctx.pos, memo={}), memory=memory)
