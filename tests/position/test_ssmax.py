"""SSMax: the worked number, transformers' module, counts in documents, padding and windows, and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from transformers.models.mistral_large4.modeling_mistral_large4 import MistralLarge4TextSoftmaxScaling

import vantage as vt
from tests.position.helpers import F64, SHAPE, built, vectors
from vantage.checkpoints.spec_json import from_json, to_json
from vantage.errors import BadInput, Refused
from vantage.position import LogTemperature, NoPE, Rope, SSMax
from vantage.spec.positions import Positions


def factors(part: torch.nn.Module, pos: Positions) -> torch.Tensor:
    """What the queries of the first head are multiplied by, (B, T)."""
    return part.query(torch.ones(*pos.shape, dtype=F64)[:, None, :, None].expand(-1, SHAPE.heads, -1, -1), pos)[
        :, 0, :, 0
    ]


def test_the_worked_number():
    """One key 3 above n - 1 equal others: .691, .169, .020 at n = 10, 100, 1000; with .43·ln n .684, .793, .881."""
    part = built(LogTemperature(biased=False))
    torch.nn.init.constant_(part.scale, 0.43)
    lengths = (10, 100, 1000)
    factor = factors(part, Positions.of(torch.tensor([n - 1 for n in lengths])))[0].tolist()

    def weight(n: int, times: float) -> float:
        return math.exp(3 * times) / (math.exp(3 * times) + n - 1)

    assert [weight(n, 1) for n in lengths] == pytest.approx([0.691, 0.169, 0.020], abs=5e-4)
    assert [weight(n, f) for n, f in zip(lengths, factor, strict=True)] == pytest.approx(
        [0.684, 0.793, 0.881], abs=5e-4
    )


def test_transformers_has_the_same():
    part, theirs = built(LogTemperature()), MistralLarge4TextSoftmaxScaling(SHAPE.heads).double()
    theirs.load_state_dict(part.state_dict())
    q, pos = vectors(2, SHAPE.heads, 5, 6), Positions.rows([5, 5], [0, 90])
    torch.testing.assert_close(part.query(q, pos), theirs(q, pos.pos, head_dim_first=True), rtol=1e-6, atol=1e-6)
    assert part.key(q, pos) is q


def test_each_document_counts_for_itself_and_padding_not_at_all():
    part = built(LogTemperature())
    alone = factors(part, Positions.arange(1, 4))
    torch.testing.assert_close(factors(part, Positions.packed([[3, 4]]))[:, 3:], alone)
    torch.testing.assert_close(factors(part, Positions.rows([4], width=6, pad="left"))[:, 2:], alone)
    assert factors(part, Positions.rows([4], width=6)).isfinite().all()


def test_the_count_is_not_the_position_and_stops_at_a_window():
    part = built(LogTemperature(window=3))
    stretched = Positions.of(torch.tensor([[0, 7, 9, 40, 90]]), order=torch.arange(5)[None])
    plain = factors(part, Positions.arange(1, 5))
    torch.testing.assert_close(factors(part, stretched), plain)
    assert plain[0, 2] == plain[0, 3] == plain[0, 4] != plain[0, 1]
    with pytest.raises(BadInput, match="window=1"):
        LogTemperature(window=1)
    assert part.counts_tokens  # whoever moves tokens and looks for a change must know
    two = factors(built(LogTemperature(window=2)), Positions.arange(1, 3))
    assert two[0, 0] != two[0, 1] == two[0, 2]


def test_it_stands_behind_any_encoding():
    assert SSMax(NoPE()).parts(causal=True).qk == (LogTemperature(),)
    assert SSMax(Rope(base=50.0), 1.0, False).parts(causal=True).qk == (Rope(base=50.0), LogTemperature(1.0, False))
    assert SSMax(vt.Alibi()).parts(causal=True).bias == vt.Alibi()
    with pytest.raises(Refused, match="causal"):
        SSMax().parts(causal=False)


@torch.no_grad()
def test_a_spec_as_json_and_a_model_in_steps():
    spec = vt.decoder(vocab=19, width=16, layers=2, heads=2, position=SSMax(vt.Alibi(), window=9))
    assert from_json(to_json(spec), most=10) == spec
    model = vt.build(spec, seed=0).double().eval()
    tokens, cache = torch.arange(12)[None] % 19, model.new_cache(1)
    steps = torch.cat([model(tokens[:, i : i + 1], cache=cache) for i in range(12)], 1)
    torch.testing.assert_close(steps, model(tokens))


def test_gradients():
    part, pos = built(LogTemperature()), Positions.rows([4, 2], [0, 6])
    q = vectors(2, SHAPE.heads, 4, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, *_: part.query(q, pos), (q, part.scale, part.bias))
