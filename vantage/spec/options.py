"""What can be said of a decoder, an encoder and an encoder-decoder, once for all who ask.

``vt.decoder`` and its like take these as keywords, ``[model]`` of the training settings as keys, and the studio's form
as fields. A new option is one field here.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any

from vantage.errors import BadInput
from vantage.spec.masks import Mask
from vantage.spec.model import AttentionConfig, FeedForwardConfig, NormConfig, Parallel, Wiring
from vantage.spec.parts import Buildable, Encoding
from vantage.spec.registry import parameter, parameters

LONGEST = 2**20  # tokens that a form may ask for


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """A stack of blocks. The kinds of model differ in a few options of their own, and in some defaults."""

    width: int = field(metadata=parameter("width of the model", 1, 32_768))
    layers: int = field(metadata=parameter("blocks of a stack", 1, 128))
    heads: int | None = field(default=None, metadata=parameter("query heads", 1, 512))
    kv_heads: int | None = field(default=None, metadata=parameter("key/value heads; none: as many as heads", 1, 512))
    position: str | Encoding = field(
        default="rope", metadata=parameter("position encoding, by name or as an object; it is put where it acts")
    )
    window: int | None = field(default=None, metadata=parameter("keys that a token sees at most", 1, LONGEST))
    max_length: int | None = field(default=None, metadata=parameter("the longest text", 1, LONGEST))
    ffn: str | FeedForwardConfig = field(
        default="swiglu", metadata=parameter("feed-forward layer, by name or as an object")
    )
    norm: str | NormConfig = field(default="rms", metadata=parameter("norm, by name or as an object"))
    wiring: str | Wiring | Parallel = field(default="pre", metadata=parameter("position of the norms"))
    attention: str | AttentionConfig | None = field(
        default=None,
        metadata=parameter("by name, or a config in the place of heads, kv_heads and bias"),
    )
    bias: bool = field(default=False, metadata=parameter("biases in the linear maps of attention"))
    dropout: float = field(
        default=0.0,
        metadata=parameter("share dropped in training: embeddings, attention weights, what a sublayer adds", 0.0, 0.95),
    )

    def __post_init__(self) -> None:
        for name, info in parameters(type(self)).items():
            value = getattr(self, name)
            if info.low is not None and value is not None and value < info.low:
                raise BadInput(f"{name}={value}: give at least {info.low:g}")


@dataclass(frozen=True, kw_only=True)
class DecoderOptions(StackOptions):
    """A decoder-only transformer."""

    mask: Mask | None = field(default=None, metadata=parameter("in the place of the causal mask; window narrows it"))
    tied: bool = field(default=False, metadata=parameter("the head is the table of embeddings"))
    bidirectional: bool = field(default=False, metadata=parameter("no causal mask: a control, not a language model"))
    output: str | Buildable | None = field(
        default=None, metadata=parameter("what acts on a head's output before the output map, by name or as an object")
    )
    indexer: str | Buildable | None = field(
        default=None, metadata=parameter("what selects the keys of a query, by name or as an object")
    )
    kv_sharing: int = field(
        default=1, metadata=parameter("layers in a row that share the keys and values of the first of them", 1, 128)
    )


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(StackOptions):
    """The same blocks without the causal mask."""

    mask: Mask | None = field(default=None, metadata=parameter("who may see whom; none: all of a document"))


def changed(name: str, default: Any) -> Any:
    """An option with another default."""
    options: dict[str, Field[Any]] = {f.name: f for f in fields(StackOptions)}
    return field(default=default, metadata=options[name].metadata)


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderOptions(StackOptions):
    """An encoder, and a decoder that also attends to its output; by default the original transformer."""

    position: str | Encoding = changed("position", "sinusoidal")
    ffn: str | FeedForwardConfig = changed("ffn", "relu")
    norm: str | NormConfig = changed("norm", "layer")
    wiring: str | Wiring | Parallel = changed("wiring", "post")
    bias: bool = changed("bias", True)
    tied: bool = field(default=False, metadata=parameter("the head is the table of embeddings"))
    shared: bool = field(default=False, metadata=parameter("one table of embeddings for both ends"))
