"""T1: the original encoder-decoder, and two slips of a snippet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vantage.figures import Bars, Figure, Heat
from vantage.model import Model, encoder_decoder
from vantage.model.norms import LayerNorm
from vantage.position import sinusoid
from vantage.spec.positions import Positions
from vantage.studies.shared.findings import compared, conclude, judged
from vantage.studies.shared.models import F64, max_difference, random_normal, random_tokens, sharp_model
from vantage.studies.study import Progress, Result, Values
from vantage.studies.text import StudyText
from vantage.training.learners import losses

TEXT = StudyText.beside(__file__)

VOCAB, WIDTH, HEADS = 13, 16, 4
ROUNDING, SEEN = 1e-10, 1e-6


def run(values: Values, progress: Progress) -> Result:
    layers, source_length, target_length = (int(values[name]) for name in ("layers", "source", "target"))
    model = _model(layers)
    source, target = random_tokens(source_length, VOCAB), random_tokens(target_length, VOCAB, seed=1)
    progress(0.2, "torch's transformer with the same weights")
    error = _against_torch(model, layers, source, target)
    progress(0.5, "who sees whom")
    past = _reach(target, lambda changed: model(changed, source=source))
    across = _reach(source, lambda changed: model(target, source=changed))
    inside = _reach(source, lambda changed: model.encode(changed).hidden)
    progress(0.8, "the snippet's way")
    ours, theirs = _in_place(model)
    logits, right = _outputs(model, source, target)
    numbers = [
        judged("largest difference from torch.nn.Transformer, same weights", error, error < ROUNDING),
        judged("most that a later target token changes an earlier output", _above(past), _above(past) == 0.0),
        judged(
            "least that a source token changes an output of the decoder",
            float(across.min()),
            bool((across > SEEN).all()),
        ),
        judged(
            "least that a source token changes an output of the encoder",
            float(inside.min()),
            bool((inside > SEEN).all()),
        ),
        judged("our encoding changes its argument by", ours, ours == 0.0),
        judged("our outputs, sum of a row: no softmax", float(logits[0].sum()), abs(float(logits[0].sum()) - 1) > 0.01),
        judged("loss of a sure and right answer, from logits", right["logits"], right["logits"] < 0.01),
    ]
    slips = [
        compared("the snippet's encoding changes its argument by (harmless: 0)", theirs, 0.0),
        compared(
            "loss of a sure and right answer, from the snippet's softmax (0 if it were right)",
            right["softmax"],
            0.0,
            within=0.01,
        ),
    ]
    progress(1.0, "done")
    words = TEXT.conclusion(right=right["softmax"])
    return conclude(words, numbers, _figures(past, across, inside, right), slips)


def _model(layers: int) -> Model:
    """With a norm at the end of both stacks, as torch's has it."""
    spec = encoder_decoder(vocab=VOCAB, width=WIDTH, layers=layers, heads=HEADS)
    assert spec.encoder is not None
    return sharp_model(replace(spec, norm=LayerNorm(), encoder=replace(spec.encoder, norm=LayerNorm())))


# ---- against torch's


@torch.no_grad()
def _against_torch(model: Model, layers: int, source: Tensor, target: Tensor) -> float:
    assert model.encoder is not None
    theirs = _torchs(layers)
    _copy(model.encoder, theirs.encoder)
    _copy(model, theirs.decoder)
    read = model.encoder.embed(source, Positions.arange(1, source.shape[1]))
    embedded = model.embed(target, Positions.arange(1, target.shape[1]))
    future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    return max_difference(model.hidden(target, source=source), theirs(read, embedded, tgt_mask=future))


def _torchs(layers: int) -> Any:
    options: dict[str, Any] = {"dim_feedforward": 4 * WIDTH, "dropout": 0.0, "batch_first": True, "dtype": F64}
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, **options),
        layers,
        nn.LayerNorm(WIDTH, dtype=F64),
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(WIDTH, HEADS, **options), layers, nn.LayerNorm(WIDTH, dtype=F64)
    )
    return nn.Transformer(WIDTH, HEADS, custom_encoder=encoder, custom_decoder=decoder, **options).eval()


def _copy(stack: Any, theirs: Any) -> None:
    """The weights of our stack into torch's."""
    theirs.norm.load_state_dict(stack.norm.state_dict())
    for block, layer in zip(stack.blocks, theirs.layers, strict=True):
        steps = list(block.steps)
        for step, norm in zip(steps, ("norm1", "norm2", "norm3"), strict=False):
            getattr(layer, norm).load_state_dict(step.outer.state_dict())
        own = steps[0].sublayer
        _attention(layer.self_attn, own.qkv.weight, own.qkv.bias, own.out)
        if len(steps) == 3:
            cross = steps[1].sublayer
            weight, bias = (torch.cat([getattr(cross.q, kind), getattr(cross.kv, kind)]) for kind in ("weight", "bias"))
            _attention(layer.multihead_attn, weight, bias, cross.out)
        layer.linear1.load_state_dict(steps[-1].sublayer.up.state_dict())
        layer.linear2.load_state_dict(steps[-1].sublayer.down.state_dict())


def _attention(theirs: Any, weight: Tensor, bias: Tensor, out: nn.Module) -> None:
    theirs.in_proj_weight.copy_(weight)
    theirs.in_proj_bias.copy_(bias)
    theirs.out_proj.load_state_dict(out.state_dict())


# ---- who sees whom


@torch.no_grad()
def _reach(tokens: Tensor, outputs: Any) -> Tensor:
    """(outputs, tokens): how much each output changes when one token does."""
    before, columns = outputs(tokens), []
    for i in range(tokens.shape[1]):
        changed = tokens.clone()
        changed[0, i] = (changed[0, i] + 1) % VOCAB
        columns.append((outputs(changed) - before)[0].abs().amax(-1))
    return torch.stack(columns, 1)


def _above(reach: Tensor) -> float:
    return float(reach.triu(1).max())


# ---- the snippet


@torch.no_grad()
def _in_place(model: Model) -> tuple[float, float]:
    """How much the argument of an encoding changes: ours, and a sum in place as the snippet writes it."""
    x = random_normal(1, 6, WIDTH)
    before = x.clone()
    model.embed.inputs[0](x, Positions.arange(1, 6))
    ours = max_difference(x, before)
    x += sinusoid(torch.arange(6), WIDTH)
    return ours, max_difference(x, before)


@torch.no_grad()
def _outputs(model: Model, source: Tensor, target: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Logits, and the loss of a model that is sure and right, if it returns logits and if it returns a softmax."""
    logits = model(target, source=source)[0]
    sure = torch.full((1, VOCAB), -50.0, dtype=F64)
    sure[0, 3] = 50.0
    wanted = torch.tensor([3])
    return logits, {
        "logits": float(losses(sure, wanted)),
        "softmax": float(losses(sure.softmax(-1), wanted)),
        "guess": float(losses(torch.zeros_like(sure), wanted)),
    }


def _figures(past: Tensor, across: Tensor, inside: Tensor, right: dict[str, float]) -> list[Figure]:
    def heat(title: str, x: str, y: str, cells: Tensor) -> Heat:
        shown = [[value if value > 0 else None for value in row] for row in cells.tolist()]
        return Heat(title, x, y, shown)

    names = ("from logits", "from a softmax", "a blind guess")
    return [
        Figure(
            "reach",
            TEXT.caption("reach"),
            (
                heat("Decoder: its own tokens", "target token", "output", past),
                heat("Decoder: the source", "source token", "output", across),
                heat("Encoder: the source", "source token", "output", inside),
            ),
        ),
        Figure(
            "loss",
            TEXT.caption("loss"),
            (Bars("Loss of a sure and right answer", "nats", names, (("loss", list(right.values())),)),),
        ),
    ]


STUDY = TEXT.study(
    "T1",
    run,
    (
        TEXT.parameter("layers", 2, 1, 4),
        TEXT.parameter("source", 7, 2, 16),
        TEXT.parameter("target", 6, 2, 16),
    ),
    seconds=1.0,
)
