"""What a model is, as nested frozen data. Building it is the business of ``vantage.model``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from torch import nn

from vantage.errors import BadInput, Refused
from vantage.spec.abilities import Bounded, LengthDependent, TurnsWith, effect_of
from vantage.spec.altup import AltUp
from vantage.spec.fingerprint import LATER
from vantage.spec.images import VisionConfig
from vantage.spec.indexing import FollowsLayer, Indexer
from vantage.spec.kept import KeepsStreams, KeptStream, MixesValues, NeedsEveryKey, PoolsKeys, ReadsBefore, StateShape
from vantage.spec.masks import Causal, Mask, SameSegment
from vantage.spec.normalisers import Normaliser, Softmax
from vantage.spec.parts import Buildable, OutputTransform, Sampler, ScoreBias, Shape
from vantage.spec.parts import ValueBias as ValueBiasPart
from vantage.spec.transforms import QKTransform, WidensKeys


class NormConfig(Protocol):
    """RMSNorm, LayerNorm."""

    def build(self, width: int) -> nn.Module: ...


class FeedForwardConfig(Protocol):
    """A dense feed-forward layer or a mixture of experts."""

    def build(self, width: int) -> nn.Module: ...


class InputConfig(Protocol):
    """What is embedded instead of token ids: patches of an image."""

    def build(self, width: int) -> nn.Module: ...


class TransformConfig(Protocol):
    """From hidden states to what a head reads: a masked-LM transform, the first token, a pooler."""

    def build(self, width: int, out: int) -> nn.Module: ...


@dataclass(frozen=True)
class Scores:
    """How scores become weights, apart from position: the fixed order is in ``Need``."""

    scale: float | None = None  # None: 1 / sqrt(key_dim)
    softcap: float | None = None
    sinks: bool = False
    normalise: Normaliser = Softmax()
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.softcap is not None and self.softcap <= 0:
            raise BadInput(f"softcap={self.softcap}: use a positive number, or None for no cap")
        if not 0.0 <= self.dropout < 1.0:
            raise BadInput(f"dropout={self.dropout}: use a share from 0 up to, not including, 1")

    def describe(self) -> tuple[str, ...]:
        """What is special about them, in a few words."""
        softcap = () if self.softcap is None else (f"softcap {self.softcap:g}",)
        return (*softcap, *(("sinks",) if self.sinks else ()))


@dataclass(frozen=True)
class CacheShape:
    """What a layer keeps for each token: the shape of its cache."""

    kv_heads: int
    key_dim: int
    value_dim: int
    single: bool = False  # one stream: the value is the front of the key (MLA)
    streams: tuple[KeptStream, ...] = ()  # what else is kept of each token
    states: tuple[StateShape, ...] = ()  # of constant size, whatever the length
    every_key: bool = False  # it must see every key before a query that its mask shows (CoPE, an indexer)
    before: int = 0  # tokens before the oldest key in a query's sight of which it reads the streams (PaTH)

    @staticmethod
    def of_states(*states: StateShape) -> CacheShape:
        """Of a layer that keeps nothing of each token."""
        return CacheShape(0, 0, 0, states=states)


@dataclass
class BuildContext:
    """What an attention module is given when it is built."""

    index: int
    mask: Mask
    qk: tuple[QKTransform, ...]
    bias: ScoreBias
    value_bias: ValueBiasPart | None
    linear: Callable[[int, int, bool], nn.Module]  # a dense map from its inputs, outputs and bias
    output: tuple[OutputTransform, ...] = ()
    source: int | None = None  # the layer whose keys and values it reads; None: it has its own
    shared: bool = False  # a later layer reads its keys and values
    indexer: Indexer | None = None


class AttentionConfig(Protocol):
    """Grouped-query (MHA, MQA, GQA), latent (MLA)."""

    def shape(self, width: int) -> Shape: ...
    def cache_shape(self, width: int) -> CacheShape: ...
    def build(self, width: int, context: BuildContext) -> nn.Module: ...
    def build_cross(self, width: int, context: BuildContext) -> nn.Module: ...


@dataclass(frozen=True)
class Wiring:
    """Where norms stand around a sublayer f: ``outer(kept · x + after(f(before(x))))``."""

    before: bool = True
    after: bool = False
    outer: bool = False
    normed: bool = False  # before(x) takes the place of x in the sum as well (an option of BLOOM)
    kept: float = field(default=1.0, metadata=LATER)  # what x is multiplied by in the sum (MiniMax)


PRE = Wiring()
POST = Wiring(before=False, outer=True)
SANDWICH = Wiring(after=True)


@dataclass(frozen=True)
class Parallel:
    """Attention and feed-forward read the same input side by side (PaLM); ``norms`` is 1 or 2 (GPT-NeoX)."""

    norms: int = 1


@dataclass(frozen=True)
class Layer:
    """One block."""

    attention: AttentionConfig
    ffn: FeedForwardConfig
    norm: NormConfig
    mask: Mask = field(default_factory=lambda: Causal() & SameSegment())
    qk: tuple[Buildable, ...] = ()
    bias: Buildable | None = None
    value_bias: Buildable | None = None
    wiring: Wiring | Parallel = PRE
    cross: AttentionConfig | None = None
    dropout: float = 0.0
    output: tuple[Buildable, ...] = field(default=(), metadata=LATER)  # between the kernel and the output map: a gate
    source: int | None = field(default=None, metadata=LATER)  # whose keys and values it reads; None: it makes its own
    indexer: Buildable | None = field(default=None, metadata=LATER)  # chooses the keys that a query attends to

    def __post_init__(self) -> None:
        if isinstance(self.bias, TurnsWith):
            self._check_turned(self.bias.turns_with)
        if isinstance(self.attention, PoolsKeys) and isinstance(self.bias, NeedsEveryKey) and self.bias.every_key:
            raise Refused(
                f"{type(self.bias).__name__} looks at every token between key and query, and in "
                f"{type(self.attention).__name__} windows of keys stand in their place: use another encoding here"
            )

        for part in self.qk if isinstance(self.attention, PoolsKeys) else ():
            if isinstance(part, WidensKeys):
                raise Refused(
                    f"{type(part).__name__} widens keys when they are read, and in {type(self.attention).__name__} "
                    "windows of keys stand in their place: use another encoding here"
                )

    def _check_turned(self, rotation: Buildable) -> None:
        """Whether the bias can turn queries and keys on: nothing but a factor may stand behind their rotation."""
        if rotation not in self.qk:
            raise BadInput(f"{self.bias} moves what {rotation} has turned, and the layer's qk is {self.qk}: add it")
        for part in self.qk[self.qk.index(rotation) + 1 :]:
            if not effect_of(part).linear:
                raise BadInput(f"{self.bias} moves what {rotation} has turned: {part} cannot stand behind that")

    def cache_shape(self, width: int) -> CacheShape | None:
        """What it keeps of each token; ``None``: nothing, it reads another layer's."""
        if self.source is not None:
            return None
        kept = self.attention.cache_shape(width)
        for part in (self.indexer, self.bias):  # in this order
            if part is None:
                continue  # asking what it conforms to would take longer than all the rest
            if isinstance(part, NeedsEveryKey):
                kept = replace(kept, every_key=kept.every_key or part.every_key)
            if isinstance(part, ReadsBefore):
                kept = replace(kept, before=max(kept.before, part.before))
            if isinstance(part, KeepsStreams):
                kept = replace(kept, streams=(*kept.streams, *part.streams(self.attention.shape(width))))
        return kept


@dataclass(frozen=True)
class Embedding:
    """From token ids to vectors."""

    inputs: tuple[Buildable, ...] = ()  # positions: added in this order
    scale: float = 1.0
    norm: NormConfig | None = None
    dropout: float = 0.0
    types: int = 0  # token types (BERT's sentence A and B), added before the positions
    width: int | None = None  # of the table, if a linear map takes it to the model's width (RoFormer)
    source: InputConfig | None = None  # None: a table of token ids
    shared: bool = False  # the encoder's table is the decoder's (T5)
    rounded: bool = False  # the scale is first rounded to the weights' dtype (Gemma)


@dataclass(frozen=True)
class Head:
    """From vectors to logits."""

    tied: bool = False
    bias: bool = False
    scale: float = 1.0
    softcap: float | None = None
    transform: TransformConfig | None = None  # before the linear map
    width: int | None = None  # of what the transform makes; None: the model's


ModelKind = Literal["decoder", "encoder", "encoder-decoder"]


@dataclass(frozen=True)
class ModelSpec:
    """A whole model. ``head=None``: it returns hidden states (an encoder)."""

    vocab: int
    width: int
    layers: tuple[Layer, ...]
    embedding: Embedding = Embedding()
    norm: NormConfig | None = None
    head: Head | None = None
    sampler: Sampler | None = None
    max_length: int | None = None
    encoder: ModelSpec | None = None
    pooler: TransformConfig | None = None  # model.pooler: one vector a row; no part of a forward pass
    altup: AltUp | None = field(default=None, metadata=LATER)  # several residual streams (Gemma 3n)
    vision: VisionConfig | None = field(default=None, metadata=LATER)  # what makes tokens of images (Qwen2-VL)

    def __post_init__(self) -> None:
        for name, n in (("vocab", self.vocab), ("width", self.width), ("layers", len(self.layers))):
            if n < 1:
                raise BadInput(f"{name}={n}: a model needs at least 1")
        if self.embedding.shared and (self.encoder is None or self.encoder.vocab != self.vocab):
            raise BadInput("embedding.shared needs an encoder with the decoder's vocabulary")
        if self.altup is not None and (self.embedding.source is not None or self.norm is None):
            raise BadInput("AltUp begins with tokens and ends with a norm: leave embedding.source out and give norm=")
        for i, layer in enumerate(self.layers):
            if layer.source is not None:
                self._check_source(i, layer, layer.source)
            if isinstance(layer.indexer, FollowsLayer):
                self._check_indexer(i, layer, layer.indexer.layer)
            if isinstance(layer.attention, MixesValues):
                self._check_values(i, layer, layer.attention.values_of)

    def _check_source(self, i: int, layer: Layer, source: int) -> None:
        """Whether layer i can read the keys and values of that layer."""
        if not 0 <= source < i:
            raise BadInput(f"layer {i} reads the keys of layer {source}: give an earlier layer, from 0 to {i - 1}")
        other = self.layers[source]
        if other.source is not None:
            raise BadInput(f"layer {i} reads the keys of layer {source}, which has none: give {other.source} instead")
        if layer.attention.cache_shape(self.width) != other.attention.cache_shape(self.width):
            raise BadInput(f"layer {i} cannot read the keys of layer {source}: their heads differ")
        mine, theirs = layer.mask.reach(), other.mask.reach()
        if theirs is not None and (mine is None or mine > theirs):
            raise BadInput(f"layer {i} sees further than layer {source}, whose keys it reads: give it a window")
        for what, part in (("bias", layer.bias), ("indexer", layer.indexer)):
            if isinstance(part, KeepsStreams):
                raise BadInput(
                    f"layer {i} reads the keys of layer {source} and keeps nothing: its {what} cannot either"
                )

    def _check_indexer(self, i: int, layer: Layer, other: int) -> None:
        """Whether layer i can attend to what that layer has chosen."""
        if not 0 <= other < i:
            raise BadInput(f"layer {i} follows the indexer of layer {other}: give an earlier layer, from 0 to {i - 1}")
        indexer = self.layers[other].indexer
        if indexer is None or isinstance(indexer, FollowsLayer):
            raise BadInput(f"layer {i} follows the indexer of layer {other}, which has none of its own")
        if layer.mask != self.layers[other].mask:
            raise BadInput(f"layer {i} follows the indexer of layer {other}, which sees other keys: give both one mask")

    def _check_values(self, i: int, layer: Layer, first: int) -> None:
        """Whether layer i can mix its values with those of that layer."""
        if first > i:
            raise BadInput(f"layer {i} mixes its values with those of layer {first}: give an earlier one, or itself")
        other = self.layers[first].attention
        if not isinstance(other, MixesValues) or other.values_of != first:
            who = type(layer.attention).__name__
            raise BadInput(
                f"layer {i} mixes its values with those of layer {first}, which gives none: put a {who} with "
                f"values_of={first} there"
            )
        mine, theirs = layer.attention.cache_shape(self.width), other.cache_shape(self.width)
        if (mine.kv_heads, mine.value_dim) != (theirs.kv_heads, theirs.value_dim):
            raise BadInput(f"layer {i} cannot mix its values with those of layer {first}: their heads differ")

    @property
    def residual_width(self) -> int:
        """Of what goes from layer to layer: the width, or that of all streams."""
        return self.width if self.altup is None else self.altup.width(self.width, len(self.layers))

    @property
    def keeps_states(self) -> bool:
        """Whether some layer keeps a state, which can be taken back only as far as it is asked to."""
        return any(shape.states for shape, _ in self.caches)

    @property
    def caches(self) -> tuple[tuple[CacheShape, Mask], ...]:
        """What the layers keep of each token, and what they see of it. Those that read another's are left out."""
        kept = ((layer.cache_shape(self.width), layer.mask) for layer in self.layers)
        return tuple((shape, mask) for shape, mask in kept if shape is not None)

    # ---- what everybody asks of a model

    @property
    def kind(self) -> ModelKind:
        """A decoder generates from its own output; an encoder returns states, or fills in what is hidden."""
        if self.encoder is not None:
            return "encoder-decoder"
        return "decoder" if self.generates else "encoder"

    @property
    def causal(self) -> bool:
        """Whether no token sees a later one. A prefix model is not causal, and generates all the same."""
        return all(layer.mask.causal for layer in self.layers)

    @property
    def generates(self) -> bool:
        """Whether it can go on from its own output."""
        return self.why_no_generation is None

    @property
    def why_no_generation(self) -> str | None:
        """What stands in the way of generating; ``None``: nothing."""
        if self.head is None:
            return "this model has no head: it returns hidden states, and no tokens can be chosen from those"
        if self.embedding.source is not None:
            return f"this model reads {self.embedding.source}, not tokens: it cannot generate"
        for i, layer in enumerate(self.layers):
            if not layer.mask.extendable:
                return (
                    f"layer {i} sees what comes after ({layer.mask}): every new token would change the earlier ones. "
                    "An encoder cannot generate; use a decoder"
                )
        return None

    @property
    def max_positions(self) -> int | None:
        """How many positions there are at all, where a table ends; ``None``: no end."""
        ends = (part.max_positions for part in self.embedding.inputs if isinstance(part, Bounded))
        return min((n for n in ends if n is not None), default=None)

    @property
    def context_length(self) -> int | None:
        """The longest text it was made for; ``None``: it does not say."""
        return min((n for n in (self.max_length, self.max_positions) if n is not None), default=None)

    @property
    def original_length(self) -> int | None:
        """The shortest length at which some layer's rule would change; ``None``: none ever does."""
        parts = (part for layer in self.layers for part in layer.qk)
        lengths = (part.original_length for part in parts if isinstance(part, LengthDependent))
        return min((n for n in lengths if n is not None), default=None)
