"""The activations of a model by name: where each one stands, and what its dimensions are.

embedding                     (rows, tokens, width)
layers.N.residual_before      the residual stream as it enters block N
layers.N.q, .k, .v            (rows, tokens, heads, numbers): projected, before anything knows a position
layers.N.latent               (rows, tokens, numbers): latent attention, in the place of k and v
layers.N.kv                   (rows, tokens, 1, numbers): where a key is its own value (HCA, CSA)
layers.N.scores, .weights     (rows, heads, queries, keys): before and after the softmax, keys by their order (not where
                              windows of keys stand beside tokens: HCA, CSA)
layers.N.heads                (rows, tokens, heads, numbers): what each head gives to the output map
layers.N.attention            what the attention adds to the residual stream
layers.N.cross.…              the same six of an encoder-decoder's cross-attention
layers.N.residual_mid         the residual stream before the feed-forward layer (not where the two run side by side)
layers.N.neurons              (rows, tokens, neurons): what goes into the feed-forward layer's last map
layers.N.feed_forward         what the feed-forward layer adds to the residual stream
layers.N.residual_after       the residual stream as it leaves block N
hidden, logits                after the last norm, after the head
encoder.…                     all of these of an encoder-decoder's encoder
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, final

from torch import nn

from vantage.errors import BadInput, unknown
from vantage.inspect.select import need_model
from vantage.model import Model
from vantage.model.altup import AltUpBlock
from vantage.model.block import Chain, Side
from vantage.spec.attention import ActivationColumns, Attention, HasActivations, MakesKeys
from vantage.spec.parts import Context

Access = Literal["given", "returned", "scores", "weights"]
TOKENS = ("row", "token", "number")
HEADS = ("row", "token", "head", "number")
PAIRS = ("row", "head", "token", "key")


@final
@dataclass(frozen=True, eq=False)
class Activation:
    """One tensor that passes through a model."""

    name: str
    module: Any  # which is given or returns it, or whose kernel makes it
    access: Access
    dims: tuple[str, ...]
    model: Model  # the decoder or the encoder: whose tokens the "token" dimension counts
    heads: int = 0
    columns: ActivationColumns | None = None  # of the last dimension that are meant; None: all
    source: bool = False  # its tokens are those of the encoder's output (keys and values of cross-attention)

    @property
    def from_kernel(self) -> bool:
        return self.access in ("scores", "weights")


def activations(model: Model) -> dict[str, Activation]:
    """Every activation that can be read and replaced, by its name, in the order in which a pass makes them."""
    need_model(model)
    encoder = [] if model.encoder is None else activations(model.encoder).values()
    own = [replace(activation, name=f"encoder.{activation.name}") for activation in encoder]
    own += [Activation("embedding", model.embed, "returned", TOKENS, model)]
    for i, block in enumerate(model.blocks):
        own += _of_block(model, f"layers.{i}.", block)
    own.append(Activation("hidden", model.norm, "returned", TOKENS, model))
    if model.spec.head is not None:
        own.append(Activation("logits", model.head, "returned", TOKENS, model))
    return {activation.name: activation for activation in own}


def chosen(model: Model, names: str | Iterable[str]) -> dict[str, Activation]:
    """The activations of these names; ``*`` stands for the number of any layer."""
    known, wanted = activations(model), dict[str, Activation]()
    for name in [names] if isinstance(names, str) else names:
        pattern = re.escape(str(name)).replace(r"\*", r"\d+")
        matching = {one: known[one] for one in known if re.fullmatch(pattern, one)}
        if not matching:
            raise BadInput(unknown("activation", name, _shortened(known)))
        wanted |= matching
    return {name: known[name] for name in known if name in wanted}


def _shortened(names: Iterable[str]) -> list[str]:
    """Equal names of all layers as one."""
    return list(dict.fromkeys(re.sub(r"layers\.\d+", "layers.*", name) for name in names))


def _of_block(model: Model, prefix: str, block: nn.Module) -> Iterator[Activation]:
    at = partial(Activation, model=model)
    yield at(f"{prefix}residual_before", block, "given", TOKENS)
    if isinstance(block, Chain | AltUpBlock):
        steps: list[Any] = list(block.steps)
        for step in steps[:-1]:
            yield from _of_attention(model, prefix, step.sublayer, step.after)
        yield at(f"{prefix}residual_mid", steps[-1], "given", TOKENS)
        yield from _of_feed_forward(model, prefix, steps[-1].sublayer, steps[-1].after)
    elif isinstance(block, Side):
        sublayers: list[Any] = list(block.sublayers)
        for sublayer in sublayers[:-1]:
            yield from _of_attention(model, prefix, sublayer, sublayer)
        yield from _of_feed_forward(model, prefix, sublayers[-1], sublayers[-1])
    yield at(f"{prefix}residual_after", block, "returned", TOKENS)


def _of_attention(model: Model, prefix: str, module: Any, added: nn.Module) -> Iterator[Activation]:
    crosses = bool(getattr(module, "crosses", False))
    prefix = f"{prefix}cross." if crosses else prefix
    inside = _inside(model, prefix, module, crosses)
    heads = inside.pop("heads", None)
    yield from inside.values()
    if isinstance(module, Attention) and not isinstance(module, MakesKeys):
        for access in ("scores", "weights"):
            yield Activation(f"{prefix}{access}", module, access, PAIRS, model, module.shape.heads)
    if heads is not None:
        yield heads
    yield Activation(f"{prefix}attention", added, "returned", TOKENS, model)


def _of_feed_forward(model: Model, prefix: str, module: Any, added: nn.Module) -> Iterator[Activation]:
    yield from _inside(model, prefix, module, False).values()
    yield Activation(f"{prefix}feed_forward", added, "returned", TOKENS, model)


def _inside(model: Model, prefix: str, module: Any, crosses: bool) -> dict[str, Activation]:
    """What a module says that it has inside."""
    if not isinstance(module, HasActivations):
        return {}
    return {
        name: Activation(
            f"{prefix}{name}",
            getattr(module, columns.child),
            "given" if columns.given else "returned",
            HEADS if columns.heads else TOKENS,
            model,
            columns.heads,
            columns,
            source=crosses and name in ("k", "v"),
        )
        for name, columns in module.activations().items()
    }


def context_of(args: tuple[Any, ...]) -> Context:
    """Of a block that is called."""
    return args[1]
