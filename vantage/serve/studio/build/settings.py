"""What the Build page asks, and what it offers. The options of a model are those of ``vantage.spec.options``."""

from __future__ import annotations

import typing
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from vantage.attention import ATTENTIONS, INDEXERS, OUTPUT_PARTS
from vantage.errors import unknown
from vantage.model.feed_forward import NAMED
from vantage.model.norms import NORMS
from vantage.model.recipes import WIRINGS
from vantage.serve.bounds import Flag, Number, StrictModel, Whole
from vantage.serve.errors import bad
from vantage.serve.studio.answers import EncodingEntry, StudioAnswer
from vantage.serve.studio.swapped_models import EncodingRequest
from vantage.spec.normalisers import NORMALISERS
from vantage.spec.options import DecoderOptions, EncoderDecoderOptions, EncoderOptions, StackOptions
from vantage.spec.registry import parameters
from vantage.training.tasks import TASKS

Size = Annotated[Whole, Field(ge=1, le=65_536)]
Word = Literal["decoder", "encoder", "encoder_decoder"]
FORMS = ("multi-head", "grouped-query", "multi-query", "latent", "kimi-delta")  # of attention, with fields of the form

OPTIONS: dict[str, type[StackOptions]] = {
    "decoder": DecoderOptions,
    "encoder": EncoderOptions,
    "encoder_decoder": EncoderDecoderOptions,
}
START = {"width": 512, "layers": 8, "heads": 8}  # sizes that the form begins with
NOTHING = "none"  # what the form says where an option is None
CHOICES = {  # options that have names
    "ffn": tuple(NAMED),
    "norm": tuple(NORMS),
    "wiring": tuple(WIRINGS),
    "output": (NOTHING, *(entry.name for entry in OUTPUT_PARTS.entries() if entry.compared)),
    "indexer": (NOTHING, *(entry.name for entry in INDEXERS.entries() if entry.compared)),
}
PLAIN = {int: Whole, float: Number, bool: Flag}


def _field(name: str, default: Any, hint: Any) -> tuple[Any, Any] | None:
    """An option as a field of a request; none for what takes objects, for which the form has fields of its own."""
    if name in CHOICES:
        return Literal[CHOICES[name]], NOTHING if default is None else default
    hints = typing.get_args(hint) or (hint,)
    plain = next((PLAIN[one] for one in hints if one in PLAIN), None)
    if plain is None:
        return None
    info = parameters(OPTIONS["decoder"]).get(name) or parameters(OPTIONS["encoder_decoder"])[name]
    bounded: Any = Annotated[plain, Field(ge=info.low, le=info.high)]
    return (bounded, START[name]) if name in START else (bounded | None if type(None) in hints else bounded, default)


def _fields() -> dict[str, Any]:
    """Every option of any kind of model, as a decoder has it where it has it."""
    definitions: dict[str, Any] = {}
    for options in OPTIONS.values():
        hints = typing.get_type_hints(options)
        for f in fields(options):
            definition = _field(f.name, f.default, hints[f.name])
            if f.name not in definitions and definition is not None:
                definitions[f.name] = definition
    return definitions


def attentions() -> list[str]:
    """The kinds that the form offers: two of ours in its own words, and all that a number of heads can make by their
    names."""
    outside = ATTENTIONS.from_outside()
    offered = (entry.name for entry in ATTENTIONS.entries() if entry.compared or entry in outside)
    return list(dict.fromkeys((*FORMS, *offered)))


FormOptions: Any = create_model("FormOptions", __base__=StrictModel, **_fields())


# ---- what is asked


class LatentSizes(StrictModel):
    """Of latent attention. What is none is a head's width."""

    kv_rank: Size
    rope_dim: Annotated[Whole, Field(ge=0, le=1024)]
    nope_dim: Size | None = None
    value_dim: Size | None = None
    q_rank: Size | None = None


class DeltaSizes(StrictModel):
    """Of Kimi delta attention (KDA). ``rank``: of the maps to the decays and the gate; none: a head's width."""

    rank: Size | None = None
    taps: Annotated[Whole, Field(ge=2, le=16)] = 4


class ExpertMixture(StrictModel):
    """Experts in the place of one feed-forward layer."""

    count: Annotated[Whole, Field(ge=1, le=64)]
    k: Annotated[Whole, Field(ge=1, le=64)]
    shared: Flag = False


class BuildSettings(FormOptions):
    """What was filled in: the options, and what the form says in words of its own."""

    kind: Word = "decoder"
    vocab: Annotated[Whole, Field(ge=1, le=2**20)] = 32_000
    head_width: Annotated[Whole, Field(ge=1, le=1024)] | None = None
    attention: Annotated[str, Field(max_length=64)] = "grouped-query"
    latent: LatentSizes | None = None
    delta: DeltaSizes | None = None
    normaliser: Annotated[str, Field(max_length=64)] = "softmax"
    softcap: Annotated[Number, Field(gt=0, le=1000)] | None = None
    sinks: Flag = False
    position: EncodingRequest = EncodingRequest(name="rope")
    full_every: Annotated[Whole, Field(ge=2, le=128)] | None = None  # every so-many-th layer has no window …
    full_position: Literal["same", "none"] = "same"  # … and, with "none", no position
    hidden: Annotated[Whole, Field(ge=1, le=2**18)] | None = None
    experts: ExpertMixture | None = None
    task: Annotated[str, Field(max_length=64)] | None = None  # none: one that this kind of model can learn
    steps: Annotated[Whole, Field(ge=1, le=1_000_000)] = 1000

    @property
    def task_name(self) -> str:
        name = self.task or ("parity" if self.kind == "encoder" or self.bidirectional else "copy")
        if name not in TASKS:
            raise bad(unknown("task", name, TASKS), "task")
        return name

    @property
    def groups(self) -> int | None:
        """Key/value heads; a word and a number that disagree are refused."""
        if (self.attention == "latent") != (self.latent is not None):
            raise bad(
                "latent attention needs its sizes, and no other has them: say attention and latent alike", "latent"
            )
        if self.delta is not None and self.attention != "kimi-delta":
            raise bad("delta has the sizes of Kimi delta attention: say attention kimi-delta, or leave it out", "delta")
        if self.attention not in (offered := attentions()):
            raise bad(unknown("attention", self.attention, offered), "attention")
        if self.attention == "grouped-query":
            return None if self.kv_heads == self.heads else self.kv_heads
        allowed = {"multi-head": (None, self.heads), "multi-query": (None, 1)}.get(self.attention, (None,))
        if self.kv_heads not in allowed:
            raise bad(
                f"{self.attention} attention with {self.kv_heads} key/value heads: leave kv_heads out", "kv_heads"
            )
        return 1 if self.attention == "multi-query" else None


class BuildRequest(StrictModel):
    settings: BuildSettings


# ---- what is offered


class OptionEntry(StudioAnswer):
    """An option of the form: what it is, its bounds or its choices, and which kinds of model have it."""

    help: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    kinds: list[Word]


class NormaliserEntry(StudioAnswer):
    """What makes weights of scores."""

    name: str
    title: str
    about: str


class BuildChoices(StudioAnswer):
    """What the form offers, and what it begins with."""

    kinds: list[Word]
    positions: list[EncodingEntry]
    attentions: list[str]
    normalisers: list[NormaliserEntry]
    options: dict[str, OptionEntry]
    tasks: list[str]
    defaults: BuildSettings


def normalisers() -> list[NormaliserEntry]:
    return [NormaliserEntry(name=one.name, title=one.title, about=one.summary) for one in NORMALISERS.entries()]


def offered_options() -> dict[str, OptionEntry]:
    """The options that the form asks for, by name."""
    entries: dict[str, OptionEntry] = {}
    for name in FormOptions.model_fields:
        having: list[Any] = [kind for kind, options in OPTIONS.items() if name in parameters(options)]
        info = parameters(OPTIONS[having[0]])[name]
        entries[name] = OptionEntry(
            help=info.help, low=info.low, high=info.high, choices=CHOICES.get(name, ()), kinds=having
        )
    return entries
