"""P7: a relative encoding knows distances only; and which published systems use which."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.families.table import systems
from vantage.figures import Bars, Figure, Heat
from vantage.inspect import decompose
from vantage.model import Model, decoder
from vantage.position import ENCODINGS, T5, Learned, Shifted, Sinusoidal, ropes_among, sinusoid
from vantage.position.alibi import Alibi
from vantage.position.shifted import ShiftedBias
from vantage.position.xl import DistanceTerm
from vantage.spec.model import ModelSpec
from vantage.spec.parts import BiasInputs
from vantage.spec.positions import Positions
from vantage.studies.shared.findings import compared, conclude, judged
from vantage.studies.shared.models import ROUNDING, max_difference, on_log_axis, random_normal, sharp_model
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

VOCAB, WIDTH, HEADS, COUNT = 11, 16, 2, 12
LONGEST = 4096
ABSOLUTE = ("sinusoidal", "learned")
NEITHER = {
    "fire": "it divides by the query's position",
    "ssmax": "it counts from the first position",
    "fope": "it adds several waves, which is no rotation",
}
MOVED = 1e-3  # a change above this is one
LOST = 1000 * ROUNDING  # what float64 loses of an angle some thousands of positions out
LEARNED, ROTARY, OTHER = "learned absolute", "RoPE", "sinusoidal"
# S0's table, and what S3 adds to it
DOCUMENT = {
    **dict.fromkeys(("GPT-1", "GPT-2", "GPT-3", "BERT", "ViT"), LEARNED),
    "Gopher": "learned relative",
    **dict.fromkeys(
        ("PaLM", "LLaMA 1", "LLaMA 2", "LLaMA 3", "Grok-1", "Grok-2", "Qwen-3", "Gemma 3", "Mistral"), ROTARY
    ),
    **dict.fromkeys(("DeepSeek-V2", "DeepSeek-V3"), "decoupled RoPE"),
    "LLaMA-4": "iRoPE",
    "Transformer": OTHER,
}


def run(values: Values, progress: Progress) -> Result:
    shift, seed = int(values["shift"]), int(values["seed"])
    tokens = torch.randint(VOCAB, (1, COUNT), generator=torch.Generator().manual_seed(seed))
    changes: dict[str, float] = {}
    for i, name in enumerate(ENCODINGS):
        progress(0.7 * i / len(ENCODINGS), name)
        changes[name] = moved(_model(name, seed), tokens, shift)
    numbers: list[Number] = []
    for name, change in changes.items():
        what = f"{name}: change of the output when the text begins at {shift}"
        if name in NEITHER:
            numbers.append(Number(f"{what} ({NEITHER[name]})", change))
        elif name in ABSOLUTE:
            numbers.append(judged(what, change, change > MOVED, "absolute"))
        else:
            numbers.append(compared(what, change, 0.0, within=LOST))
    numbers.append(
        compared("S0's shifted encoding: bias − scale·q·PE(anchor − (i − j))", _shifted(), 0.0, within=ROUNDING)
    )
    progress(0.8, "the published systems")
    kinds = {system.name: kind(system.spec()) for system in systems() if system.name in DOCUMENT}
    numbers += [compared(name, kinds.get(name, "not there"), claim) for name, claim in DOCUMENT.items()]
    words = TEXT.conclusion()
    progress(1.0, "done")
    return conclude(words, numbers, [_scores(seed), _bars(changes)])


@torch.no_grad()
def moved(model: Model, tokens: Tensor, shift: int) -> float:
    """How much the output changes when all positions are ``shift`` higher."""
    at = torch.arange(tokens.shape[1])
    return max_difference(model.hidden(tokens, positions=at + shift), model.hidden(tokens, positions=at))


def kind(spec: ModelSpec) -> str:
    """What a spec's layers and inputs say of its position encoding, in the words of the tables."""
    first = spec.layers[0]
    shape = first.attention.shape(spec.width)
    turning = sum(bool(ropes_among(layer.qk)) for layer in spec.layers)
    if 0 < turning < len(spec.layers):
        return "iRoPE"
    if turning:
        return "decoupled RoPE" if shape.rotary_dim < shape.key_dim else ROTARY
    if isinstance(first.bias, (DistanceTerm, T5)):
        return "learned relative"
    if isinstance(first.bias, Alibi):
        return "ALiBi"
    inputs = spec.embedding.inputs
    if any(isinstance(part, Learned) for part in inputs):
        return LEARNED
    return OTHER if any(isinstance(part, Sinusoidal) for part in inputs) else "none"


def _model(position: str, seed: int) -> Model:
    spec = decoder(vocab=VOCAB, width=WIDTH, layers=2, heads=HEADS, position=position, max_length=LONGEST)
    model = sharp_model(spec, seed)
    return model


def _shifted(anchor: int = 3) -> float:
    """The library's bias, made as one matrix product, against S0's words: every query stands at ``anchor``."""
    dim, scale = 8, 0.5
    bias = ShiftedBias(Shifted(anchor), dim)
    q, pos = random_normal(1, HEADS, COUNT, dim), Positions.arange(1, COUNT)
    i, j = torch.arange(COUNT)[:, None], torch.arange(COUNT)
    encoded = sinusoid(anchor - (i - j), dim)  # (T, S, d)
    value = bias.at(BiasInputs(q, q, q, pos, pos, scale)).value
    return max_difference(value, scale * torch.einsum("bhid,ijd->bhij", q, encoded))


def _scores(seed: int) -> Figure:
    """The scores of the first layer, the same token at every place."""
    tokens = torch.full((1, COUNT), 3)
    panels = []
    for name in ("learned", "rope", "t5"):
        score = decompose(_model(name, seed), tokens, layer=0, heads=0).score[0]
        seen: list[list[float | None]] = [
            [value if value > float("-inf") else None for value in row] for row in score.tolist()
        ]
        panels.append(Heat(name, "key j", "query i", seen, diverging=True))
    return Figure("stripes", TEXT.caption("stripes"), tuple(panels))


def _bars(changes: dict[str, float]) -> Figure:
    heights = [on_log_axis(change) for change in changes.values()]
    bars = Bars(
        "the text begins elsewhere", "largest change of the output", tuple(changes), (("change", heights),), log_y=True
    )
    return Figure("shift", TEXT.caption("shift"), (bars,))


STUDY = TEXT.study(
    "P7",
    run,
    (
        TEXT.parameter("shift", 1000, 1, LONGEST - COUNT),
        TEXT.parameter("seed", 0, 0, 1000),
    ),
    seconds=2.0,
)
