"""P8: RoPE turns queries and keys; with a cache, code that starts at 0 turns them wrongly."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vantage.attention.grouped import GroupedQueryAttention
from vantage.figures import Figure, Line, Lines
from vantage.functional import apply_rope
from vantage.model import Model, decoder
from vantage.position import Rope, Sinusoidal, permutation
from vantage.position.rope import Rotation, rotate, turns
from vantage.position.scaling import Default
from vantage.position.sinusoidal import SinusoidalInput
from vantage.spec.parts import Attended, Need, Shape, View
from vantage.spec.positions import Positions
from vantage.studies.shared.findings import compared, conclude, judged
from vantage.studies.shared.models import (
    ROUNDING,
    max_difference,
    on_log_axis,
    random_normal,
    random_tokens,
    sharp_model,
)
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

DIM, PAIRS = 64, 64  # of a head, and how many pairs of a query and a key are looked at
BEHIND = 7  # how far the key stands behind the query
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FAR = 15  # positions up to 2^15: half precision knows numbers up to 65,504
VOCAB, PROMPT = 23, 8
WRONG = 0.01  # logits further apart than this are other logits


# ---- the exhibits: S3's code, which has no positions to be told. Not for use.


@dataclass(frozen=True)
class RopeFromZero:
    """S3's ``apply_rope``: whatever it is given, the first token of it stands at 0."""

    shared = True  # no annotation: not a field

    def build(self, shape: Shape) -> nn.Module:
        return _RotationFromZero(Rope(), shape.rotary_dim)


class _RotationFromZero(Rotation):
    def turn(self, x_BHTd: Tensor, pos: Positions) -> Tensor:
        return super().turn(x_BHTd, Positions.arange(*pos.shape, device=pos.device))

    def query_and_key(self, q_BHTd: Tensor, k_BGTd: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
        return self.turn(q_BHTd, pos), self.turn(k_BGTd, pos)


@dataclass(frozen=True)
class SinusoidalFromZero:
    """S3's sinusoidal module, with the same fault."""

    shared = True  # no annotation: not a field

    def build(self, shape: Shape) -> nn.Module:
        return _SinusoidFromZero(Sinusoidal())


class _SinusoidFromZero(SinusoidalInput):
    def forward(self, x_BTD: Tensor, pos: Positions) -> Tensor:
        return super().forward(x_BTD, Positions.arange(*pos.shape))


# ---- the study


def run(values: Values, progress: Progress) -> Result:
    steps, seed = int(values["steps"]), int(values["seed"])
    x, y = random_normal(PAIRS, DIM, seed=seed), random_normal(PAIRS, DIM, seed=seed + 1)
    progress(0.1, "the identities")
    numbers = [*_identities(x, y), *_values(seed), *_pairings(seed)]
    slips = [_both_in_one_breath(seed)]
    progress(0.3, "precision")
    ours = {name: _off(x, y, dtype, exact=True) for name, dtype in DTYPES.items()}
    theirs = {name: _off(x, y, dtype, exact=False) for name, dtype in DTYPES.items()}
    for name, dtype in DTYPES.items():
        bound, worst = 2 * torch.finfo(dtype).eps, max(ours[name])
        what = f"shift identity in {name}, angles in float64: worst error (below {bound:.2g})"
        numbers.append(judged(what, worst, worst < bound))
        numbers.append(Number(f"the same with angles in {name}, at position {2**FAR:,}", theirs[name][-1]))
    progress(0.6, "decoding with a cache")
    errors = _cached(steps, seed)
    for name in ("RoPE", "sinusoidal"):
        numbers.append(
            compared(f"{name} at its positions: cached steps against one pass", max(errors[name]), 0.0, within=ROUNDING)
        )
        wrong = errors[f"{name} from 0"]
        slips.append(
            compared(
                f"S3's {name} from 0: logits of the cached steps, least error", min(wrong[PROMPT:]), 0.0, within=WRONG
            )
        )
    words = TEXT.conclusion()
    progress(1.0, "done")
    return conclude(words, numbers, [_decoding(errors), _precision(ours, theirs)], slips)


def _identities(x: Tensor, y: Tensor) -> list[Number]:
    def dots(m: int, n: int) -> Tensor:
        return (at(x, m) * at(y, n)).sum(-1)

    moved = max(max_difference(dots(BEHIND + s, s), dots(BEHIND, 0)) for s in (1, 10, 100, 1000, 10_000))
    freq, _ = Default().frequencies(DIM, 10000.0, None)
    complex_form = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(freq), 100 * freq)
    adjacent = at(x, 100, Rope(pairing="adjacent"))
    module = Rotation(Rope(), DIM)
    return [
        compared("⟨R(m+s)x, R(n+s)y⟩ − ⟨R(m)x, R(n)y⟩, s to 10,000", moved, 0.0, within=1e4 * ROUNDING),
        compared("‖R(t)x‖ − ‖x‖", max_difference(at(x, 12_345).norm(dim=-1), x.norm(dim=-1)), 0.0, within=ROUNDING),
        compared(
            "against e^(jtω)·z",
            max_difference(adjacent, torch.view_as_real(complex_form).flatten(-2)),
            0.0,
            within=ROUNDING,
        ),
        compared("parameters", sum(p.numel() for p in module.parameters()), 0),
    ]


def at(x: Tensor, position: int, rope: Rope = Rope()) -> Tensor:
    """x (n, d), all turned to one position."""
    return apply_rope(x[:, None], torch.tensor([position]), rope)[:, 0]


@torch.no_grad()
def _values(seed: int) -> list[Number]:
    """Keys and values of the first layer, the text once at 0 and once further on."""
    model, tokens, seen = _paired("halves", seed), random_tokens(12, VOCAB, seed), []

    def watch(site: str, index: int, view: View, need: Need, attended: Attended) -> None:
        if index == 0:
            seen.append(view)

    for start in (0, 1000):
        model.hidden(tokens, positions=torch.arange(start, start + 12), watch=watch)
    keys, values = (max_difference(a, b) for a, b in zip(seen[0][:2], seen[1][:2], strict=True))
    return [
        judged("keys of a text at 1,000 against the same at 0: change", keys, keys > WRONG),
        compared("values of the same: change", values, 0.0),
    ]


# ---- pairings


def _pairings(seed: int) -> list[Number]:
    adjacent, halves = _paired("adjacent", seed), _paired("halves", seed)
    for block in halves.blocks:
        _reorder(block)
    tokens = random_tokens(12, VOCAB, seed)
    with torch.no_grad():
        return [
            compared(
                "adjacent pairs against halves, rows of q and k reordered",
                max_difference(adjacent(tokens), halves(tokens)),
                0.0,
                within=ROUNDING,
            )
        ]


def _both_in_one_breath(seed: int) -> Number:
    adjacent, halves = _paired("adjacent", seed), _paired("halves", seed)
    tokens = random_tokens(12, VOCAB, seed)
    with torch.no_grad():
        return compared(
            "the same weights with both pairings, as S2 has it",
            max_difference(adjacent(tokens), halves(tokens)),
            0.0,
            within=WRONG,
        )


def _paired(pairing: str, seed: int) -> Model:
    return sharp_model(
        decoder(vocab=VOCAB, width=32, layers=2, heads=4, kv_heads=2, position=Rope(pairing=pairing)), seed
    )


@torch.no_grad()
def _reorder(block: nn.Module) -> None:
    """From adjacent pairs to halves: the rows of each head of q and of k, and none of v."""
    attention = next(part for part in block.modules() if isinstance(part, GroupedQueryAttention))
    weight = attention.get_parameter("qkv.weight")
    q, k, v = weight.split(attention.widths)
    order = permutation(attention.shape.key_dim)
    parts = [p.unflatten(0, (-1, len(order)))[:, order].flatten(0, 1) for p in (q, k)]
    weight.copy_(torch.cat([*parts, v]))


# ---- precision


def _shifts() -> Tensor:
    return torch.tensor([0, *(2**i for i in range(FAR + 1))])


def _off(x: Tensor, y: Tensor, dtype: torch.dtype, *, exact: bool) -> list[float]:
    """The error of the shift identity for each shift, as a share of ‖x‖·‖y‖: the mean over the pairs.

    ``exact``: angles in float64, as the library has them, and the vectors alone in ``dtype``.
    """
    truth = (at(x, BEHIND) * at(y, 0)).sum(-1, keepdim=True)
    q, k = (_turned(v, _shifts() + behind, dtype, exact).double() for v, behind in ((x, BEHIND), (y, 0)))
    size = (x.norm(dim=-1) * y.norm(dim=-1))[:, None]
    return (((q * k).sum(-1) - truth).abs() / size).mean(0).tolist()


def _turned(x: Tensor, pos: Tensor, dtype: torch.dtype, exact: bool) -> Tensor:
    """(n, shifts, d)."""
    wide = x[:, None].expand(-1, len(pos), -1).to(dtype)
    if exact:
        return apply_rope(wide, pos)
    freq, factor = Default().frequencies(DIM, 10000.0, None)
    cos, sin = turns(pos[None], freq.to(dtype), factor, "halves", dtype)
    return rotate(wide, cos[0], sin[0], "halves")


# ---- a cache


def _cached(steps: int, seed: int) -> dict[str, list[float]]:
    """How far the logits of a prompt and single steps after it are from those of one pass, token by token."""
    turned = decoder(vocab=VOCAB, width=32, layers=2, heads=2)
    added = decoder(vocab=VOCAB, width=32, layers=2, heads=2, position="sinusoidal")
    specs = {
        "RoPE": turned,
        "RoPE from 0": replace(turned, layers=tuple(replace(layer, qk=(RopeFromZero(),)) for layer in turned.layers)),
        "sinusoidal": added,
        "sinusoidal from 0": replace(added, embedding=replace(added.embedding, inputs=(SinusoidalFromZero(),))),
    }
    return {
        name: stepwise(sharp_model(spec, seed), random_tokens(PROMPT + steps, VOCAB, seed))
        for name, spec in specs.items()
    }


@torch.no_grad()
def stepwise(model: Model, tokens: Tensor) -> list[float]:
    cache = model.new_cache()
    parts = [model(tokens[:, :PROMPT], cache=cache)]
    parts += [model(tokens[:, t : t + 1], cache=cache) for t in range(PROMPT, tokens.shape[1])]
    return (torch.cat(parts, 1) - model(tokens)).abs().amax((0, 2)).tolist()


def _decoding(errors: dict[str, list[float]]) -> Figure:
    lines = tuple(
        Line(
            name,
            list(range(len(error))),
            [on_log_axis(e) for e in error],
            look="dashed" if "from 0" in name else "solid",
        )
        for name, error in errors.items()
    )
    panel = Lines("a prompt of 8 tokens, then one at a time", "token", "error of its logits", lines, log_y=True)
    return Figure("cache", TEXT.caption("cache"), (panel,))


def _precision(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> Figure:
    x = [float(s) for s in _shifts()][1:]
    panels = tuple(
        Lines(
            title,
            "shift s",
            "error / (‖x‖·‖y‖)",
            tuple(Line(name, x, [on_log_axis(e) for e in error[1:]]) for name, error in of.items()),
            log_x=True,
            log_y=True,
        )
        for title, of in (("angles in float64 (ours)", ours), ("angles in the vectors' type", theirs))
    )
    return Figure("precision", TEXT.caption("precision"), panels)


STUDY = TEXT.study(
    "P8",
    run,
    (
        TEXT.parameter("steps", 16, 2, 64),
        TEXT.parameter("seed", 0, 0, 1000),
    ),
    seconds=1.0,
)
