"""Build: a model put together from parts, with its code, its sizes, and the command that trains it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from vantage.errors import unknown
from vantage.model.norms import NORMS
from vantage.model.recipes import WIRINGS
from vantage.serve.bounds import Flag, Number, StrictModel, Whole
from vantage.serve.errors import bad
from vantage.serve.studio.answers import EncodingEntry, StudioAnswer
from vantage.serve.studio.build.answers import BuildAnswer
from vantage.serve.studio.build.builder import FUNCTIONS, MLA, Form, Heads, Mixture, described
from vantage.serve.studio.encodings import choices as offers
from vantage.serve.studio.state import call
from vantage.serve.studio.swapped_models import EncodingRequest
from vantage.training.tasks import TASKS

router = APIRouter(prefix="/studio/api")

FFNS = ("swiglu", "geglu", "gelu", "relu")
Size = Annotated[Whole, Field(ge=1, le=65_536)]
Some = Annotated[Whole, Field(ge=1, le=512)]


class LatentRequest(StrictModel):
    kv_rank: Size
    rope_dim: Annotated[Whole, Field(ge=0, le=1024)]
    nope_dim: Size | None = None
    value_dim: Size | None = None
    q_rank: Size | None = None


class ExpertsRequest(StrictModel):
    count: Annotated[Whole, Field(ge=1, le=64)]
    k: Annotated[Whole, Field(ge=1, le=64)]
    shared: Flag = False


class BuildSettings(StrictModel):
    kind: Literal["decoder", "encoder", "encoder_decoder"] = "decoder"
    vocab: Annotated[Whole, Field(ge=1, le=2**20)] = 32_000
    width: Annotated[Whole, Field(ge=1, le=32_768)] = 512
    layers: Annotated[Whole, Field(ge=1, le=128)] = 8
    heads: Some = 8
    kv_heads: Some | None = None
    head_width: Annotated[Whole, Field(ge=1, le=1024)] | None = None
    attention: Literal["multi-head", "grouped-query", "multi-query", "latent"] = "grouped-query"
    latent: LatentRequest | None = None
    bias: Flag = False
    softcap: Annotated[Number, Field(gt=0, le=1000)] | None = None
    sinks: Flag = False
    position: EncodingRequest = EncodingRequest(name="rope")
    window: Annotated[Whole, Field(ge=1, le=2**20)] | None = None
    full_every: Annotated[Whole, Field(ge=2, le=128)] | None = None
    full_position: Literal["same", "none"] = "same"
    max_length: Annotated[Whole, Field(ge=1, le=2**20)] | None = None
    ffn: Literal["swiglu", "geglu", "gelu", "relu"] = "swiglu"
    hidden: Annotated[Whole, Field(ge=1, le=2**18)] | None = None
    experts: ExpertsRequest | None = None
    norm: Literal["rms", "layer"] = "rms"
    wiring: Literal["pre", "post", "sandwich", "parallel"] = "pre"
    tied: Flag = False
    task: Annotated[str, Field(max_length=64)] | None = None  # none: one that this kind of model can learn
    steps: Annotated[Whole, Field(ge=1, le=1_000_000)] = 1000

    def form(self) -> Form:
        task = self.task or ("parity" if self.kind == "encoder" else "copy")
        if task not in TASKS:
            raise bad(unknown("task", task, TASKS), "task")
        latent = None if self.latent is None else MLA(**self.latent.model_dump())
        heads = Heads(self.heads, self._groups(), self.head_width, self.bias, self.softcap, self.sinks, latent)
        mixture = None if self.experts is None else Mixture(**self.experts.model_dump())
        same = ("kind", "vocab", "width", "layers", "window", "full_every", "full_position", "max_length")
        same += ("ffn", "hidden", "norm", "wiring", "tied", "steps")
        return Form(
            attention=heads,
            position=self.position.name,
            values=dict(self.position.values),
            experts=mixture,
            task=task,
            **{name: getattr(self, name) for name in same},
        )

    def _groups(self) -> int | None:
        """Key/value heads; a word and a number that disagree are refused."""
        if (self.attention == "latent") != (self.latent is not None):
            raise bad(
                "latent attention needs its sizes, and no other has them: say attention and latent alike", "latent"
            )
        fixed = {"multi-head": None, "multi-query": 1, "latent": None}
        if self.attention == "grouped-query":
            return None if self.kv_heads == self.heads else self.kv_heads
        allowed = {"multi-head": (None, self.heads), "multi-query": (None, 1), "latent": (None,)}[self.attention]
        if self.kv_heads not in allowed:
            raise bad(
                f"{self.attention} attention with {self.kv_heads} key/value heads: leave kv_heads out", "kv_heads"
            )
        return fixed[self.attention]


class BuildRequest(StrictModel):
    settings: BuildSettings


class BuildChoices(StudioAnswer):
    """What the form offers, and what it begins with."""

    kinds: list[str]
    positions: list[EncodingEntry]
    attentions: list[str]
    norms: list[str]
    ffns: list[str]
    wirings: list[str]
    tasks: list[str]
    defaults: BuildSettings


@router.get("/build/choices")
async def choices() -> BuildChoices:
    positions = []
    for choice in offers().values():
        parameters = tuple(p for p in choice.parameters if (choice.name, p.name) != ("randomised", "seed"))
        entry = EncodingEntry(name=choice.name, title=choice.title, about=choice.about, parameters=parameters)
        positions.append(entry)
    return BuildChoices(
        kinds=list(FUNCTIONS),
        positions=positions,
        attentions=["multi-head", "grouped-query", "multi-query", "latent"],
        norms=list(NORMS),
        ffns=list(FFNS),
        wirings=list(WIRINGS),
        tasks=list(TASKS),
        defaults=BuildSettings(),
    )


@router.post("/build")
async def build(request: Request, body: BuildRequest) -> BuildAnswer:
    form = body.settings.form()
    return await call(request, lambda: BuildAnswer.model_validate(described(form)), thread="build")
