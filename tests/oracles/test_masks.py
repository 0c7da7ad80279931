"""Masks against transformers' mask functions, and against the masks it builds for a padded batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, masking_utils

from vantage.spec.masks import Causal, Chunked, Everything, Prefix, SameSegment, Window, dense, visible
from vantage.spec.positions import Positions


def ours(mask, q, k):
    """(B, T, S), as a kernel applies it."""
    pair = q.against(k)
    return dense(visible(mask, pair), pair).expand(q.shape[0], 1, q.shape[1], k.shape[1])[:, 0]


def theirs(function, B, q_from, T, S):
    b, q, k = (
        torch.arange(B)[:, None, None],
        torch.arange(q_from, q_from + T)[None, :, None],
        torch.arange(S)[None, None],
    )
    return (function(b, 0, q, k) & (q + k + b >= 0)).expand(B, T, S)


SIZES = st.tuples(st.integers(1, 6), st.integers(0, 8))


@given(SIZES, st.integers(1, 9))
@settings(deadline=None)
def test_plain_masks(size, n):
    T, before = size
    S = T + before
    q, k = Positions.arange(2, T, before), Positions.arange(2, S)
    none = torch.zeros(2, dtype=torch.long)
    for mask, function in (
        (Everything(), masking_utils.bidirectional_mask_function),
        (Causal(), masking_utils.causal_mask_function),
        (Causal() & Window(n), masking_utils.sliding_window_causal_mask_function(n)),
        (Causal() & Chunked(n), masking_utils.chunked_causal_mask_function(n, none)),
        # theirs counts the distance, ours the tokens, the query's own included
        (Window(n + 1), masking_utils.sliding_window_bidirectional_mask_function(n)),
        (Causal() | Prefix(n), masking_utils.or_masks(masking_utils.causal_mask_function, lambda b, h, i, j: j < n)),
    ):
        assert torch.equal(ours(mask, q, k), theirs(function, 2, before, T, S)), mask


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.lists(st.integers(1, 4), min_size=1, max_size=3))
@settings(deadline=None)
def test_packed_documents(first, second):
    width = max(sum(first), sum(second))
    pos = Positions.packed([first, second], width=width)
    packed = torch.full((2, width), -1)
    for b, row in enumerate((first, second)):
        packed[b, : sum(row)] = torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row))
    same = masking_utils.packed_sequence_mask_function(packed)
    function = masking_utils.and_masks(masking_utils.causal_mask_function, same)
    wanted = theirs(function, 2, 0, width, width) & (packed >= 0)[:, :, None]
    assert torch.equal(ours(Causal() & SameSegment(), pos, pos), wanted)


@given(st.lists(st.integers(1, 6), min_size=2, max_size=2), st.booleans(), st.integers(1, 4))
@settings(deadline=None)
def test_padded_batches(sizes, left, n):
    """Queries that are padding see nothing here; transformers lets them see something. Real ones agree."""
    size = torch.tensor(sizes)[:, None]
    real = torch.arange(6) >= 6 - size if left else torch.arange(6) < size
    pos = Positions.from_mask(real)
    pad = masking_utils.padding_mask_function(real)
    shift = (6 - size[:, 0]) if left else torch.zeros(2, dtype=torch.long)
    for mask, function in (
        (Causal(), masking_utils.causal_mask_function),
        (Causal() & Window(n), masking_utils.sliding_window_causal_mask_function(n)),
        (Causal() & Chunked(n), masking_utils.chunked_causal_mask_function(n, shift)),
        (Everything(), masking_utils.bidirectional_mask_function),
    ):
        wanted = theirs(masking_utils.and_masks(function, pad), 2, 0, 6, 6)
        got = ours(mask, pos, pos)
        assert torch.equal(got[real], wanted[real]), mask
        assert not got[~real].any()


@pytest.mark.parametrize("which", ["causal", "sliding", "chunked"])
def test_the_masks_that_transformers_builds(which):
    config = LlamaConfig(num_hidden_layers=1, sliding_window=3, attention_chunk_size=3)
    config._attn_implementation = "eager"
    real = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
    make, mask = {
        "causal": (masking_utils.create_causal_mask, Causal()),
        "sliding": (masking_utils.create_sliding_window_causal_mask, Causal() & Window(3)),
        "chunked": (masking_utils.create_chunked_causal_mask, Causal() & Chunked(3)),
    }[which]
    built = make(config, torch.zeros(2, 7, 4), real, None)
    pos = Positions.from_mask(real)
    assert built is not None
    assert torch.equal(ours(mask, pos, pos)[real.bool()], (built == 0)[:, 0][real.bool()])
