"""``decoder``, ``encoder`` and ``encoder_decoder``: a spec from a handful of options (``vantage.spec.options``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from math import sqrt
from typing import Any, ParamSpec, TypeVar

from vantage.attention import ATTENTIONS, INDEXERS, OUTPUT_PARTS, GroupedQuery
from vantage.errors import BadInput, Refused, unknown
from vantage.model.parts import ffn_by_name, norms_by_name
from vantage.position import encoding
from vantage.spec.masks import Causal, Everything, Mask, SameSegment, Window
from vantage.spec.model import (
    POST,
    PRE,
    SANDWICH,
    AttentionConfig,
    Embedding,
    Head,
    Layer,
    ModelSpec,
    Parallel,
    Wiring,
)
from vantage.spec.options import DecoderOptions, EncoderDecoderOptions, EncoderOptions, StackOptions
from vantage.spec.registry import parameters

T = TypeVar("T")
P = ParamSpec("P")

WIRINGS: dict[str, Wiring | Parallel] = {"pre": PRE, "post": POST, "sandwich": SANDWICH, "parallel": Parallel()}


# ---- from options


def decoder_spec(vocab: int, options: DecoderOptions) -> ModelSpec:
    if options.bidirectional and options.mask is not None:
        raise BadInput("bidirectional=True removes the causal mask: give it or mask=, not both")
    usual = Everything() if options.bidirectional else Causal()
    spec = _stack(vocab, options, _whole_mask(options.mask, usual & SameSegment()), _attention(options))
    return replace(spec, layers=tuple(_around_attention(spec.layers, options)), head=Head(tied=options.tied))


def _around_attention(layers: Sequence[Layer], options: DecoderOptions) -> Iterator[Layer]:
    """The layers with what stands between attention's parts: a gate, an indexer, keys of an earlier layer."""
    output, indexer = options.output, options.indexer
    output = OUTPUT_PARTS[output].make() if isinstance(output, str) else output
    indexer = INDEXERS[indexer].make() if isinstance(indexer, str) else indexer
    for i, layer in enumerate(layers):
        first = i - i % options.kv_sharing
        yield replace(
            layer, output=() if output is None else (output,), indexer=indexer, source=None if first == i else first
        )


def encoder_spec(vocab: int, options: EncoderOptions) -> ModelSpec:
    return _stack(vocab, options, _whole_mask(options.mask, Everything() & SameSegment()), _attention(options))


def encoder_decoder_spec(vocab: int, options: EncoderDecoderOptions) -> ModelSpec:
    attention = _attention(options)
    inner = _stack(vocab, options, Everything() & SameSegment(), attention)
    spec = _stack(vocab, options, Causal() & SameSegment(), attention)
    cross = spec.layers[0].attention  # with its dropout
    return replace(
        spec,
        layers=tuple(replace(layer, cross=cross) for layer in spec.layers),
        embedding=replace(spec.embedding, shared=options.shared),
        head=Head(tied=options.tied),
        encoder=inner,
    )


def _attention(options: StackOptions) -> AttentionConfig:
    attention, plain = options.attention, options.kv_heads is None and options.bias is type(options).bias
    if not isinstance(attention, str | None):
        if options.heads is not None or not plain:
            raise BadInput("heads=, kv_heads= and bias= belong to plain attention: give them or attention=, not both")
        return attention
    if options.heads is None:
        raise BadInput("say heads=, or attention= with an attention config")
    if attention is None:
        return GroupedQuery(options.heads, options.kv_heads, bias=options.bias, out_bias=options.bias)
    if not plain:
        raise BadInput(f"kv_heads= and bias= belong to plain attention: leave them out with attention={attention!r}")
    return ATTENTIONS[attention].make(options.heads)


def _whole_mask(mask: Mask | None, usual: Mask) -> Mask:
    if mask is not None and not isinstance(mask, Mask):
        raise BadInput(f"mask={mask!r} is no mask: give an object, such as vt.Causal() & vt.Window(512)")
    return usual if mask is None else mask


def _stack(vocab: int, options: StackOptions, mask: Mask, attention: AttentionConfig) -> ModelSpec:
    width, wiring, norm, ffn = options.width, options.wiring, options.norm, options.ffn
    mask = mask if options.window is None else mask & Window(options.window)
    wiring = _pick("wiring", wiring, WIRINGS) if isinstance(wiring, str) else wiring
    norm = _pick("norm", norm, norms_by_name()) if isinstance(norm, str) else norm
    ffn = ffn_by_name(ffn, width) if isinstance(ffn, str) else ffn
    attention.shape(width)  # refuses heads that do not divide, before anything is built
    parts = encoding(options.position, max_length=options.max_length).parts(causal=mask.causal)
    layer = Layer(attention, ffn, norm, mask, parts.qk, parts.bias, parts.value_bias, wiring)
    spec = ModelSpec(
        vocab,
        width,
        (layer,) * options.layers,
        Embedding(inputs=parts.inputs, scale=sqrt(width) if parts.unit else 1.0),  # section 3.4 of the paper
        norm=norm if isinstance(wiring, Parallel) or wiring.before else None,
        sampler=parts.sampler,
        max_length=options.max_length,
    )
    return spec if not options.dropout else _with_dropout(spec, options.dropout)


def _with_dropout(spec: ModelSpec, share: float) -> ModelSpec:
    """Where the original transformer has it, and on the attention weights."""

    def dropped(layer: Layer) -> Layer:
        attention: Any = layer.attention
        if "scores" not in {f.name for f in fields(attention)}:
            raise Refused(f"{type(attention).__name__} has no weights that could be dropped: leave dropout out")
        attention = replace(attention, scores=replace(attention.scores, dropout=share))
        return replace(layer, attention=attention, dropout=share)

    return replace(
        spec,
        layers=tuple(dropped(layer) for layer in spec.layers),
        embedding=replace(spec.embedding, dropout=share),
    )


def _pick(what: str, name: str, choices: dict[str, T]) -> T:
    if name not in choices:
        raise BadInput(unknown(what, name, choices))
    return choices[name]


# ---- as functions with keywords


@dataclass(frozen=True, kw_only=True)
class _Vocabulary:
    vocab: int


@dataclass(frozen=True, kw_only=True)
class _DecoderArguments(DecoderOptions, _Vocabulary):
    pass


@dataclass(frozen=True, kw_only=True)
class _EncoderArguments(EncoderOptions, _Vocabulary):
    pass


@dataclass(frozen=True, kw_only=True)
class _EncoderDecoderArguments(EncoderDecoderOptions, _Vocabulary):
    pass


def _with_keywords(arguments: Callable[P, T]) -> Callable[[Callable[[T], ModelSpec]], Callable[P, ModelSpec]]:
    """A function of a dataclass, as one of keywords: the fields, with their defaults, and their help in its own."""

    def decorate(function: Callable[[T], ModelSpec]) -> Callable[P, ModelSpec]:
        signature = inspect.signature(arguments).replace(return_annotation="ModelSpec")

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> ModelSpec:
            signature.bind(*args, **kwargs)  # a missing keyword is refused by its name alone
            return function(arguments(*args, **kwargs))

        call.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue] (what inspect and help show)
        help = {name: info.help for name, info in parameters(arguments).items()}  # pyright: ignore[reportArgumentType] (it is a class)
        lines = "".join(f"\n    {name}: {text}" for name, text in help.items())
        call.__doc__ = f"{function.__doc__}\n{lines}\n"
        return call

    return decorate


@_with_keywords(_DecoderArguments)
def decoder(arguments: _DecoderArguments) -> ModelSpec:
    """A decoder-only transformer."""
    return decoder_spec(arguments.vocab, arguments)


@_with_keywords(_EncoderArguments)
def encoder(arguments: _EncoderArguments) -> ModelSpec:
    """An encoder: the same blocks without the causal mask. It returns hidden states."""
    return encoder_spec(arguments.vocab, arguments)


@_with_keywords(_EncoderDecoderArguments)
def encoder_decoder(arguments: _EncoderDecoderArguments) -> ModelSpec:
    """The original transformer: an encoder, and a decoder that also attends to the encoder's output."""
    return encoder_decoder_spec(arguments.vocab, arguments)
