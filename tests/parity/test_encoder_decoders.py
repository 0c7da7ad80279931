"""Encoder-decoders: equal to transformers on padded batches, step by step through our caches, and saved."""

from __future__ import annotations

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5LayerNorm

import vantage as vt
from tests.parity.case import VOCAB
from tests.parity.cases import rows
from tests.parity.rows.marian import MARIAN
from tests.parity.rows.t5 import FULL as T5
from vantage.checkpoints.config import Config
from vantage.errors import CheckpointError
from vantage.families import families

RNG = torch.Generator().manual_seed(3)
MASK = torch.arange(30) < torch.tensor([30, 17])[:, None]
SOURCE = torch.randint(3, VOCAB, MASK.shape, generator=RNG).masked_fill(~MASK, 0)
TOKENS = torch.randint(3, VOCAB, (2, 40), generator=RNG)


@pytest.fixture(params=rows("encoder-decoder"))
def made(request, tmp_path):
    case, option = request.param
    model = case.make(option)
    model.save_pretrained(tmp_path / "theirs")
    return model, tmp_path


@torch.no_grad()
def their_logits(model, tokens, source=SOURCE, mask=MASK):
    return model(input_ids=source, attention_mask=mask.long(), decoder_input_ids=tokens).logits


@torch.no_grad()
def test_logits_are_those_of_transformers(made):
    theirs, folder = made
    ours = vt.load(folder / "theirs")
    wanted, got = their_logits(theirs, TOKENS), ours(TOKENS, source=ours.encode(SOURCE, mask=MASK))
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-4
    whole = torch.ones_like(MASK)  # a source without padding may be given as it is
    got, wanted = ours(TOKENS, source=SOURCE), their_logits(theirs, TOKENS, SOURCE, whole)
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-4


@torch.no_grad()
def test_logits_are_those_of_transformers_in_float64(made, monkeypatch):
    # T5's norm rounds to float32 within, and its scores, which are not scaled, make 2e-6 of that in gated models.
    # Without that rounding the two agree to 1e-14.
    monkeypatch.setattr(T5LayerNorm, "forward", exact_norm)
    theirs, folder = made
    ours, theirs = vt.load(folder / "theirs", dtype=torch.float64), theirs.double()
    wanted, got = their_logits(theirs, TOKENS), ours(TOKENS, source=ours.encode(SOURCE, mask=MASK))
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-6


def exact_norm(self, x):
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


@torch.no_grad()
def test_64_greedy_tokens_through_our_cache(made):
    theirs, folder = made
    ours, theirs = vt.load(folder / "theirs", dtype=torch.float64), theirs.double()
    cache = ours.new_cache(2)
    got = torch.full((2, 1), theirs.config.decoder_start_token_id)
    step = ours(got, cache=cache, source=ours.encode(SOURCE, mask=MASK))[:, -1:].argmax(-1)
    for _ in range(63):
        got = torch.cat([got, step], 1)
        step = ours(step, cache=cache)[:, -1:].argmax(-1)  # the source lies in the cache
    got = torch.cat([got, step], 1)
    # one full pass over the result: every token must be the best one, or as good
    logits = their_logits(theirs, got)[:, :-1]
    chosen = logits.gather(-1, got[:, 1:, None])[..., 0]
    assert float((logits.max(-1).values - chosen).max()) < 1e-6 * float(logits.abs().max())


@torch.no_grad()
def test_saving_and_loading_again_changes_no_bit(made):
    theirs, folder = made
    ours = vt.load(folder / "theirs")
    vt.save(ours, folder / "ours")
    again = vt.load(folder / "ours")
    for (name, a), (_, b) in zip(ours.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    back = type(theirs).from_pretrained(folder / "ours").eval()
    for (name, a), (_, b) in zip(theirs.state_dict().items(), back.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(their_logits(back, TOKENS), their_logits(theirs, TOKENS))


@torch.no_grad()
def test_chunks_and_padded_rows_through_the_cache_are_one_full_pass(made):
    _, folder = made
    ours = vt.load(folder / "theirs", dtype=torch.float64)
    memory = ours.encode(SOURCE, mask=MASK)
    whole = ours(TOKENS, source=memory)
    cache = ours.new_cache(2)
    pieces = [ours(TOKENS[:, :7], cache=cache, source=memory)]
    pieces += [ours(piece, cache=cache) for piece in TOKENS[:, 7:].split((1, 20, 12), 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=1e-9)
    n = int(MASK[1].sum())
    torch.testing.assert_close(ours(TOKENS[1:], source=SOURCE[1:, :n]), whole[1:], rtol=0, atol=1e-9)


@torch.no_grad()
def test_an_embedding_that_is_shared_is_one_tensor(made):
    theirs, folder = made
    ours = vt.load(folder / "theirs", dtype=torch.float64).to(torch.float32)
    one = theirs.config.to_dict().get("share_encoder_decoder_embeddings", True)
    assert (ours.encoder.embed.tokens.weight is ours.embed.tokens.weight) == one
    assert ours.head.linear.weight is ours.embed.tokens.weight


@torch.no_grad()
def test_t5_with_a_head_of_its_own(tmp_path):
    """T5 1.1 and FLAN store one; this transformers ties a head that it makes itself."""
    theirs = T5.make("unscaled")
    theirs.lm_head.weight = torch.nn.Parameter(torch.randn(VOCAB, 48, generator=RNG))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = vt.load(tmp_path / "theirs")
    assert torch.equal(ours.head.linear.weight, theirs.lm_head.weight)
    wanted, got = their_logits(theirs, TOKENS), ours(TOKENS, source=ours.encode(SOURCE, mask=MASK))
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-4
    vt.save(ours, tmp_path / "ours")
    again = vt.load(tmp_path / "ours")
    assert torch.equal(again.head.linear.weight, theirs.lm_head.weight)
    assert torch.equal(again.embed.tokens.weight, theirs.shared.weight)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"normalize_before": True}, "normalize_before is True; wanted False"),
        ({"static_position_embeddings": False}, "static_position_embeddings is False; wanted True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False; wanted True"),
        ({"decoder_vocab_size": 5}, "decoder_vocab_size is 5; wanted 67, as the embeddings are shared"),
        ({"activation_function": "mish"}, "activation_function is 'mish'"),
    ],
)
def test_marian_configs_that_are_refused(config, says):
    with pytest.raises(CheckpointError, match=says):
        families()["marian"].spec(Config({**MARIAN.base, **config}))
