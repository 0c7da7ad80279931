"""Scores in parts: the parts add up for every encoding, and are what their names say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vantage as vt
from tests.inspect.models import EACH, model, source, tokens
from vantage.conformance.factors import allowed_by, attentions, encodings, masks, rules
from vantage.errors import BadInput, Refused
from vantage.inspect import Decomposition, decompose, distinguishable
from vantage.spec.kept import PoolsKeys
from vantage.spec.positions import Positions
from vantage.spec.transforms import chain

N = 18


def term(parts: Decomposition, name: str) -> torch.Tensor:
    return next(t.value for t in parts.terms if t.name == name)


def refusal(attention: str) -> str | None:
    """Why scores are not taken apart: of a key that is not one token's alone, no part is a position's alone."""
    config = attentions()[attention].config
    if isinstance(config, PoolsKeys):
        return "CompressedAttention cannot show its queries and keys"
    return "convolves its queries and keys" if isinstance(config, vt.Canon) else None


def taken_apart(attention: str) -> bool:
    return refusal(attention) is None


@given(
    st.sampled_from(sorted(encodings())),
    st.sampled_from(sorted(filter(taken_apart, attentions()))),
    st.sampled_from(sorted(masks())),
    st.integers(2, 30),
    st.integers(0, 1),
)
def test_the_parts_add_up(encoding: str, attention: str, mask: str, n: int, layer: int) -> None:
    if not allowed_by(rules())({0: encoding, 1: attention, 2: mask}):
        return  # these refuse each other
    of = model(encoding, attention, mask)
    parts = decompose(of, tokens(n, seed=n), layer=layer, source=source(of))
    assert parts.error < 1e-12
    assert 0 <= float(parts.share().min()) <= float(parts.share().max()) <= 1


@pytest.mark.parametrize("attention", [name for name in attentions() if not taken_apart(name)])
def test_keys_of_several_tokens_are_not_taken_apart(attention: str) -> None:
    with pytest.raises(Refused, match=refusal(attention)):
        decompose(model("rope", attention), tokens(N), layer=1)


@pytest.mark.parametrize(
    "which", [w for w in EACH if w[0].startswith(("rope", "xpos")) and taken_apart(w[1])], ids="-".join
)
def test_bands_add_up_to_the_rotation(which: tuple[str, str, str]) -> None:
    of = model(*which)
    parts = decompose(of, tokens(N), layer=1, source=source(of))
    turned = next(t.value for t in parts.terms if "rotation" in t.name)
    assert parts.band_position is not None
    assert parts.frequency is not None
    torch.testing.assert_close(parts.band_position.sum(0), turned)
    share = parts.band_share()
    assert share is not None
    torch.testing.assert_close(share.sum(0), torch.ones(4, dtype=torch.float64))
    assert len(parts.frequency) == len(share)


def test_content_is_the_product_that_was_not_turned_and_bands_are_the_paper_s_terms() -> None:
    of, x = model(), tokens(N)
    parts = decompose(of, x, layer=0)
    attention = of.blocks[0].steps[0].sublayer
    with torch.no_grad():
        hidden = of.blocks[0].steps[0].before(of.embed(x, Positions.arange(1, N)))
        q, k, _ = attention.project(hidden)
        k = k.repeat_interleave(2, 1)
    scale = q.shape[-1] ** -0.5
    torch.testing.assert_close(term(parts, "content"), scale * (q @ k.transpose(-1, -2))[0])
    # band b of halves: dimensions b and b + d/2; at distance δ: a cos(δω) + b sin(δω) with a = q·k, b = q x k
    assert parts.band_content is not None
    assert parts.band_position is not None
    assert parts.frequency is not None
    half = q.shape[-1] // 2
    distance = (torch.arange(N)[:, None] - torch.arange(N)[None]).double()
    for b, w in enumerate(parts.frequency.tolist()):
        dot = q[0, ..., b, None] * k[0, :, None, :, b] + q[0, ..., b + half, None] * k[0, :, None, :, b + half]
        cross = q[0, ..., b, None] * k[0, :, None, :, b + half] - q[0, ..., b + half, None] * k[0, :, None, :, b]
        torch.testing.assert_close(parts.band_content[b], scale * dot)
        turned = scale * (dot * torch.cos(distance * w) + cross * torch.sin(distance * w))
        torch.testing.assert_close(parts.band_content[b] + parts.band_position[b], turned)


def test_biases_are_the_functions_they_are_named_after() -> None:
    alibi = decompose(model("alibi"), tokens(N), layer=1)
    torch.testing.assert_close(term(alibi, "bias Alibi"), vt.alibi_bias(4, N).double())
    shaw = decompose(model("shaw"), tokens(N), layer=1)
    assert [t.name for t in shaw.terms] == ["content", "query × ShawKeys"]  # nothing that does not ask the query
    xl = decompose(model("xl"), tokens(N), layer=1)
    assert [t.name for t in xl.terms] == [
        "content",
        "query bias u · key",
        "bias DistanceTerm",
        "query × DistanceTerm",
    ]
    alone = term(xl, "bias DistanceTerm")  # v·W_r R(i - j): the same along diagonals
    torch.testing.assert_close(alone[:, 1:, 1:], alone[:, :-1, :-1])
    none = decompose(model("none"), tokens(N), layer=1)
    assert none.share().tolist() == [0.0] * 4
    with pytest.raises(BadInput, match='"content", "position"'):
        none.part("bias")


def test_a_softcap_is_a_part_of_its_own() -> None:
    of = model("rope", "softcap")
    parts = decompose(of, tokens(N), layer=1)
    raw = parts.part("content") + parts.part("position")
    torch.testing.assert_close(raw + parts.part("neither"), 2.0 * torch.tanh(raw / 2.0))


def test_biases_of_projections_are_told_apart() -> None:
    spec = vt.decoder(vocab=19, width=32, layers=1, attention=vt.GroupedQuery(4, 2, bias=True), position="rope")
    of = vt.build(spec).double().eval()
    torch.nn.init.normal_(of.blocks[0].steps[0].sublayer.qkv.bias)
    parts = decompose(of, tokens(N), layer=0)
    names = [t.name for t in parts.terms]
    assert names == ["query · key", "query bias · key", "query · key bias", "query bias · key bias", "rotation"]
    assert parts.error < 1e-12
    both = term(parts, "query bias · key bias")
    torch.testing.assert_close(both, both[:, :1, :1].expand_as(both))  # the same for every pair of tokens
    by_key = term(parts, "query bias · key")
    torch.testing.assert_close(by_key, by_key[:, :1].expand_as(by_key))  # the same for every query
    torch.nn.init.zeros_(of.blocks[0].steps[0].sublayer.qkv.bias)
    torch.testing.assert_close(term(decompose(of, tokens(N), layer=0), "query bias · key"), torch.zeros_like(both))


def test_chosen_heads_and_queries_of_cross_attention_and_encoders() -> None:
    of = model("rope", "cross")
    whole = decompose(of, tokens(9), layer=1, kind="cross", source=tokens(7, seed=5))
    assert whole.score.shape == (4, 9, 7)
    some = decompose(of, tokens(9), layer=1, kind="cross", source=tokens(7, seed=5), heads=[3], queries=[8, 0])
    torch.testing.assert_close(some.score, whole.score[[3]][:, [8, 0]])
    inner = decompose(of, tokens(9), layer=0, kind="encoder", source=tokens(7, seed=5))
    assert [t.name for t in inner.terms] == ["content", "rotation"]
    assert len(inner.key_labels) == 7


def test_chains_at_rest_change_nothing() -> None:
    """What the content part rests on: at position 0 every transform leaves queries as they are."""
    from vantage.inspect.recording import at_rest

    of, pos = model("xpos"), Positions.arange(1, N)
    q = torch.randn(1, 4, N, 8, dtype=torch.float64)
    torch.testing.assert_close(chain(of.blocks[0].steps[0].sublayer.qk, "query", q, at_rest(pos)), q)


def test_what_is_refused_and_what_is_shown() -> None:
    of = model()
    with pytest.raises(BadInput, match="no layer 2"):
        decompose(of, tokens(4), layer=2)
    with pytest.raises(BadInput, match="no head 9 in self 0 attention"):
        decompose(of, tokens(4), layer=0, heads=9)
    with pytest.raises(BadInput, match="one row"):
        decompose(of, tokens(4, 2), layer=0)
    with pytest.raises(BadInput, match="number of one layer"):
        decompose(of, tokens(4), layer=[0, 1])  # pyright: ignore[reportArgumentType]
    long = vt.build(vt.decoder(vocab=19, width=64, layers=1, heads=8)).eval()
    with pytest.raises(Refused, match="choose fewer heads"):
        decompose(long, tokens(2000), layer=0)
    parts = decompose(of, tokens(4), layer=0)
    assert "content, rotation" in repr(parts)
    assert "data:image/png" in parts._repr_html_()
    said = parts.to_dict()
    assert said["score"][0][0][1] is None  # not seen
    assert len(said["parts"]) == 2


# ---- distances


def test_what_a_head_can_tell_apart() -> None:
    nothing = distinguishable(model("none"), tokens(N), layer=1, upto=100)
    assert not nothing.resolution.any()
    shaw = distinguishable(model("shaw"), tokens(N), layer=1, upto=100)  # clipped at 4
    assert shaw.resolution[:, [d >= 4 for d in shaw.at]].count_nonzero() == 0
    assert shaw.resolution[:, [d < 4 for d in shaw.at]].all()
    alibi = distinguishable(model("alibi"), tokens(N), layer=1, upto=400, threshold=0.1)
    slopes = [2.0 ** (-8 * k / 4) for k in range(1, 5)]
    assert alibi.resolution[:, 3].tolist() == [int(0.1 / m + 1) for m in slopes]  # the first step past the threshold
    cope = distinguishable(model("cope"), tokens(N), layer=1, upto=600)
    assert cope.resolution[:, 0].all()


def test_distances_outside_training() -> None:
    rope = distinguishable(model(), tokens(N), layer=1)
    assert rope.trained == 64
    assert rope.upto == 128
    assert [rope.outside(d) for d in (63, 64)] == [False, True]
    assert rope.turns is not None
    assert rope.frequency is not None
    torch.testing.assert_close(rope.turns, rope.frequency * 64 / (2 * torch.pi))
    assert rope.untrained_bands == int((rope.turns < 1).sum())
    assert "bands make less than a turn" in repr(rope)
    assert "<table>" in rope._repr_html_()
    assert rope.header[-1].endswith("*")
    assert rope.to_dict()["outside"][-1]
    with pytest.raises(BadInput, match="upto=1"):
        distinguishable(model(), tokens(N), layer=0, upto=1)
