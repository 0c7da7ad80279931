"""Whose fault an error is: a part from outside the package is named, with its layer and the call.

Nothing here runs while all is well. A part is looked at when it is built, and again only once a pass has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, final

import torch
from torch import nn

from vantage.cache import Codec, Ledger
from vantage.errors import PartError, VantageError
from vantage.kernels import KERNELS
from vantage.parts import registry
from vantage.spec.attention import attentions
from vantage.spec.masks import Mask
from vantage.spec.model import NormConfig
from vantage.spec.parts import Pointwise

MARK = "_part_from_outside"
OURS = ("vantage", "torch")
# role -> the kind of its registry, and what a module of this role must have
ROLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "position encoding": ("position", ()),
    "position added to the embeddings": ("position", ("forward",)),
    "q/k transform": ("position", ("query", "key")),
    "score bias": ("position", ("at",)),
    "value bias": ("position", ("at",)),
    "output transform": ("attention", ("forward",)),
    "indexer": ("indexer", ("choose",)),
    "attention": ("attention", ("forward",)),
    "cross-attention": ("attention", ("forward",)),
    "feed-forward layer": ("feed-forward", ("forward",)),
    "norm": ("norm", ("forward",)),
}


@final
@dataclass(frozen=True)
class BuiltPart:
    """What a module from outside was built as, and from which config."""

    role: str
    config: Any


def from_outside(part: object) -> bool:
    """Whether the class of this object is neither ours nor torch's."""
    return type(part).__module__.partition(".")[0] not in OURS


# ---- building


def build_part(role: str, config: Any, call: str, build: Callable[[], Any], layer: int | None = None) -> Any:
    """What ``build`` returns. A part from outside that raises, or builds something else, is named."""
    if not from_outside(config):
        return build()
    try:
        module = build()
    except VantageError:
        raise
    except Exception as error:
        raise PartError(f"{_described(role, config)}{_at(layer)} raised in {call}: {_words(error)}") from error
    return module if call != "build()" else _marked(role, config, module, layer)


def build_norm(norm: NormConfig, width: int) -> nn.Module:
    return build_part("norm", norm, "build()", lambda: norm.build(width))


def _marked(role: str, config: Any, module: Any, layer: int | None) -> nn.Module:
    who = f"{_described(role, config)}{_at(layer)} built"
    if not isinstance(module, nn.Module):
        raise PartError(f"{who} a {type(module).__name__}: build() must return a torch.nn.Module")
    for name in ROLES[role][1]:
        if name not in dir(module):
            raise PartError(f"{who} {type(module).__name__}, which has no {name}(): a {role} is called through it")
    module.__dict__[MARK] = BuiltPart(role, config)
    return module


# ---- running


def name_failed_part(model: Any, error: Exception) -> None:
    """Raises a ``PartError`` from this error if a part from outside raised it, or returned what led to it."""
    if isinstance(error, VantageError | torch.OutOfMemoryError):
        return
    frames = list(_frames(error))
    layer = next((index for frame in frames if (index := _layer(model, frame)) is not None), None)
    part, call = next(_outside_calls(model, frames), (None, ""))
    from vantage.model.part_outputs import wrong_output  # it runs parts, and imports what runs them

    holds_others = part is None or (isinstance(part, nn.Module) and bool(attentions(part)))
    if holds_others and (wrong := wrong_output(model, layer)) is not None:
        raise PartError(f"{wrong} (torch: {_words(error)})") from error
    if part is not None:
        raise PartError(f"{described(model, part)}{_at(layer)} raised in {call}(): {_words(error)}") from error


def _outside_calls(model: Any, frames: list[FrameType]) -> Iterator[tuple[Any, str]]:
    """The parts from outside whose methods were running, the innermost first."""
    for frame in reversed(frames):
        part = frame.f_locals.get("self")
        if part is not None and from_outside(part) and described(model, part) is not None:
            yield part, frame.f_code.co_name


def described(model: Any, part: Any) -> str | None:
    """A part from outside in words, by its registered name where it has one; ``None``: it is no such part."""
    built = built_part(part)
    if built is not None:
        return _described(built.role, built.config, part)
    if not from_outside(part):
        return None
    if isinstance(part, Pointwise):
        bias = next((m for m in model.modules() if (b := built_part(m)) and b.role == "score bias"), None)
        config = None if bias is None else built_part(bias).config  # pyright: ignore[reportOptionalMemberAccess] (found by it)
        return f"the score bias {type(part).__name__}" if config is None else _described("score bias", config, part)
    if isinstance(part, Mask):
        return _with_name("mask", registry("mask").name_of(type(part)), type(part).__name__)
    if isinstance(part, Ledger | Codec):
        return f"the cache's {type(part).__name__}"
    if part is model.kernel or any(entry.config is type(part) for entry in KERNELS.from_outside()):
        return _with_name("kernel", KERNELS.name_of(type(part)), type(part).__name__)
    return None


def built_part(module: object) -> BuiltPart | None:
    return module.__dict__.get(MARK) if isinstance(module, nn.Module) else None


def _described(role: str, config: Any, module: Any = None) -> str:
    name = registry(ROLES[role][0]).name_of(type(config))
    return _with_name(role, name, type(config if module is None else module).__name__)


def _with_name(role: str, name: str | None, kind: str) -> str:
    return f"the {role} {kind}" if name is None else f"the {role} {name!r} ({kind})"


def _at(layer: int | None) -> str:
    return "" if layer is None else f", layer {layer},"


def _words(error: Exception) -> str:
    lines = str(error).strip().split("\n")
    return f"{type(error).__name__}: {lines[0]}"


def _frames(error: Exception) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _layer(model: Any, frame: FrameType) -> int | None:
    """The number of the block that this frame runs."""
    module = frame.f_locals.get("self")
    return next((i for i, block in enumerate(model.blocks) if block is module), None)
