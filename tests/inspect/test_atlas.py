"""Heads made to do one thing are measured and called so; real models have such heads (A17)."""

from __future__ import annotations

import math

import pytest
import torch

from tests.inspect.models import TEXT, model, published, tokens
from vantage.errors import BadInput
from vantage.inspect import Thresholds, atlas
from vantage.inspect.atlas import _kinds
from vantage.inspect.measure import LOCAL, MEASURES, measure
from vantage.inspect.sites import KernelCall, Site
from vantage.kernels import kernel_named
from vantage.spec.masks import Causal, Everything, Mask
from vantage.spec.parts import Need, View
from vantage.spec.positions import Positions

N = 48
SHARP = 60.0


def seen(q: torch.Tensor, k: torch.Tensor, mask: Mask) -> KernelCall:
    """One attention with these queries and keys (H, T, d)."""
    pos = Positions.arange(1, q.shape[1])
    view, need = View(k[None], k[None], pos), Need(mask, 1.0)
    out = kernel_named("reference")(q[None], view, pos.against(pos), need).out
    site = Site("self", 0, len(q), model().spec.layers[0], 32, None)
    return KernelCall(site, "reference", q[None], view, pos.against(pos), need, out)


def made(words: torch.Tensor, mask: Mask) -> dict[str, dict[str, float]]:
    """Heads that do one thing each, out of one-hot queries and keys."""
    place, word = torch.eye(N).double(), torch.nn.functional.one_hot(words, 64).double()
    place, word = torch.nn.functional.pad(place, (0, 64 - N)), word
    before = torch.cat((word[:1] * 0, word[:-1]))
    flat = torch.zeros_like(word)
    heads = {
        "previous": (place.roll(1, 0), place),
        "first": (place[:1].expand_as(place), place),
        "itself": (place, place),
        "same": (word, word),
        "induction": (word, before),
        "uniform": (flat, flat),
    }
    q = torch.stack([SHARP * q for q, _ in heads.values()])
    k = torch.stack([k for _, k in heads.values()])
    facts = measure(seen(q, k, mask), words, N // 2)
    return {name: {m: float(facts[m][i]) for m in MEASURES} for i, name in enumerate(heads)}


WORDS = torch.randperm(64, generator=torch.Generator().manual_seed(1))[: N // 2].repeat(2)
WORDS[5] = WORDS[N // 2 + 5] = WORDS[2]  # a word that comes again


def test_every_measure_on_a_head_that_does_just_that() -> None:
    facts = made(WORDS, Causal())
    assert facts["previous"]["previous"] == pytest.approx(1)
    assert facts["previous"]["distance"] == pytest.approx((N - 1) / N, abs=0.05)  # the first query has only itself
    assert facts["first"]["first"] == pytest.approx(1)
    assert facts["itself"]["itself"] == pytest.approx(1)
    assert facts["itself"]["entropy"] == pytest.approx(0, abs=1e-9)
    assert facts["induction"]["induction"] > 0.9
    assert facts["same"]["same"] == pytest.approx(0.5)  # half on itself, half on where the word stood before
    assert facts["uniform"]["same"] == pytest.approx(1 / 6)  # the only word that came before, at 5, sees 6 keys
    assert facts["uniform"]["spread"] == pytest.approx(1)
    assert facts["uniform"]["local"] == pytest.approx(
        sum(LOCAL / (i + 1) for i in range(2 * LOCAL, N)) / (N - 2 * LOCAL)
    )
    for name in ("previous", "first", "itself", "uniform"):
        assert facts[name]["positional"] > 0.93, name
    assert facts["induction"]["positional"] < facts["previous"]["positional"] - 0.1
    for head in facts.values():
        assert math.isnan(head["diagonal"])  # of cross-attention only


def test_they_are_called_by_their_names() -> None:
    facts = made(WORDS, Causal())
    limits = Thresholds()
    assert [_kinds(facts[name], limits)[0] for name in ("previous", "first", "itself", "same", "induction")] == [
        "previous",
        "first",
        "itself",
        "same",
        "induction",
    ]
    assert _kinds(facts["uniform"], limits) == ("positional",)
    assert "previous" not in _kinds(facts["previous"], Thresholds(previous=1.1))


def test_heads_that_see_both_sides() -> None:
    facts = made(WORDS, Everything())
    assert facts["previous"]["previous"] == pytest.approx(1)
    assert facts["uniform"]["entropy"] == pytest.approx(math.log(N))
    assert facts["uniform"]["positional"] > 0.93


def test_an_atlas_is_printed_with_its_clearest_heads() -> None:
    found = atlas(model(), tokens(20), thresholds=Thresholds(first=0.0))
    first, *lines = str(found).splitlines()
    assert first == found.summary
    assert repr(found) == f"Atlas({found.summary})"
    sinks = next(line for line in lines if line.split()[0] == "first")
    best = found.of("first")[0]
    assert f" {best.layer}.{best.head} ({best.measures['first']:.2f})" in sinks
    assert sinks.endswith(", …") == (len(found.of("first")) > 5)


def test_an_atlas_of_every_kind_of_model() -> None:
    found = atlas(model(), tokens(30))
    assert len(found.heads) == 8
    assert found.tokens == 60
    assert sum(len(h.kinds) == 0 for h in found.heads) == found.counts["mixed"] == len(found.of("mixed"))
    both = atlas(model("rope", "cross"), tokens(9), source=tokens(7, seed=5))
    assert {h.site for h in both.heads} == {"encoder", "self", "cross"}
    across = next(h for h in both.heads if h.site == "cross")
    assert math.isnan(across.measures["previous"])
    assert 0 <= across.measures["diagonal"] <= 1
    only = atlas(model("rope", "grouped", "bidirectional"), tokens(20), layers=1, repeat=False)
    assert {h.layer for h in only.heads} == {1}
    assert only.to_dict()["heads"][0]["measures"]["diagonal"] is None
    assert len(atlas(model(), tokens(60)).heads) == 8  # cut so that it fits the context twice
    assert atlas(model(), tokens(60)).tokens == 64
    with pytest.raises(BadInput, match="no kind of head"):
        found.of("lazy")
    with pytest.raises(BadInput, match="longest=1"):
        atlas(model(), tokens(4), longest=1)
    assert "data:image/png" in found._repr_html_()
    assert "<td>induction</td>" in found.thresholds._repr_html_()
    assert "<td>entropy</td>" in found.heads[0]._repr_html_()
    assert "8 heads on 60 tokens" in repr(found)


def test_a_real_encoder_has_heads_of_its_own() -> None:
    found = atlas(published("minilm"), TEXT)
    assert len(found.heads) == 72
    assert found.of("previous")
    assert found.of("mixed")


@pytest.mark.slow
def test_a_real_decoder_has_the_heads_that_are_spoken_of() -> None:
    found = atlas(published("smollm2"), TEXT)
    assert len(found.heads) == 270
    assert all(found.of(kind) for kind in ("previous", "first", "induction", "local", "positional"))
    # a head that looks for what came after does so later than heads that look at the token before
    assert min(h.layer for h in found.of("previous")) < min(h.layer for h in found.of("induction"))
