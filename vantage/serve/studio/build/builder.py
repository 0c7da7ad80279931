"""A model from a form: the spec, the code that makes it again, its sizes, and the settings that train it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import torch

from vantage.attention import GroupedQuery, Latent
from vantage.checkpoints.spec_json import to_json
from vantage.errors import BadInput, Refused, VantageError
from vantage.inspect.cost import parameters
from vantage.model import decoder, empty_model, encoder, encoder_decoder
from vantage.model.experts import Experts, TopK
from vantage.model.feed_forward import named as named_ffn
from vantage.model.norms import NORMS
from vantage.position import ENCODINGS, Learned, Randomised
from vantage.serve.studio.build.code import call, toml
from vantage.serve.studio.cost.calculator import CacheKind
from vantage.serve.studio.encodings import made
from vantage.spec.model import AttentionConfig, Layer, ModelSpec, Parallel, Scores, Wiring
from vantage.spec.parts import Encoding
from vantage.spec.registry import Fit
from vantage.studies.study import Value
from vantage.training.models import Asked as Data
from vantage.training.sequences import Reads, Sequences
from vantage.training.settings import TrainSettings, settings_of
from vantage.training.tasks import task as task_of

FUNCTIONS: Final[dict[str, Callable[..., ModelSpec]]] = {
    "decoder": decoder,
    "encoder": encoder,
    "encoder_decoder": encoder_decoder,
}
READS: Final[dict[str, Reads]] = {"decoder": "line", "encoder": "label", "encoder_decoder": "pair"}
CONTEXTS = tuple(2**i for i in range(10, 18))
LENGTHS = (1, 20)  # of a task's examples
FILE = "model.toml"
NOTE = """\
# The vocabulary is that of the data.
# To train on a text of your own: [data] is = "text", files = "my.txt".
"""


@final
@dataclass(frozen=True)
class MLA:
    """Sizes of latent attention."""

    kv_rank: int
    rope_dim: int
    nope_dim: int | None = None  # none: a head's width
    value_dim: int | None = None
    q_rank: int | None = None


@final
@dataclass(frozen=True)
class Mixture:
    """Experts in the place of one feed-forward layer."""

    count: int
    k: int
    shared: bool = False


@final
@dataclass(frozen=True)
class Heads:
    """Attention."""

    heads: int
    kv_heads: int | None = None
    head_width: int | None = None
    bias: bool = False
    softcap: float | None = None
    sinks: bool = False
    latent: MLA | None = None

    def config(self, width: int, norm: str) -> AttentionConfig | None:
        """``None``: heads and kv_heads say it all."""
        scores = Scores(softcap=self.softcap, sinks=self.sinks)
        if self.latent is not None:
            if self.kv_heads is not None:
                raise BadInput("latent attention has no key/value heads: leave kv_heads out, or latent")
            if self.head_width is None and width % self.heads:
                raise BadInput(f"width {width} does not divide into {self.heads} heads: change one, or say head_width")
            head = self.head_width or width // self.heads
            m = self.latent
            sizes = (m.kv_rank, m.nope_dim or head, m.rope_dim, m.value_dim or head)
            return Latent(self.heads, *sizes, norm=NORMS[norm], q_rank=m.q_rank, bias=self.bias, scores=scores)
        if self.head_width is None and not self.bias and scores == Scores():
            return None
        return GroupedQuery(
            self.heads, self.kv_heads, self.head_width, bias=self.bias, out_bias=self.bias, scores=scores
        )


@final
@dataclass(frozen=True)
class Form:
    """What was filled in."""

    kind: str
    vocab: int
    width: int
    layers: int
    attention: Heads
    position: str
    values: Mapping[str, Value]
    window: int | None = None
    full_every: int | None = None  # every so-many-th layer has no window …
    full_position: str = "same"  # … and, with "none", no position
    max_length: int | None = None
    ffn: str = "swiglu"
    hidden: int | None = None
    experts: Mixture | None = None
    norm: str = "rms"
    wiring: str = "pre"
    tied: bool = False
    task: str = "copy"
    steps: int = 1000


@final
@dataclass(frozen=True)
class Made:
    """A call of ``vt.decoder`` or its like, and perhaps a second one for the layers that differ."""

    form: Form
    arguments: Mapping[str, Any]
    others: Mapping[str, Any] | None  # arguments that the full layers have instead
    spec: ModelSpec = field(repr=False)

    @property
    def code(self) -> str:
        function = f"vt.{self.form.kind}"
        if self.others is None:
            return f"import vantage as vt\n\nspec = {call(function, self.arguments)}\nmodel = vt.build(spec)\n"
        every = self.form.full_every
        return (
            "from dataclasses import replace\n\nimport vantage as vt\n\n"
            f"spec = {call(function, self.arguments)}\n"
            f"full = {call(function, self._full())}\n"
            "pairs = enumerate(zip(spec.layers, full.layers), 1)\n"
            f"layers = [b if i % {every} == 0 else a for i, (a, b) in pairs]\n"
            "spec = replace(spec, layers=tuple(layers))\nmodel = vt.build(spec)\n"
        )

    def _full(self) -> dict[str, Any]:
        assert self.others is not None
        return {k: v for k, v in {**self.arguments, **self.others}.items() if v is not None}


def make(form: Form) -> Made:
    """The call that the form means, carried out. What it cannot mean is refused in words."""
    function = FUNCTIONS[form.kind]
    arguments = _arguments(form)
    if form.full_every is None:
        return Made(form, arguments, None, function(**arguments))
    if form.kind == "encoder_decoder":
        raise Refused("layer patterns are for a decoder or an encoder: leave full_every out")
    if form.window is None and form.full_position == "same":
        raise BadInput("with full_every some layers differ: give a window that they do not have, or no position there")
    others: dict[str, Any] = {} if form.window is None else {"window": None}
    if form.full_position == "none":
        others["position"] = "none"
    made = Made(form, arguments, others, function(**arguments))
    if form.full_position == "none" and made.spec.embedding.inputs:
        raise Refused(f"{form.position} acts on the embeddings, before all layers: no layer can be without it")
    full = function(**made._full())
    layers = [
        b if (i + 1) % form.full_every == 0 else a
        for i, (a, b) in enumerate(zip(made.spec.layers, full.layers, strict=True))
    ]
    return replace(made, spec=replace(made.spec, layers=tuple(layers)))


def _arguments(form: Form) -> dict[str, Any]:
    found: dict[str, Any] = {"vocab": form.vocab, "width": form.width, "layers": form.layers}
    heads = form.attention
    config = heads.config(form.width, form.norm)
    if form.kind == "encoder_decoder":
        if heads.latent is not None or heads.head_width or heads.softcap is not None or heads.sinks:
            raise Refused("an encoder-decoder here has plain heads: leave latent, head_width, softcap and sinks out")
        found |= {"heads": heads.heads, "kv_heads": heads.kv_heads, "bias": heads.bias}
    elif config is None:
        found |= {"heads": heads.heads, "kv_heads": heads.kv_heads}
    else:
        found["attention"] = config
    found |= {"position": _position(form), "window": form.window, "max_length": form.max_length}
    found |= {"ffn": _ffn(form), "norm": form.norm, "wiring": form.wiring}
    if form.kind == "encoder" and form.tied:
        raise Refused("an encoder has no head that could be tied to the embeddings: leave tied out")
    if form.kind != "encoder" and form.tied:
        found["tied"] = True
    return {name: value for name, value in found.items() if value is not None}


def _position(form: Form) -> str | Encoding:
    if form.position in ENCODINGS and not form.values:
        return form.position
    if form.position == "randomised" and "seed" in form.values:
        raise BadInput("randomised positions are drawn anew in every step of training: leave seed out")
    shape = (form.attention.config(form.width, form.norm) or GroupedQuery(form.attention.heads)).shape(form.width)
    encoding = made(form.position, form.values, Fit(form.max_length or form.width, shape.rotary_dim))
    return replace(encoding, generator=None) if isinstance(encoding, Randomised) else encoding


def _ffn(form: Form) -> Any:
    if form.experts is None:
        return form.ffn if form.hidden is None else named_ffn(form.ffn, form.width, form.hidden)
    one = named_ffn(form.ffn, form.width, form.hidden)
    mixture = form.experts
    if not 1 <= mixture.k <= mixture.count:
        raise BadInput(f"{mixture.k} of {mixture.count} experts: a token goes to 1 up to {mixture.count}")
    return Experts(one, mixture.count, TopK(mixture.k), shared=one if mixture.shared else None)


# ---- what it comes to


def described(form: Form) -> dict[str, Any]:
    """Everything that the page shows."""
    done = make(form)
    spec = done.spec
    counts = parameters(empty_model(spec))
    settings, why = training(done)
    return {
        "code": done.code,
        "spec_json": to_json(spec),
        "parameters": sum(counts.values()),
        "parameters_by_part": [{"part": part, "count": count} for part, count in counts.items()],
        "cache_bytes": cache(spec),
        "layers": diagram(spec),
        "toml": settings,
        "command": None if settings is None else f"vantage train {FILE}",
        "why_not": why,
    }


def cache(spec: ModelSpec) -> list[dict[str, int]]:
    """For one row in bfloat16; window layers in a ring where that is smaller. Nothing for an encoder."""
    if not spec.generates:
        return []
    kind = CacheKind("own", spec, ring=any(layer.mask.reach() is not None for layer in spec.layers))
    return [{"context": n, "bytes": kind.bytes(n, 1, torch.bfloat16)} for n in CONTEXTS]


def diagram(spec: ModelSpec) -> list[dict[str, Any]]:
    """Each block, encoder first."""
    inner = [] if spec.encoder is None else [{**one, "stack": "encoder"} for one in diagram(spec.encoder)]
    whole = "encoder" if spec.kind == "encoder" else "decoder"
    return inner + [{**_block(spec, i, layer), "stack": whole} for i, layer in enumerate(spec.layers)]


def _block(spec: ModelSpec, index: int, layer: Layer) -> dict[str, Any]:
    shape = layer.attention.shape(spec.width)
    acting = [*spec.embedding.inputs, *layer.qk, *filter(None, (layer.bias, layer.value_bias))]
    wiring: Any = layer.wiring
    return {
        "name": f"layer {index}",
        "mask": repr(layer.mask),
        "window": layer.mask.reach(),
        "position": [type(part).__name__ for part in acting],
        "attention": type(layer.attention).__name__,
        "heads": shape.heads,
        "kv_heads": layer.attention.cache_shape(spec.width).kv_heads,
        "head_width": shape.key_dim,
        "cross": layer.cross is not None,
        "ffn": _said(layer.ffn),
        "norm": type(layer.norm).__name__,
        "wiring": "parallel" if isinstance(wiring, Parallel) else _wired(wiring),
    }


def _wired(wiring: Wiring) -> str:
    return "sandwich" if wiring.before and wiring.after else "pre" if wiring.before else "post"


def _said(ffn: Any) -> str:
    if isinstance(ffn, Experts):
        router: Any = ffn.router
        return f"{router.k} of {ffn.count} experts: {_said(ffn.expert)}"
    return f"{'gated ' if ffn.gated else ''}{ffn.activation}, {ffn.hidden:,} wide"


# ---- training it


def training(done: Made) -> tuple[str | None, str | None]:
    """Settings for ``vantage train``, read back and held to the same spec; or why there are none."""
    form = done.form
    try:
        text = _settings(done)
        read = settings_of(tomllib.loads(text))
        _same(read, done)
        _room(form)
    except VantageError as e:
        return None, str(e)
    return text, None


def _settings(done: Made) -> str:
    form = done.form
    if done.others is not None:
        raise Refused(
            "the settings of vantage train have no layer patterns: train this spec from Python, vt.build(spec)"
        )
    model: dict[str, Any] = {"is": form.kind, **{k: v for k, v in done.arguments.items() if k != "vocab"}}
    if form.kind == "encoder" and "attention" in model:
        raise Refused("the settings of vantage train give an encoder plain heads: train this spec from Python")
    if form.kind == "encoder_decoder":
        if not model.pop("bias"):
            raise Refused("vantage train gives an encoder-decoder biases: set bias, or train this spec from Python")
        if "window" in model:
            raise Refused("vantage train gives an encoder-decoder no window: train this spec from Python")
        model |= {"tied": form.tied, "shared": False}
    data = {"is": "task", "task": form.task, "lengths": LENGTHS, "test_lengths": (LENGTHS[1], 2 * LENGTHS[1])}
    tables = {
        "model": model,
        "data": data,
        "loop": {"steps": form.steps, "batch": 64},
        "optimiser": {"is": "adamw", "lr": 1e-3},
        "schedule": {"is": "cosine", "warmup": min(100, form.steps // 10)},
        "evaluate": {"every": max(1, form.steps // 5)},
    }
    return NOTE + toml(tables)


def _same(settings: TrainSettings, done: Made) -> None:
    """The section must mean the spec that is shown, vocabulary apart."""
    section: Any = settings.model
    if done.form.kind == "encoder":
        meant = section.spec(Data(done.form.vocab, 0, classes=2))
    else:
        meant = section.spec(done.form.vocab)
    assert meant == done.spec, "the settings mean another model than the one that is shown"


def _room(form: Form) -> None:
    """A learned table must reach over the rows of the task."""
    part = _position(form)
    rows = form.max_length if part == "learned" else part.max_length if isinstance(part, Learned) else None
    if rows is None or (isinstance(part, Learned) and part.extend is not None):
        return
    top = 2 * LENGTHS[1]
    batch = Sequences(task_of(form.task), READS[form.kind], (top, top), (top,), 16).batch(range(16))
    longest = max(batch.tokens.shape[1], 0 if batch.source is None else batch.source.shape[1])
    if longest > rows:
        raise Refused(
            f"{form.task} has rows of {longest} tokens, and the table {rows}: raise max_length to train on it"
        )
