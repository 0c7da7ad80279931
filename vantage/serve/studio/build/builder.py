"""A model from a form: the spec, the code that makes it again, its sizes, and the settings that train it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, final

import torch

from vantage.attention import ATTENTIONS, INDEXERS, OUTPUT_PARTS, GroupedQuery, Latent
from vantage.attention.kimi_delta import KimiDelta
from vantage.checkpoints.spec_json import to_json
from vantage.errors import BadInput, Refused, VantageError, unknown
from vantage.inspect.cost import parameters
from vantage.model import decoder, empty_model, encoder, encoder_decoder
from vantage.model.experts import Experts, TopK
from vantage.model.feed_forward import named as named_ffn
from vantage.model.norms import NORMS
from vantage.position import ENCODINGS, Randomised
from vantage.serve.studio.answers import PartCount
from vantage.serve.studio.build.answers import BlockEntry, BuildAnswer, ContextBytes
from vantage.serve.studio.build.code import call, imports, toml
from vantage.serve.studio.build.settings import (
    FORMS,
    NOTHING,
    OPTIONS,
    BuildSettings,
    DeltaSizes,
    FormOptions,
)
from vantage.serve.studio.cost.calculator import CacheChoice
from vantage.serve.studio.encodings import make_encoding
from vantage.spec.model import AttentionConfig, Layer, ModelSpec, Parallel, Scores, Wiring
from vantage.spec.normalisers import NORMALISERS
from vantage.spec.options import StackOptions
from vantage.spec.parts import Encoding
from vantage.spec.registry import Fit
from vantage.training.models import DataFacts, Decoder, Encoder, EncoderDecoder
from vantage.training.sequences import Reads, Sequences
from vantage.training.settings import settings_of
from vantage.training.tasks import task as task_of

FUNCTIONS: Final[dict[str, Callable[..., ModelSpec]]] = {
    "decoder": decoder,
    "encoder": encoder,
    "encoder_decoder": encoder_decoder,
}
SECTIONS: Final[dict[str, type[StackOptions]]] = {
    "decoder": Decoder,
    "encoder": Encoder,
    "encoder_decoder": EncoderDecoder,
}
ALWAYS = ("width", "layers", "heads", "position", "ffn", "norm", "wiring")  # said even where they are as they come
CONTEXTS = tuple(2**i for i in range(10, 18))
LENGTHS = (1, 20)  # of a task's examples
FILE = "model.toml"
NOTE = """\
# The vocabulary is that of the data.
# To train on a text of your own: [data] is = "text", files = "my.txt".
"""


@final
@dataclass(frozen=True)
class BuiltModel:
    """A call of ``vt.decoder`` or its like, and perhaps a second one for the layers that differ."""

    form: BuildSettings
    options: Mapping[str, Any]  # all that are not None, vocabulary included
    full: Mapping[str, Any] | None  # those that the full layers have instead
    spec: ModelSpec = field(repr=False)

    @property
    def code(self) -> str:
        function, arguments = f"vt.{self.form.kind}", shown(self.options, OPTIONS[self.form.kind])
        if self.full is None:
            head = f"import vantage as vt\n{imports(arguments)}\n"
            return f"{head}spec = {call(function, arguments)}\nmodel = vt.build(spec)\n"
        every = self.form.full_every
        return (
            f"from dataclasses import replace\n\nimport vantage as vt\n{imports(arguments)}\n"
            f"spec = {call(function, arguments)}\n"
            f"full = {call(function, shown(self.full, OPTIONS[self.form.kind]))}\n"
            "pairs = enumerate(zip(spec.layers, full.layers), 1)\n"
            f"layers = [b if i % {every} == 0 else a for i, (a, b) in pairs]\n"
            "spec = replace(spec, layers=tuple(layers))\nmodel = vt.build(spec)\n"
        )


def shown(options: Mapping[str, Any], defaults: type[StackOptions]) -> dict[str, Any]:
    """What must be said of these options: sizes and names always, the rest where it is not as it comes."""
    plain = {f.name: f.default for f in fields(defaults)}
    return {name: value for name, value in options.items() if name in ALWAYS or value != plain.get(name)}


def make(form: BuildSettings) -> BuiltModel:
    """The call that the form means, carried out. What it cannot mean is refused in words."""
    function = FUNCTIONS[form.kind]
    options = _options(form)
    spec = function(**options)
    if form.full_every is None:
        return BuiltModel(form, options, None, spec)
    if form.kind == "encoder_decoder":
        raise Refused("layer patterns are for a decoder or an encoder: leave full_every out")
    if form.window is None and form.full_position == "same":
        raise BadInput("with full_every some layers differ: give a window that they do not have, or no position there")
    if form.full_position == "none" and spec.embedding.inputs:
        raise Refused(f"{form.position.name} acts on the embeddings, before all layers: no layer can be without it")
    other = {name: value for name, value in options.items() if name != "window"}
    other |= {"position": "none"} if form.full_position == "none" else {}
    pairs = enumerate(zip(spec.layers, function(**other).layers, strict=True), 1)
    layers = tuple(full if i % form.full_every == 0 else layer for i, (layer, full) in pairs)
    return BuiltModel(form, options, other, replace(spec, layers=layers))


def _options(form: BuildSettings) -> dict[str, Any]:
    known = {f.name for f in fields(OPTIONS[form.kind])}
    options: dict[str, Any] = {"vocab": form.vocab}
    for name, info in FormOptions.model_fields.items():
        value = getattr(form, name)
        if name in known:
            options[name] = None if value == NOTHING else value
        elif value != info.default:
            raise Refused(f"{_article(form.kind)} has no option {name}: leave it out")
    options |= {"kv_heads": form.groups, "position": _position(form), "ffn": _ffn(form)}
    if (config := _attention(form)) is not None:
        plain = {f.name: f.default for f in fields(OPTIONS[form.kind])}
        options |= {"attention": config, "heads": None, "kv_heads": None, "bias": plain["bias"]}
    return {name: value for name, value in options.items() if value is not None}


def _article(kind: str) -> str:
    return f"{'a' if kind == 'decoder' else 'an'} {kind.replace('_', '-')}"


def _attention(form: BuildSettings) -> AttentionConfig | None:
    """``None``: heads, kv_heads and bias say it all."""
    if form.normaliser not in NORMALISERS:
        raise BadInput(unknown("normaliser", form.normaliser, NORMALISERS))
    normalise = NORMALISERS[form.normaliser].make()
    scores, groups = Scores(softcap=form.softcap, sinks=form.sinks, normalise=normalise), form.groups
    if form.attention == "kimi-delta":
        if scores != Scores() or form.bias:
            raise Refused("a delta rule has no scores and no biases: leave softcap, sinks, normaliser and biases out")
        sizes = form.delta or DeltaSizes()
        return KimiDelta(form.heads, NORMS[form.norm], form.head_width, sizes.rank, sizes.taps)
    if form.latent is not None:
        if form.head_width is None and form.width % form.heads:
            raise BadInput(f"width {form.width} does not divide into {form.heads} heads: change one, or say head_width")
        head, m = form.head_width or form.width // form.heads, form.latent
        sizes = (m.kv_rank, m.nope_dim or head, m.rope_dim, m.value_dim or head)
        return Latent(form.heads, *sizes, norm=NORMS[form.norm], q_rank=m.q_rank, bias=form.bias, scores=scores)
    if form.attention not in FORMS:  # it has sizes and scores of its own
        if form.head_width is not None or scores != Scores():
            raise Refused(
                f"{form.attention} has its own head width and scores: leave head_width, softcap, sinks and normaliser "
                "out"
            )
        return ATTENTIONS[form.attention].make(form.heads)
    if form.head_width is None and scores == Scores():
        return None
    return GroupedQuery(form.heads, groups, form.head_width, bias=form.bias, out_bias=form.bias, scores=scores)


def _position(form: BuildSettings) -> str | Encoding:
    name, values = form.position.name, dict(form.position.values)
    if name in ENCODINGS and not values:
        return name
    if name == "randomised" and "seed" in values:
        raise BadInput("randomised positions are drawn anew in every step of training: leave seed out")
    shape = (_attention(form) or GroupedQuery(form.heads)).shape(form.width)
    encoding = make_encoding(name, values, Fit(form.max_length or form.width, shape.rotary_dim))
    return replace(encoding, generator=None) if isinstance(encoding, Randomised) else encoding


def _ffn(form: BuildSettings) -> Any:
    if form.experts is None:
        return form.ffn if form.hidden is None else named_ffn(form.ffn, form.width, form.hidden)
    one = named_ffn(form.ffn, form.width, form.hidden)
    mixture = form.experts
    if not 1 <= mixture.k <= mixture.count:
        raise BadInput(f"{mixture.k} of {mixture.count} experts: a token goes to 1 up to {mixture.count}")
    return Experts(one, mixture.count, TopK(mixture.k), shared=one if mixture.shared else None)


# ---- what it comes to


def described(form: BuildSettings) -> BuildAnswer:
    """Everything that the page shows."""
    task, built = form.task_name, make(form)
    spec = built.spec
    counts = parameters(empty_model(spec))
    settings, why = training(built, task)
    return BuildAnswer(
        code=built.code,
        spec_json=to_json(spec),
        parameters=sum(counts.values()),
        parameters_by_part=[PartCount(part=part, count=count) for part, count in counts.items()],
        cache_bytes=cache(spec),
        layers=diagram(spec),
        toml=settings,
        command=None if settings is None else f"vantage train {FILE}",
        why_not=why,
    )


def cache(spec: ModelSpec) -> list[ContextBytes]:
    """Window layers in a ring where that is smaller. Nothing for an encoder."""
    if not spec.generates:
        return []
    kind = CacheChoice("own", spec)
    return [ContextBytes(context=n, bytes=kind.bytes(n, 1, torch.bfloat16)) for n in CONTEXTS]


def diagram(spec: ModelSpec) -> list[BlockEntry]:
    """Each block, encoder first."""
    inner = [] if spec.encoder is None else diagram(spec.encoder)
    return inner + [_block(spec, i, layer) for i, layer in enumerate(spec.layers)]


def _block(spec: ModelSpec, index: int, layer: Layer) -> BlockEntry:
    shape = layer.attention.shape(spec.width)
    acting = [*spec.embedding.inputs, *layer.qk, *filter(None, (layer.bias, layer.value_bias))]
    wiring: Any = layer.wiring
    return BlockEntry(
        name=f"layer {index}",
        stack="encoder" if spec.kind == "encoder" else "decoder",
        mask=repr(layer.mask),
        window=layer.mask.reach(),
        position=[type(part).__name__ for part in acting],
        attention=type(layer.attention).__name__,
        around=list(_around(layer)),
        heads=shape.heads,
        kv_heads=layer.attention.cache_shape(spec.width).kv_heads,
        head_width=shape.key_dim,
        cross=layer.cross is not None,
        ffn=_describe_ffn(layer.ffn),
        norm=type(layer.norm).__name__,
        wiring="parallel" if isinstance(wiring, Parallel) else _wired(wiring),
    )


def _around(layer: Layer) -> Iterator[str]:
    """What an attention has beside its heads, by the titles of the parts."""
    if layer.source is not None:
        yield "shared keys"  # not whose: layers that differ in that alone are drawn once
    titles = {entry.config: entry.title for registry in (INDEXERS, OUTPUT_PARTS) for entry in registry.entries()}
    chosen = () if layer.indexer is None else (layer.indexer,)
    yield from (titles[type(part)].lower() for part in (*chosen, *layer.output))


def _wired(wiring: Wiring) -> str:
    return "sandwich" if wiring.before and wiring.after else "pre" if wiring.before else "post"


def _describe_ffn(ffn: Any) -> str:
    if isinstance(ffn, Experts):
        router: Any = ffn.router
        return f"{router.k} of {ffn.count} experts: {_describe_ffn(ffn.expert)}"
    return f"{'gated ' if ffn.gated else ''}{ffn.activation}, {ffn.hidden:,} wide"


# ---- training it


def training(built: BuiltModel, task: str) -> tuple[str | None, str | None]:
    """Settings for ``vantage train``, read back and held to the same spec; or why there are none."""
    try:
        text = _settings(built, task)
        section: Any = settings_of(tomllib.loads(text)).model
        _check_same(section, built)
        _check_rows(built.spec, section.reads, task)
    except VantageError as e:
        return None, str(e)
    return text, None


def _settings(built: BuiltModel, task: str) -> str:
    form = built.form
    if built.full is not None:
        raise Refused(
            "the settings of vantage train have no layer patterns: train this spec from Python, vt.build(spec)"
        )
    options = {name: value for name, value in built.options.items() if name != "vocab"}
    data = {"is": "task", "task": task, "lengths": LENGTHS, "test_lengths": (LENGTHS[1], 2 * LENGTHS[1])}
    tables = {
        "model": {"is": form.kind, **shown(options, SECTIONS[form.kind])},
        "data": data,
        "loop": {"steps": form.steps, "batch": 64},
        "optimiser": {"is": "adamw", "lr": 1e-3},
        "schedule": {"is": "cosine", "warmup": min(100, form.steps // 10)},
        "evaluate": {"every": max(1, form.steps // 5)},
    }
    return NOTE + toml(tables)


def _check_same(section: Any, built: BuiltModel) -> None:
    """The section must mean the spec that is shown, vocabulary apart."""
    vocab = built.form.vocab
    meant = section.spec(DataFacts(vocab, 0, classes=2) if built.form.kind == "encoder" else vocab)
    assert meant == built.spec, "the settings mean another model than the one that is shown"


def _check_rows(spec: ModelSpec, reads: Reads, task: str) -> None:
    """A learned table must reach over the rows of the task."""
    if (rows := spec.max_positions) is None:
        return
    top = 2 * LENGTHS[1]
    batch = Sequences(task_of(task), reads, (top, top), (top,), 16).batch(range(16))
    longest = max(batch.tokens.shape[1], 0 if batch.source is None else batch.source.shape[1])
    if longest > rows:
        raise Refused(f"{task} has rows of {longest} tokens, and the table {rows}: raise max_length to train on it")
