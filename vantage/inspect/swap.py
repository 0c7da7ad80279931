"""``vt.swap``: the same weights seen with another base, scaling, window or encoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

import torch
from torch import nn

from vantage.attention import QK_PARTS
from vantage.errors import BadInput, Refused
from vantage.inspect.select import Numbers, numbers
from vantage.model import Model, empty_model
from vantage.model.assemble import build_shared
from vantage.position import SCORE_PARTS, Rope, encoding, ropes_among
from vantage.position.scaling import Rule
from vantage.spec.abilities import TurnsWith
from vantage.spec.attention import Attention, HasPositionParts, ability, attentions
from vantage.spec.masks import And, Everything, Mask, Or, Window
from vantage.spec.model import Layer, ModelSpec
from vantage.spec.parts import Buildable, Encoding, Parts, Shape


class _Keep:
    def __repr__(self) -> str:
        return "as it is"


KEEP: Final = _Keep()
T = TypeVar("T")


def swap(
    model: Model,
    position: str | Encoding | None = None,
    *,
    base: float | None = None,
    scaling: Rule | _Keep | None = KEEP,
    window: int | _Keep | None = KEEP,
    layers: Numbers = None,
    max_length: int | None = None,
    init: bool = False,
) -> Model:
    """A model that shares the weights of another and differs in position encoding, RoPE scaling or window.

    The original model is not changed.

    ``position``: another encoding, for every layer that has one (for all, if none has). ``base`` and ``scaling``
    change the RoPE that is there; ``scaling=None`` takes a scaling away. ``window``: what a query sees; ``None`` takes
    a window away. ``layers``: only in these. ``max_length``: the context the new model is made for, if it is another.
    An encoding with weights of its own is refused, since the model has none for it, unless ``init``: then they start
    as in a new model.
    """
    _check(model, base, scaling, window, max_length)
    if position is not None and (base is not None or scaling is not KEEP):
        raise BadInput(
            "position= is the whole encoding: give base= and scaling= inside it, as vt.Rope(base=, scaling=)"
        )
    if position is None and base is None and scaling is KEEP and window is KEEP and max_length is None:
        raise BadInput("nothing to swap: say position=, base=, scaling=, window= or max_length=")
    length = max_length or model.spec.max_length
    spec = _change(replace(model.spec, max_length=length), position, base, scaling, window, layers)
    new = empty_model(spec)
    new.kernel = model.kernel
    shared: dict[Any, nn.Module] = {}
    put = _Builder(shared, init, model.device, model.dtype)
    _share_model(new, model, spec, model.spec, put)
    new.tokenizer, new.image_processor = model.tokenizer, model.image_processor
    new.placement = model.placement  # the layers' tensors are the same ones
    return new.train(model.training)


def _check(model: Any, base: Any, scaling: Any, window: Any, max_length: Any) -> None:
    """What each of them may be; what it may be in this model is asked later."""
    if not isinstance(model, Model):
        raise BadInput(f"{model!r:.80} is not a Vantage transformer: give a model from vt.load or vt.build")
    if base is not None and (not isinstance(base, (int, float)) or isinstance(base, bool)):
        raise BadInput(f"base={base!r}: use a positive number (the paper's is 10000)")
    if scaling is not None and scaling is not KEEP and (isinstance(scaling, type) or not isinstance(scaling, Rule)):
        raise BadInput(f"scaling={scaling!r} is no rule: give one, as vt.scaling.Linear(2.0), or None for no scaling")
    if window is not KEEP and window is not None and (type(window) is not int or window < 1):
        raise BadInput(f"window={window!r}: give a whole number, 1 or more, or None for no window")
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise BadInput(f"max_length={max_length!r}: give the tokens of a context, 1 or more")


# ---- the spec


def _change(
    spec: ModelSpec,
    position: str | Encoding | None,
    base: float | None,
    scaling: Rule | _Keep | None,
    window: int | _Keep | None,
    layers: Numbers,
) -> ModelSpec:
    chosen = set(numbers(layers, len(spec.layers), "layer"))
    new = list(spec.layers)
    if position is not None:
        spec, new = _encoded(
            spec, encoding(position, max_length=spec.max_length), chosen, restricted=layers is not None
        )
    if base is not None or scaling is not KEEP:
        new = _turned(new, chosen, base, scaling)
    if window is not KEEP:
        assert window is None or isinstance(window, int)
        new = [
            replace(layer, mask=_windowed(layer.mask, window)) if i in chosen else layer for i, layer in enumerate(new)
        ]
    inner = None if spec.encoder is None else _change(spec.encoder, position, base, scaling, window, layers)
    return replace(spec, layers=tuple(new), encoder=inner)


def _encoded(spec: ModelSpec, new: Encoding, chosen: set[int], *, restricted: bool) -> tuple[ModelSpec, list[Layer]]:
    """The encoding in every chosen layer; layers that have none keep none, where others have one (iRoPE)."""
    some = any(_has_position(layer) for layer in spec.layers)
    layers: list[Layer] = []
    parts = Parts()
    for i, layer in enumerate(spec.layers):
        parts = new.parts(causal=layer.mask.causal)
        act = i in chosen and (restricted or not some or _has_position(layer))
        layers.append(_replaced(layer, parts) if act else layer)
    if len(chosen) < len(layers) and (spec.embedding.inputs, spec.sampler) != (parts.inputs, parts.sampler):
        whole = [*spec.embedding.inputs, spec.sampler, *parts.inputs, parts.sampler]
        names = ", ".join(dict.fromkeys(str(part) for part in whole if part is not None))
        raise Refused(f"{names}: what acts at the input acts for all layers at once, so leave layers= out")
    embedding = replace(spec.embedding, inputs=parts.inputs)
    return replace(spec, embedding=embedding, sampler=parts.sampler), layers


def is_position(part: Buildable) -> bool:
    """Norms and temperatures stay whatever the encoding is."""
    return type(part) not in (*QK_PARTS.classes(), *SCORE_PARTS.classes())


def _has_position(layer: Layer) -> bool:
    return any(is_position(part) for part in (*layer.qk, *filter(None, (layer.bias,))))


def _replaced(layer: Layer, parts: Parts) -> Layer:
    at = next((i for i, part in enumerate(layer.qk) if is_position(part)), len(layer.qk))
    before = [part for part in layer.qk[:at] if not is_position(part)]
    after = [part for part in layer.qk[at:] if not is_position(part)]
    bias: Buildable | None = parts.bias
    if layer.bias is not None and not is_position(layer.bias):
        if bias is not None:
            raise Refused(f"this layer's bias is {layer.bias}, which stays, and a layer has one: use another encoding")
        bias = layer.bias
    return replace(layer, qk=(*before, *parts.qk, *after), bias=bias, value_bias=parts.value_bias)


def _turned(layers: list[Layer], chosen: set[int], base: float | None, scaling: Rule | _Keep | None) -> list[Layer]:
    def change(part: Buildable) -> Buildable:
        if not isinstance(part, Rope):
            return part
        part = part if base is None else replace(part, base=base)
        return part if isinstance(scaling, _Keep) else replace(part, scaling=scaling)

    if not any(ropes_among(layers[i].qk) for i in chosen):
        raise Refused("base= and scaling= change RoPE, and no chosen layer has it: give position= instead")
    return [turned_layer(layer, change) if i in chosen else layer for i, layer in enumerate(layers)]


def turned_layer(layer: Layer, change: Callable[[Buildable], Buildable]) -> Layer:
    """With its rotation changed, and whatever goes by that."""
    bias = layer.bias.turning_with(change(layer.bias.turns_with)) if isinstance(layer.bias, TurnsWith) else layer.bias
    return replace(layer, qk=tuple(map(change, layer.qk)), bias=bias)


def _windowed(mask: Mask, window: int | None) -> Mask:
    bare = _without_window(mask)
    return bare if window is None else bare & Window(window)


def _without_window(mask: Mask) -> Mask:
    if isinstance(mask, Window):
        return Everything()
    if isinstance(mask, And):
        return _without_window(mask.a) & _without_window(mask.b)
    if isinstance(mask, Or) and any(_without_window(one) != one for one in (mask.a, mask.b)):
        raise Refused(f"{mask}: a window inside an either-or cannot be taken out; build the mask anew")
    return mask


# ---- the modules


class _Builder:
    """Builds the parts that are new, once where they are shared, and refuses weights that nobody has."""

    def __init__(self, shared: dict[Any, nn.Module], init: bool, device: torch.device, dtype: torch.dtype):
        self._shared, self._init, self._device, self._dtype = shared, init, device, dtype

    def __call__(self, part: Buildable, shape: Shape) -> Any:
        module = build_shared(part, shape, self._shared)
        named = [name for name, _ in module.named_parameters()]
        if named and not self._init:
            raise Refused(
                f"{part} has weights of its own ({', '.join(named)}), which this model lacks: "
                "pass init=True to start with untrained ones, or choose an encoding without (RoPE, ALiBi, none)"
            )
        return module.to(self._device, self._dtype)


def _share_model(new: nn.Module, old: nn.Module, spec: ModelSpec, before: ModelSpec, build: Callable[..., Any]) -> None:
    """Put the old modules where the new model has the same ones, and build what is new."""
    assert isinstance(new, Model)
    assert isinstance(old, Model)
    if new.encoder is not None and old.encoder is not None:
        assert spec.encoder is not None
        assert before.encoder is not None
        _share_model(new.encoder, old.encoder, spec.encoder, before.encoder, build)
    shape = spec.layers[0].attention.shape(spec.width)
    had = list(zip(before.embedding.inputs, old.embed.inputs, strict=True))
    inputs = [_same(part, had) or build(part, shape) for part in spec.embedding.inputs]
    _share(new.embed, old.embed, {"inputs"})
    new.embed.inputs = nn.ModuleList(inputs)
    for i, (block, other) in enumerate(zip(new.blocks, old.blocks, strict=True)):
        _share_block(block, other, spec.layers[i], before.layers[i], spec.width, build)
    _share(new, old, {"encoder", "embed", "blocks"})


def _share_block(new: nn.Module, old: nn.Module, layer: Layer, before: Layer, width: int, build: Any) -> None:
    if isinstance(new, Attention):
        _share_attention(new, old, layer, before, width, build)
        return
    inner = {name for name, child in new.named_children() if any(not m.crosses for m in attentions(child))}
    _share(new, old, inner)
    for name in inner:
        _share_block(new.get_submodule(name), old.get_submodule(name), layer, before, width, build)


def _share_attention(new: Any, old: Any, layer: Layer, before: Layer, width: int, build: Any) -> None:
    """The old weights in the new attention, but for those of its position parts, which are kept or built."""
    shape = layer.attention.shape(width)
    theirs, ours = _position_modules(old, before), _position_modules(new, layer)
    _share_weights(new, old, {id(module) for _, module in theirs})
    for part, blank in ours:
        _exchange(new, blank, _same(part, theirs) or build(part, shape))


def _position_modules(module: Any, layer: Layer) -> list[tuple[Buildable, nn.Module]]:
    """(config, module) of everything that acts for position in an attention."""
    parts = ability(module, HasPositionParts, "have its encoding exchanged").position_parts()
    configs = (*layer.qk, layer.bias, layer.value_bias)
    pairs = zip(configs, (*parts.qk, parts.bias, parts.value_bias), strict=True)
    return [(config, part) for config, part in pairs if config is not None]


def _exchange(module: nn.Module, blank: nn.Module, part: nn.Module) -> None:
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if child is blank:
                setattr(parent, name, part)


def _share_weights(new: nn.Module, old: nn.Module, apart: set[int]) -> None:
    """The old one's parameters in the new one, which keeps its own settings: its mask may be another."""
    for name, parameter in old.named_parameters(recurse=False):
        setattr(new, name, parameter)
    ours = dict(new.named_children())
    for name, child in old.named_children():
        if id(child) in apart:
            continue
        if type(child) is type(ours.get(name)):
            _share_weights(ours[name], child, apart)
        else:  # a packed map, or one with an adapter
            setattr(new, name, child)


def _same(part: Buildable, had: list[tuple[Buildable, nn.Module]]) -> nn.Module | None:
    return next((module for config, module in had if config == part), None)


def _share(new: nn.Module, old: nn.Module, but: set[str]) -> None:
    """The old one's children and parameters in the new one, those named apart."""
    for name, child in old.named_children():
        if name not in but:
            setattr(new, name, child)
    for name, parameter in old.named_parameters(recurse=False):
        setattr(new, name, parameter)
