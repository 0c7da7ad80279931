"""``decoder``, ``encoder`` and ``encoder_decoder``: a spec from a handful of names."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import TypeVar

from vantage.attention import GroupedQuery
from vantage.errors import BadInput, unknown
from vantage.model.feed_forward import named as named_ffn
from vantage.model.norms import NORMS
from vantage.position import encoding
from vantage.spec.masks import Causal, Everything, Mask, SameSegment, Window
from vantage.spec.model import (
    POST,
    PRE,
    SANDWICH,
    AttentionConfig,
    Embedding,
    FeedForwardConfig,
    Head,
    Layer,
    ModelSpec,
    NormConfig,
    Parallel,
    Wiring,
)
from vantage.spec.parts import Encoding

T = TypeVar("T")

WIRINGS: dict[str, Wiring | Parallel] = {"pre": PRE, "post": POST, "sandwich": SANDWICH, "parallel": Parallel()}


def decoder(
    *,
    vocab: int,
    width: int,
    layers: int,
    heads: int | None = None,
    kv_heads: int | None = None,
    position: str | Encoding = "rope",
    window: int | None = None,
    max_length: int | None = None,
    ffn: str | FeedForwardConfig = "swiglu",
    norm: str | NormConfig = "rms",
    wiring: str | Wiring | Parallel = "pre",
    attention: AttentionConfig | None = None,
    mask: Mask | None = None,
    tied: bool = False,
) -> ModelSpec:
    """A decoder-only transformer.

    ``position`` is a name or an encoding; it is put where it acts. ``attention`` replaces
    ``heads`` and ``kv_heads`` (latent attention, softcap, sinks, …). ``mask`` replaces the
    causal mask; ``window`` narrows whichever there is.
    """
    if attention is None:
        if heads is None:
            raise BadInput("say heads=, or attention= with an attention config")
        attention = GroupedQuery(heads, kv_heads)
    elif heads is not None or kv_heads is not None:
        raise BadInput("heads= and kv_heads= belong to grouped-query attention: give them or attention=, not both")
    mask = Causal() & SameSegment() if mask is None else mask
    mask = mask if window is None else mask & Window(window)
    wiring = _pick("wiring", wiring, WIRINGS) if isinstance(wiring, str) else wiring
    norm = _pick("norm", norm, NORMS) if isinstance(norm, str) else norm
    ffn = named_ffn(ffn, width) if isinstance(ffn, str) else ffn
    attention.shape(width)  # refuses heads that do not divide, before anything is built
    parts = encoding(position, max_length=max_length).parts(causal=mask.causal)
    layer = Layer(attention, ffn, norm, mask, parts.qk, parts.bias, parts.value_bias, wiring)
    return ModelSpec(
        vocab,
        width,
        (layer,) * layers,
        Embedding(inputs=parts.inputs, scale=sqrt(width) if parts.unit else 1.0),  # section 3.4 of the paper
        norm=norm if isinstance(wiring, Parallel) or wiring.before else None,
        head=Head(tied=tied),
        sampler=parts.sampler,
        max_length=max_length,
    )


def encoder(
    *,
    vocab: int,
    width: int,
    layers: int,
    heads: int | None = None,
    kv_heads: int | None = None,
    position: str | Encoding = "rope",
    window: int | None = None,
    max_length: int | None = None,
    ffn: str | FeedForwardConfig = "swiglu",
    norm: str | NormConfig = "rms",
    wiring: str | Wiring | Parallel = "pre",
    attention: AttentionConfig | None = None,
    mask: Mask | None = None,
) -> ModelSpec:
    """An encoder: the same blocks without the causal mask. It returns hidden states."""
    spec = decoder(
        vocab=vocab,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        position=position,
        window=window,
        max_length=max_length,
        ffn=ffn,
        norm=norm,
        wiring=wiring,
        attention=attention,
        mask=Everything() & SameSegment() if mask is None else mask,
    )
    return replace(spec, head=None)


def encoder_decoder(
    *,
    vocab: int,
    width: int,
    layers: int,
    heads: int,
    kv_heads: int | None = None,
    position: str | Encoding = "sinusoidal",
    window: int | None = None,
    max_length: int | None = None,
    ffn: str | FeedForwardConfig = "relu",
    norm: str | NormConfig = "layer",
    wiring: str | Wiring | Parallel = "post",
    bias: bool = True,
    tied: bool = False,
) -> ModelSpec:
    """The original transformer: an encoder, and a decoder that also attends to the encoder's output."""
    attention = GroupedQuery(heads, kv_heads, bias=bias, out_bias=bias)
    enc = encoder(
        vocab=vocab,
        width=width,
        layers=layers,
        attention=attention,
        position=position,
        window=window,
        max_length=max_length,
        ffn=ffn,
        norm=norm,
        wiring=wiring,
    )
    dec = decoder(
        vocab=vocab,
        width=width,
        layers=layers,
        attention=attention,
        position=position,
        window=window,
        max_length=max_length,
        ffn=ffn,
        norm=norm,
        wiring=wiring,
        tied=tied,
    )
    crossed = tuple(replace(layer, cross=attention) for layer in dec.layers)
    return replace(dec, layers=crossed, encoder=enc)


def _pick(what: str, name: str, choices: dict[str, T]) -> T:
    if name not in choices:
        raise BadInput(unknown(what, name, choices))
    return choices[name]
