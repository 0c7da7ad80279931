"""What an attention of one's own asks of its kernel: the scale, and which heads go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from vantage.conformance.fault import Fault, layers_in_words
from vantage.conformance.probe import gap
from vantage.conformance.trace import Attend, PassTrace
from vantage.errors import Refused
from vantage.model import Model
from vantage.model.part_errors import described
from vantage.spec.attention import SplitsScores, attentions
from vantage.spec.masks import Mask
from vantage.spec.model import Scores
from vantage.spec.parts import Shape
from vantage.spec.transforms import chain


def wrong_attention(model: Model, passes: Sequence[tuple[str, PassTrace]], relative: float) -> Fault | None:
    """The first thing that is wrong with what the attentions ask of their kernels."""
    masks: dict[int, Fault] = {}
    for mode, trace in passes:
        for layer, nth, attend in trace.attends:
            attention: Any = next(iter(attentions(model.blocks[layer])), None)
            if nth or attention is None:  # the second of a layer is cross-attention
                continue
            who = described(model, attention) or type(attention).__name__
            where = f"layer {layer}: {who}, in {mode}"
            config: Any = model.spec.layers[layer].attention
            shape = config.shape(model.spec.width)
            if (fault := _wrong_mask(model.spec.layers[layer].mask, attend, who)) is not None:
                masks.setdefault(layer, fault)
            fault = (
                _wrong_scale(config, shape, attend, where)
                or _wrong_heads(shape, attend, where)
                or _scaled_before(trace, attention, attend, where, relative)
            )
            if fault is not None:
                return fault
    if not masks:
        return None
    first = masks[min(masks)]
    return replace(first, where=f"{layers_in_words(masks)}: {first.where}")


def _wrong_mask(declared: Mask, attend: Attend, where: str) -> Fault | None:
    """The cache is made for the layer's mask, so the attention must use that. One that forgets adds its own."""
    used, selected = attend.need.mask, attend.view.selected
    forgets = None if selected is None else selected.mask
    if used == declared or (forgets is not None and used == declared & forgets):
        return None
    shows = f"its layer declares {declared}, and it attends under {used}"
    theirs, ours = used.reach(), declared.reach()
    if theirs is not None and ours is not None and abs(theirs - ours) == 1:
        name = f"the window is one too {'wide' if theirs > ours else 'narrow'}"
    else:
        name = "the attention uses another mask than its layer declares"
    return Fault(name, where, shows, "mask in the attention's Need: it is BuildContext.mask")


def _wrong_scale(config: Any, shape: Shape, attend: Attend, where: str) -> Fault | None:
    """A config that has ``scores`` has said what the scale is: ``None`` stands for 1 / sqrt(key_dim)."""
    names = {f.name for f in fields(config)} if is_dataclass(config) else set()
    scores = getattr(config, "scores") if "scores" in names else None  # noqa: B009 (a config of anybody's)
    if not isinstance(scores, Scores):
        return None
    wanted = shape.key_dim**-0.5 if scores.scale is None else scores.scale
    got = attend.need.scale
    if abs(got - wanted) <= 1e-6 * wanted:
        return None
    shows = f"scores are multiplied by {got:.4g}, where {wanted:.4g} is declared (heads of {shape.key_dim})"
    if abs(got - wanted**2) <= 1e-6 * wanted:
        name = "the scale is applied twice"
    else:
        name = "the scale is forgotten" if got == 1.0 else "the scale is another one than declared"
    return Fault(name, where, shows, "scale in the attention's Need")


def _wrong_heads(shape: Shape, attend: Attend, where: str) -> Fault | None:
    """Keys that an attention repeats for its query heads: which of them are the same says how."""
    H, G, k = shape.heads, shape.kv_heads, attend.view.k
    if not 1 < G < H or k.shape[1] != H:
        return None
    if torch.equal(k[:, 0], k[:, G]) and not torch.equal(k[:, 0], k[:, 1]):
        shows = f"query heads 0 and {G} get the same keys, where 0 and 1 should ({H} heads over {G})"
        look = "repeat() where repeat_interleave() is meant: query head h uses key/value head h // (H / G)"
        return Fault("heads are grouped wrongly: keys and values go round by turns", where, shows, look)
    return None


def _scaled_before(trace: PassTrace, attention: Any, attend: Attend, where: str, relative: float) -> Fault | None:
    """Queries that were multiplied before the kernel multiplies the scores."""
    if not isinstance(attention, SplitsScores):
        return None
    x = next((call.inputs for call in trace.calls if call.module is attention and call.inputs is not None), None)
    if x is None:
        return None
    module: Any = attention
    try:
        raw, parts = module.queries_and_keys(x), module.position_parts()
    except Refused:  # it reads another layer's keys
        return None
    got, transforms = attend.q, parts.qk
    if raw.q.shape != got.shape or module.shape.rotary_dim != got.shape[-1]:
        return None
    wanted = chain(transforms, "query", raw.q, attend.pair.q)
    scale = max(float(wanted.abs().max()), 1e-6)
    factor = float((got * wanted).sum() / (wanted * wanted).sum())
    if gap(got, wanted) <= relative * scale or gap(factor * wanted, got) > relative * scale:
        return None
    shows = f"queries come multiplied by {factor:.4g}, and the kernel multiplies scores by {attend.need.scale:.4g}"
    twice = abs(factor - attend.need.scale) <= 1e-3 * attend.need.scale
    name = "the scale is applied twice" if twice else "queries are scaled before the kernel scales"
    return Fault(name, where, shows, "the attention's forward(): the kernel applies need.scale")
