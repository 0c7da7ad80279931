"""The ``[model]`` section: which model to train. The names are those of ``vt.decoder`` and its like."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch

from vantage.checkpoints.pull import find
from vantage.errors import BadInput, VantageError
from vantage.families import family_of, load, opened
from vantage.model import Model, build, decoder, encoder, encoder_decoder
from vantage.model.lora import Lora, add_lora
from vantage.model.recurrent import RecurrentSpec, build_recurrent
from vantage.spec.masks import Everything, SameSegment
from vantage.spec.model import AttentionConfig, FeedForwardConfig, Head, Layer, ModelSpec, NormConfig
from vantage.spec.parts import Encoding
from vantage.training.checks import at_least_one
from vantage.training.learners import Classifier, Learner, PairLearner, RecurrentLearner, TokenLearner
from vantage.training.sequences import Reads


@dataclass(frozen=True)
class Asked:
    """What the data say of the model that is to read them."""

    vocab: int
    seed: int
    classes: int = 0


class ModelSection(Protocol):
    """One way to come by a model."""

    @property
    def reads(self) -> Reads:
        """How an example is put before it."""
        ...

    def check(self, asked: Asked) -> None:
        """Refuse now what could not be built, before anything is allocated."""
        ...

    def learner(self, asked: Asked) -> Learner:
        """The model, inside the module that trains it."""
        ...


@dataclass(frozen=True)
class Decoder:
    """A decoder-only transformer. ``bidirectional`` takes its causal mask away (a control, not a language model)."""

    width: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int | None = None
    position: str | Encoding = "rope"
    window: int | None = None
    max_length: int | None = None
    ffn: str | FeedForwardConfig = "swiglu"
    norm: str | NormConfig = "rms"
    wiring: str = "pre"
    attention: AttentionConfig | None = None
    tied: bool = False
    dropout: float = 0.0
    bidirectional: bool = False

    def __post_init__(self) -> None:
        at_least_one(self, "width", "layers", "heads", "kv_heads", "max_length")

    @property
    def reads(self) -> Reads:
        return "ask" if self.bidirectional else "line"

    def spec(self, vocab: int) -> ModelSpec:
        spec = decoder(
            vocab=vocab,
            width=self.width,
            layers=self.layers,
            heads=self.heads if self.attention is None else None,
            kv_heads=self.kv_heads,
            position=self.position,
            window=self.window,
            max_length=self.max_length,
            ffn=self.ffn,
            norm=self.norm,
            wiring=self.wiring,
            attention=self.attention,
            mask=Everything() & SameSegment() if self.bidirectional else None,
            tied=self.tied,
        )
        return with_dropout(spec, self.dropout)

    def check(self, asked: Asked) -> None:
        self.spec(asked.vocab)

    def learner(self, asked: Asked) -> Learner:
        return _learner_of(build(self.spec(asked.vocab), seed=asked.seed), asked, "last")


@dataclass(frozen=True)
class Encoder:
    """An encoder: a classifier where the data have labels, otherwise with a head that says hidden tokens."""

    width: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int | None = None
    position: str | Encoding = "rope"
    window: int | None = None
    max_length: int | None = None
    ffn: str | FeedForwardConfig = "swiglu"
    norm: str | NormConfig = "rms"
    wiring: str = "pre"
    pool: Literal["mean", "first", "last"] = "mean"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        at_least_one(self, "width", "layers", "heads", "kv_heads", "max_length")

    @property
    def reads(self) -> Reads:
        return "label"

    def spec(self, asked: Asked) -> ModelSpec:
        spec = encoder(
            vocab=asked.vocab,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            position=self.position,
            window=self.window,
            max_length=self.max_length,
            ffn=self.ffn,
            norm=self.norm,
            wiring=self.wiring,
        )
        return with_dropout(spec if asked.classes else replace(spec, head=Head(tied=True)), self.dropout)

    def check(self, asked: Asked) -> None:
        self.spec(asked)

    def learner(self, asked: Asked) -> Learner:
        model = build(self.spec(asked), seed=asked.seed)
        return Classifier(model, asked.classes, self.pool, asked.seed) if asked.classes else TokenLearner(model)


@dataclass(frozen=True)
class EncoderDecoder:
    """An encoder-decoder, by default the original one."""

    width: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int | None = None
    position: str | Encoding = "sinusoidal"
    max_length: int | None = None
    ffn: str | FeedForwardConfig = "relu"
    norm: str | NormConfig = "layer"
    wiring: str = "post"
    tied: bool = True
    shared: bool = True  # one table of embeddings for both ends
    dropout: float = 0.0

    def __post_init__(self) -> None:
        at_least_one(self, "width", "layers", "heads", "kv_heads", "max_length")

    @property
    def reads(self) -> Reads:
        return "pair"

    def spec(self, vocab: int) -> ModelSpec:
        spec = encoder_decoder(
            vocab=vocab,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            position=self.position,
            max_length=self.max_length,
            ffn=self.ffn,
            norm=self.norm,
            wiring=self.wiring,
            tied=self.tied,
        )
        return with_dropout(replace(spec, embedding=replace(spec.embedding, shared=self.shared)), self.dropout)

    def check(self, asked: Asked) -> None:
        self.spec(asked.vocab)

    def learner(self, asked: Asked) -> Learner:
        return PairLearner(build(self.spec(asked.vocab), seed=asked.seed))


@dataclass(frozen=True)
class Recurrent:
    """An RNN, GRU or LSTM encoder-decoder, with or without attention."""

    width: int = 128
    cell: str = "gru"
    layers: int = 1
    attention: str | None = None
    bidirectional: bool = False
    dropout: float = 0.0
    feed: str | None = None

    @property
    def reads(self) -> Reads:
        return "pair"

    def spec(self, vocab: int) -> RecurrentSpec:
        return RecurrentSpec(
            vocab, self.width, self.cell, self.layers, self.attention, self.bidirectional, self.dropout, self.feed
        )

    def check(self, asked: Asked) -> None:
        self.spec(asked.vocab)

    def learner(self, asked: Asked) -> Learner:
        return RecurrentLearner(build_recurrent(self.spec(asked.vocab), seed=asked.seed))


@dataclass(frozen=True)
class Loaded:
    """A checkpoint to go on from: a folder, a GGUF file or a name that ``vantage pull`` knows. ``lora`` adapts it."""

    source: str
    lora: Lora | None = None
    pool: Literal["mean", "first", "last"] = "last"

    @property
    def reads(self) -> Reads:
        return "own"

    def check(self, asked: Asked) -> None:
        """Only the names and sizes are looked at: the weights can wait."""
        try:
            family_of(opened(find(self.source), torch.float32).config)
        except VantageError as e:
            raise BadInput(f"model.source: {e}") from e

    def learner(self, asked: Asked) -> Learner:
        return _learner_of(self.model(asked.seed), asked, self.pool)

    def model(self, seed: int) -> Model:
        model = load(self.source)
        if self.lora is not None:
            add_lora(model, self.lora, seed=seed)
        return model


def _learner_of(model: Model, asked: Asked, pool: str) -> Learner:
    if asked.classes:
        return Classifier(model, asked.classes, pool, asked.seed)
    if asked.vocab > model.spec.vocab:
        raise BadInput(f"the data have {asked.vocab} tokens, the model {model.spec.vocab}: use the model's tokenizer")
    return TokenLearner(model) if model.encoder is None else PairLearner(model)


MODELS: tuple[type[Any], ...] = (Decoder, Encoder, EncoderDecoder, Recurrent, Loaded)


def with_dropout(spec: ModelSpec, share: float) -> ModelSpec:
    """The spec with this dropout where the original transformer has it, and on the attention weights."""
    if not share:
        return spec

    def dropped(layer: Layer) -> Layer:
        def attention(config: Any) -> Any:
            return None if config is None else replace(config, scores=replace(config.scores, dropout=share))

        return replace(layer, attention=attention(layer.attention), cross=attention(layer.cross), dropout=share)

    return replace(
        spec,
        layers=tuple(dropped(layer) for layer in spec.layers),
        embedding=replace(spec.embedding, dropout=share),
        encoder=None if spec.encoder is None else with_dropout(spec.encoder, share),
    )


__all__ = ["MODELS", "Asked", "Decoder", "Encoder", "EncoderDecoder", "Loaded", "Recurrent"]
