"""What parts from outside return, asked one by one with small inputs: shape, dtype and device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from vantage.cache import NoCache
from vantage.kernels import chooser
from vantage.model.lowered import NATIVE
from vantage.model.part_errors import built_part, described, from_outside
from vantage.spec.masks import Causal
from vantage.spec.parts import BiasInputs, Context, Need, Shape, View, materialise
from vantage.spec.positions import Positions

ROWS, TOKENS = 2, 3
Call = tuple[str, Callable[[], Any], tuple[int, ...]]  # its name, the call, the shape that it should return


@torch.no_grad()
def wrong_output(model: Any, layer: int | None) -> str | None:
    """The first part from outside that returns something else than it should: in words, or ``None``."""
    where = "" if layer is None else f", layer {layer},"
    for part, calls in _outside_parts(model, layer):
        for name, call, shape in calls:
            try:
                returned = call()
            except Exception as error:
                return f"{described(model, part)}{where} raised in {name}: {type(error).__name__}: {error}"
            if (wrong := _wrong(returned, shape, model)) is not None:
                return f"{described(model, part)}{where} returned {wrong} from {name}"
    return None


def _wrong(returned: Any, shape: tuple[int, ...], model: Any) -> str | None:
    if not isinstance(returned, Tensor):
        return f"a {type(returned).__name__} where a tensor is wanted"
    if tuple(returned.shape) != shape:
        return f"a tensor of shape {tuple(returned.shape)} where {shape} is wanted"
    if returned.dtype != model.dtype:
        return f"{returned.dtype} where the model computes in {model.dtype}"
    if returned.device != model.device:
        return f"a tensor on {returned.device} where the model is on {model.device}"
    return None


def _outside_parts(model: Any, layer: int | None) -> Iterator[tuple[Any, list[Call]]]:
    """Those of the layer in which a pass failed, or of the two ends."""
    pos = Positions.arange(ROWS, TOKENS, device=model.device).declare(model.spec.original_length)
    blocks = list(model.blocks) if layer is None else [model.blocks[layer]]
    shape = model.spec.layers[layer or 0].attention.shape(model.spec.width)
    ctx = Context(pos, chooser("reference"), (NoCache(),) * len(model.blocks), (NoCache(),) * len(model.blocks))
    for module in (*model.embed.modules(), *(m for block in blocks for m in block.modules()), *model.norm.modules()):
        if (part := built_part(module)) is not None:
            yield module, _calls(part.role, module, shape, pos, ctx, model)
    choose = chooser("auto" if model.kernel == NATIVE else model.kernel)
    kernel = choose(_need(shape), *_query_and_view(shape, pos, model))
    if from_outside(kernel):
        q, view = _query_and_view(shape, pos, model)
        wanted = (ROWS, shape.heads, TOKENS, shape.value_dim)
        yield kernel, [("__call__()", lambda: kernel(q, view, pos.against(pos), _need(shape)).out, wanted)]


def _calls(role: str, module: Any, shape: Shape, pos: Positions, ctx: Context, model: Any) -> list[Call]:
    def some(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=model.device, dtype=model.dtype)

    x = some(ROWS, TOKENS, model.spec.width)
    q, k = (some(ROWS, heads, TOKENS, shape.rotary_dim) for heads in (shape.heads, shape.kv_heads))
    if role == "position added to the embeddings":
        own = model.spec.embedding.width or model.spec.width
        return [("forward()", lambda: module(some(ROWS, TOKENS, own), pos), (ROWS, TOKENS, own))]
    if role == "q/k transform":
        return [
            ("query()", lambda: module.query(q, pos), tuple(q.shape)),
            ("key()", lambda: module.key(k, pos), tuple(k.shape)),
        ]
    if role == "score bias":
        whole = (ROWS, shape.heads, TOKENS, TOKENS)
        return [("at()", lambda: _bias(module, q, k, pos, shape, whole, model), whole)]
    if role == "norm":
        return [("forward()", lambda: module(x), tuple(x.shape))] if _width(module) in (None, x.shape[-1]) else []
    if role in ("attention", "feed-forward layer"):
        return [("forward()", lambda: module(x, ctx), tuple(x.shape))]
    return []


def _bias(
    module: Any, q: Tensor, k: Tensor, pos: Positions, shape: Shape, whole: tuple[int, ...], model: Any
) -> Tensor:
    """A bias as it reaches the scores: of any dtype, and of one row or one head where all are alike."""
    x = torch.zeros(*pos.shape, model.spec.width, device=model.device, dtype=model.dtype)
    bias = module.at(BiasInputs(q, q, k, pos, pos, shape.key_dim**-0.5, x))
    value = materialise(bias, pos.against(pos), shape.heads, model.dtype)
    if value is None:
        return torch.zeros(whole, device=model.device, dtype=model.dtype)
    try:
        return value.expand(whole)
    except RuntimeError:
        return value


def _need(shape: Shape) -> Need:
    return Need(mask=Causal(), scale=shape.key_dim**-0.5)


def _query_and_view(shape: Shape, pos: Positions, model: Any) -> tuple[Tensor, View]:
    def some(heads: int, width: int) -> Tensor:
        return torch.randn((ROWS, heads, TOKENS, width), device=model.device, dtype=model.dtype)

    return some(shape.heads, shape.key_dim), View(
        some(shape.kv_heads, shape.key_dim), some(shape.kv_heads, shape.value_dim), pos
    )


def _width(module: nn.Module) -> int | None:
    """The width a norm was built for, where its weights say so."""
    return next((p.shape[-1] for p in module.parameters()), None)
