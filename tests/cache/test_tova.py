"""TOVA: held to its rule written out over whole rows, without a cache; all heads of a layer decide together."""

from __future__ import annotations

import pytest
import torch

import vantage as vt
from tests.cache.forgetting_rules import (
    CUTS,
    HEADS,
    KV_HEADS,
    SIZE,
    TOKENS,
    Forgetful,
    LastGiven,
    check_bytes,
    check_copies,
    check_no_way_back,
    close,
    decoder,
    model,
    run,
)
from vantage.cache.kinds.tova import TovaCache
from vantage.conformance.scenarios import sharpen

KIND = TovaCache(SIZE)


def written_out(spec: vt.ModelSpec, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    plain = sharpen(vt.build(spec, kernel=Forgetful(LastGiven, 1)).double())
    with torch.no_grad():
        return plain(tokens)


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_cached_is_the_rule_written_out(cuts):
    m, wanted = model(), written_out(decoder())
    close(run(m, m.new_cache(1, kind=KIND), TOKENS, cuts), wanted)
    with torch.no_grad():
        assert (wanted - m(TOKENS)).abs().max() > 0.1  # and not what everything shows


@pytest.mark.parametrize("position", ["alibi", "fox", "bank", "shaw", "learned", "self-extend"])
def test_other_encodings(position):
    spec = decoder(vt.SelfExtend(2, 4) if position == "self-extend" else position, max_length=17)
    m = sharpen(vt.build(spec).double())
    close(run(m, m.new_cache(1, kind=KIND), TOKENS, (7, 1, 9)), written_out(spec))


def test_other_attentions():
    for attention in (
        vt.GroupedQuery(HEADS, 1),
        vt.GroupedQuery(HEADS, KV_HEADS, scores=vt.Scores(sinks=True, softcap=3.0)),
        vt.Latent(HEADS, kv_rank=12, nope_dim=8, rope_dim=8, value_dim=6, norm=vt.RMSNorm()),
    ):
        spec = vt.decoder(vocab=19, width=32, layers=2, attention=attention, position="rope")
        m = sharpen(vt.build(spec).double())
        close(run(m, m.new_cache(1, kind=KIND), TOKENS, (7, 1, 9)), written_out(spec))


def test_rows_of_unequal_length_decide_for_themselves():
    m, other = model(), (TOKENS + 7) % 19
    cache = m.new_cache(2, kind=KIND)
    lengths = ((9, 4), (8, 13))
    at, parts = [0, 0], []
    with torch.no_grad():
        for widths in lengths:
            rows = [row[0, a : a + n] for row, a, n in zip((TOKENS, other), at, widths, strict=True)]
            width = max(widths)
            tokens = torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])
            pos = vt.Positions.rows(widths, at, width=width)
            out = m(tokens, positions=pos, cache=cache)
            parts.append([out[b, :n] for b, n in enumerate(widths)])
            at = [a + n for a, n in zip(at, widths, strict=True)]
    for b, tokens in enumerate((TOKENS, other)):
        close(torch.cat([part[b] for part in parts])[None], written_out(decoder(), tokens))


def test_forked_reordered_saved_and_in_eight_bits(tmp_path):
    check_copies(KIND, written_out(decoder()), tmp_path / "cache.safetensors")


def test_it_does_not_go_back():
    check_no_way_back(KIND)


def test_what_it_takes_is_what_the_costs_say():
    check_bytes("tova")
