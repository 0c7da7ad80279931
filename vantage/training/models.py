"""The ``[model]`` section: which model to train. The names are those of ``vt.decoder`` and its like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, TypeVar

import torch

from vantage.checkpoints.adapter_folder import find_with_adapter
from vantage.checkpoints.pull import find
from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput, Refused, VantageError
from vantage.families import family_of, load, load_share, opened
from vantage.model import Model, build
from vantage.model.lora import Lora, add_lora
from vantage.model.recipes import decoder_spec, encoder_decoder_spec, encoder_spec
from vantage.model.recurrent import RecurrentModel, RecurrentSpec, build_recurrent
from vantage.parallel import ModelShare
from vantage.spec.model import Head, ModelSpec
from vantage.spec.options import DecoderOptions, EncoderDecoderOptions, EncoderOptions, StackOptions, changed
from vantage.training.learners import Classifier, Learner, PairLearner, RecurrentLearner, TokenLearner
from vantage.training.sequences import Reads
from vantage.training.tables import OBJECT

Options = TypeVar("Options", bound=StackOptions)
Divide = Callable[[ModelSpec], ModelShare]  # of a whole model, what this process has
WIDTH, LAYERS, HEADS = 256, 4, 4  # unless said


@dataclass(frozen=True)
class DataFacts:
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

    @property
    def unsaid(self) -> frozenset[str]:
        """Options that earlier versions did not have and that are at their defaults: such a run is still the same."""
        ...

    def check(self, facts: DataFacts) -> None:
        """Refuse now what could not be built, before anything is allocated."""
        ...

    def build_model(self, facts: DataFacts, divide: Divide | None = None) -> Any:
        """The model with its first weights. ``divide``: this process's share of it, which is all that it ever holds."""
        ...

    def around(self, model: Any, facts: DataFacts) -> Learner:
        """The module that trains this model."""
        ...


def learner_of(section: ModelSection, facts: DataFacts, divide: Divide | None = None) -> Learner:
    """A section's model, inside the module that trains it."""
    return section.around(section.build_model(facts, divide), facts)


@dataclass(frozen=True, kw_only=True)
class Decoder(DecoderOptions):
    """A decoder-only transformer."""

    width: int = changed("width", WIDTH)
    layers: int = changed("layers", LAYERS)
    heads: int | None = changed("heads", HEADS)

    @property
    def reads(self) -> Reads:
        return "ask" if self.bidirectional else "line"

    @property
    def unsaid(self) -> frozenset[str]:
        return _at_default(self, "bias", "mask", "output", "indexer", "kv_sharing")

    def spec(self, vocab: int) -> ModelSpec:
        return decoder_spec(vocab, _own_heads(self))

    def check(self, facts: DataFacts) -> None:
        self.spec(facts.vocab)

    def build_model(self, facts: DataFacts, divide: Divide | None = None) -> Model:
        return _drawn(self.spec(facts.vocab), facts.seed, divide)

    def around(self, model: Model, facts: DataFacts) -> Learner:
        return _around(model, facts, "last")


@dataclass(frozen=True, kw_only=True)
class Encoder(EncoderOptions):
    """An encoder: a classifier where the data have labels, otherwise with a head that says hidden tokens."""

    width: int = changed("width", WIDTH)
    layers: int = changed("layers", LAYERS)
    heads: int | None = changed("heads", HEADS)
    pool: Literal["mean", "first", "last"] = "mean"

    @property
    def reads(self) -> Reads:
        return "label"

    @property
    def unsaid(self) -> frozenset[str]:
        return _at_default(self, "attention", "bias", "mask")

    def spec(self, facts: DataFacts) -> ModelSpec:
        spec = encoder_spec(facts.vocab, _own_heads(self))
        return spec if facts.classes else replace(spec, head=Head(tied=True))

    def check(self, facts: DataFacts) -> None:
        self.spec(facts)

    def build_model(self, facts: DataFacts, divide: Divide | None = None) -> Model:
        return _drawn(self.spec(facts), facts.seed, divide)

    def around(self, model: Model, facts: DataFacts) -> Learner:
        return Classifier(model, facts.classes, self.pool, facts.seed) if facts.classes else TokenLearner(model)


@dataclass(frozen=True, kw_only=True)
class EncoderDecoder(EncoderDecoderOptions):
    """An encoder-decoder, by default the original one: with one table of embeddings for both ends and the head."""

    width: int = changed("width", WIDTH)
    layers: int = changed("layers", LAYERS)
    heads: int | None = changed("heads", HEADS)
    tied: bool = True
    shared: bool = True

    @property
    def reads(self) -> Reads:
        return "pair"

    @property
    def unsaid(self) -> frozenset[str]:
        return _at_default(self, "attention", "bias", "window")

    def spec(self, vocab: int) -> ModelSpec:
        return encoder_decoder_spec(vocab, _own_heads(self))

    def check(self, facts: DataFacts) -> None:
        self.spec(facts.vocab)

    def build_model(self, facts: DataFacts, divide: Divide | None = None) -> Model:
        return _drawn(self.spec(facts.vocab), facts.seed, divide)

    def around(self, model: Model, facts: DataFacts) -> Learner:
        return PairLearner(model)


def _own_heads(section: Options) -> Options:
    """An attention config has heads of its own: those of the section, which has some by default, are left out."""
    return section if isinstance(section.attention, str | None) else replace(section, heads=None)


def _at_default(section: StackOptions, *names: str) -> frozenset[str]:
    return frozenset(f.name for f in fields(section) if f.name in names and getattr(section, f.name) == f.default)


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

    @property
    def unsaid(self) -> frozenset[str]:
        return frozenset()

    def spec(self, vocab: int) -> RecurrentSpec:
        return RecurrentSpec(
            vocab, self.width, self.cell, self.layers, self.attention, self.bidirectional, self.dropout, self.feed
        )

    def check(self, facts: DataFacts) -> None:
        self.spec(facts.vocab)

    def build_model(self, facts: DataFacts, divide: Divide | None = None) -> RecurrentModel:
        if divide is not None:
            raise _not_divided()
        return build_recurrent(self.spec(facts.vocab), seed=facts.seed)

    def around(self, model: RecurrentModel, facts: DataFacts) -> Learner:
        return RecurrentLearner(model)


@dataclass(frozen=True)
class Loaded:
    """A checkpoint to go on from: a folder, a GGUF file or a name that ``vantage pull`` knows. ``lora`` puts an adapter
    on it, and only that is trained; ``adapter`` goes on with one that was trained before."""

    source: str
    lora: Lora | None = None
    pool: Literal["mean", "first", "last"] = "last"
    adapter: str | None = None  # a folder with an adapter that is trained on

    def __post_init__(self) -> None:
        if self.lora is not None and self.adapter is not None:
            raise BadInput(
                "model.lora puts a new adapter on the model and model.adapter one that exists: say one of them"
            )

    @property
    def reads(self) -> Reads:
        return "own"

    @property
    def unsaid(self) -> frozenset[str]:
        return frozenset({"adapter"}) if self.adapter is None else frozenset()

    def check(self, facts: DataFacts) -> None:
        """Only the names and sizes are looked at: the weights can wait."""
        try:
            path, _ = find_with_adapter(self.source, self.adapter)
            if path != find(self.source):
                raise BadInput(f"{self.source} holds an adapter: say model.source={path} model.adapter={self.source}")
            family_of(opened(path, torch.float32).config)
        except VantageError as e:
            raise BadInput(f"model.source: {e}") from e

    def build_model(self, facts: DataFacts, divide: Divide | None = None) -> Model:
        if divide is not None:
            if self.lora is not None or self.adapter is not None:
                raise _not_divided()
            return load_share(self.source, divide)
        model = load(self.source, adapter=self.adapter)
        if self.lora is not None:
            add_lora(model, self.lora, seed=facts.seed)
        return model

    def around(self, model: Model, facts: DataFacts) -> Learner:
        return _around(model, facts, self.pool)


@dataclass(frozen=True)
class ModelObject:
    """A model, or the spec of one, from Python. A model is trained in place."""

    spec: ModelSpec
    reads: Reads
    model: Model | None = field(default=None, repr=False, compare=False, metadata={OBJECT: True})
    tokenizer: Tokenizer | None = field(default=None, repr=False, compare=False, metadata={OBJECT: True})

    @property
    def unsaid(self) -> frozenset[str]:
        return frozenset()

    def check(self, facts: DataFacts) -> None:
        if self.spec.head is None and self.reads != "label":
            raise BadInput("this model has no head to predict tokens with: give it one, or train it on labels")

    def build_model(self, facts: DataFacts, divide: Divide | None = None) -> Model:
        return _drawn(self.spec, facts.seed, divide) if self.model is None else self.model

    def around(self, model: Model, facts: DataFacts) -> Learner:
        return _around(model, facts, "last" if self.spec.causal else "mean")


def _drawn(spec: ModelSpec, seed: int, divide: Divide | None) -> Model:
    return build(spec, seed=seed) if divide is None else divide(spec).drawn(seed)


def _not_divided() -> Refused:
    return Refused(
        "parallel.tensor and parallel.experts are for transformers that are trained whole: no adapter, no recurrent "
        "model"
    )


def _around(model: Model, facts: DataFacts, pool: str) -> Learner:
    if facts.classes:
        return Classifier(model, facts.classes, pool, facts.seed)
    if facts.vocab > model.spec.vocab:
        raise BadInput(f"the data have {facts.vocab} tokens, the model {model.spec.vocab}: use the model's tokenizer")
    return TokenLearner(model) if model.encoder is None else PairLearner(model)


MODELS: tuple[type[Any], ...] = (Decoder, Encoder, EncoderDecoder, Recurrent, Loaded)


__all__ = [
    "MODELS",
    "DataFacts",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Loaded",
    "ModelObject",
    "Recurrent",
    "learner_of",
]
