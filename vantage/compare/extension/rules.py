"""A loaded model under another rule for RoPE's positions, and a brief search for LongRoPE's divisors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vantage.errors import Refused
from vantage.model import Model, empty_model, fit_buffers
from vantage.position import DualChunk, Rope, SelfExtend, angles, ropes_among
from vantage.position.scaling import DynamicNTK, Linear, Llama3, LongRope, YaRN
from vantage.spec.model import Layer, ModelSpec

LOW, HIGH = 1.0, 4.0  # of llama3: as LLaMA 3.1 has them
MUTATIONS = 5  # of the best divisors so far, tried one after the other


def rotated_dims(spec: ModelSpec) -> int:
    """How many dimensions of a head are turned."""
    for layer in spec.layers:
        for rope in ropes_among(layer.qk):
            return int(layer.attention.shape(spec.width).rotary_dim * rope.share)
    raise Refused("the scalings are of RoPE, and no layer of this model has it: choose a model that does")


def rescaled(model: Model, rule: str, factor: float, context: int, divisors: Sequence[float] = ()) -> Model:
    """The same weights under a scaling, as modules of their own: what is put around them leaves the first alone."""
    dim = rotated_dims(model.spec)
    if rule in REMAPPINGS:
        layers = tuple(_remapped(layer, REMAPPINGS[rule](factor, context)) for layer in model.spec.layers)
    else:
        change = _rope_change(rule, factor, context, dim, tuple(divisors))
        layers = tuple(
            replace(layer, qk=tuple(change(part) if isinstance(part, Rope) else part for part in layer.qk))
            for layer in model.spec.layers
        )
    longest = max(model.spec.max_length or 0, round(factor * context))
    new = empty_model(replace(model.spec, layers=layers, max_length=longest))
    new.load_state_dict(model.state_dict(keep_vars=True), assign=True)
    fit_buffers(new, model.dtype, model.device)
    if any(t.is_meta for t in [*new.parameters(), *new.buffers()]):
        raise Refused("this model's weights cannot be shared under another scaling: load it in float32")
    new.kernel, new.tokenizer, new.config = model.kernel, model.tokenizer, model.config
    return new.train(model.training)


def _self_extend(factor: float, context: int) -> SelfExtend:
    """Half of the context as it is, and groups so large that the rest ends where the context does."""
    group = max(1, math.ceil(2 * factor - 1))
    return SelfExtend(group, max(1, context // 2 // group) * group)


def _dual_chunk(factor: float, context: int) -> DualChunk:
    """With the authors' sizes: chunks of three quarters of the context, and a sixteenth of it kept across borders."""
    return DualChunk(3 * context // 4, context // 16)


REMAPPINGS: dict[str, Callable[[float, int], SelfExtend | DualChunk]] = {
    "self-extend": _self_extend,
    "dual-chunk": _dual_chunk,
}


def _remapped(layer: Layer, rule: SelfExtend | DualChunk) -> Layer:
    rope = next(iter(ropes_among(layer.qk)), None)
    if rope is None:
        return layer
    if layer.bias is not None:
        raise Refused(f"this layer has a bias already ({layer.bias}), and {rule.describe()} is one: leave it out")
    return replace(layer, bias=rule.turning_with(rope))


def _rope_change(
    rule: str, factor: float, context: int, dim: int, divisors: tuple[float, ...]
) -> Callable[[Rope], Rope]:
    if rule == "none":
        return lambda part: part
    if rule == "ntk":  # NTK-aware (bloc97 2023): the base is raised once and for all
        return lambda part: replace(part, base=part.base * factor ** (dim / (dim - 2)), scaling=None)
    rules = {
        "linear": lambda: Linear(factor),
        "dynamic-ntk": lambda: DynamicNTK(1.0, context),
        "yarn": lambda: YaRN(factor, context),
        "longrope": lambda: LongRope((1.0,) * (dim // 2), divisors, context, factor),
        "llama3": lambda: Llama3(factor, LOW, HIGH, context),
    }
    scaling = rules[rule]()
    return lambda part: replace(part, scaling=scaling)


# ---- LongRoPE


def search_divisors(
    dim: int, base: float, factor: float, context: int, loss: Callable[[Sequence[float]], float], seed: int
) -> tuple[list[float], list[tuple[str, float]]]:
    """The best divisors found, and what was tried with its loss.

    LongRoPE (Ding et al. 2024) searches by evolution from interpolation, NTK and YaRN, keeping divisors that never
    fall from one pair to the next. This is the same in brief: those three, and a few mutations of the best. Its other
    finding, that the first tokens should stay as they are, is left out.
    """
    freq = angles.frequencies(dim, base)
    pair = torch.arange(dim // 2, dtype=torch.float64)
    yarn = freq / YaRN(factor, context).frequencies(dim, base, None)[0]
    starts = {
        "interpolation": torch.full((dim // 2,), factor, dtype=torch.float64),
        "NTK": factor ** (2 * pair / (dim - 2)),
        "YaRN": yarn.double(),
    }
    tried: list[tuple[str, float]] = []
    best: tuple[float, Tensor] | None = None
    random = torch.Generator().manual_seed(seed)
    for i in range(len(starts) + MUTATIONS):
        if i < len(starts):
            name, divisors = list(starts.items())[i]
        else:
            assert best is not None
            name, divisors = f"mutation {i + 1 - len(starts)}", _mutated(best[1], factor, random)
        value = loss(divisors.tolist())
        tried.append((name, value))
        if best is None or value < best[0]:
            best = (value, divisors)
    assert best is not None
    return [round(value, 6) for value in best[1].tolist()], tried


def _mutated(divisors: Tensor, factor: float, random: torch.Generator) -> Tensor:
    """A smooth bend of the logarithms, held between 1 and a little over the factor, never falling."""
    knots = torch.randn(4, generator=random, dtype=torch.float64) * 0.15
    bend = torch.nn.functional.interpolate(knots[None, None], len(divisors), mode="linear", align_corners=True)[0, 0]
    bent = (divisors.log() + bend).exp().clamp(1.0, 1.25 * factor)
    return bent.cummax(0).values
