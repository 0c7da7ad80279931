"""Tokens to vectors, vectors to logits."""

from dataclasses import replace

import pytest
import torch

from tests.attention.helpers import F64, sharpen, vectors
from vantage.errors import BadInput
from vantage.model import build, decoder
from vantage.model.ends import Unembed
from vantage.model.norms import LayerNorm
from vantage.position import Learned, Sinusoidal, sinusoid
from vantage.spec.model import Embedding, Head
from vantage.spec.positions import Positions

TOKENS = torch.tensor([[1, 4, 2], [0, 4, 4]])


def spec_with(embedding=None, **head):
    spec = decoder(vocab=5, width=8, layers=1, heads=2, position="none")
    spec = spec if embedding is None else replace(spec, embedding=embedding)
    return replace(spec, head=Head(**head))


@torch.no_grad()
def test_embeddings_are_scaled_then_added_to_then_normed():
    embedding = Embedding(inputs=(Sinusoidal(), Learned(6)), scale=3.0, norm=LayerNorm())
    embed = sharpen(build(spec_with(embedding)).double()).embed
    x = 3 * embed.tokens.weight[TOKENS] + sinusoid(torch.arange(3), 8) + embed.inputs[1].table[:3]
    torch.testing.assert_close(embed(TOKENS, Positions.arange(2, 3)), embed.norm(x))


@torch.no_grad()
def test_gemmas_scale_is_rounded_to_the_weights_dtype():
    """sqrt(3072) = 55.43 is 55.5 in bfloat16: the published weights were trained with that."""
    scale, pos = 3072**0.5, Positions.arange(2, 3)
    embed = build(spec_with(Embedding(scale=scale, rounded=True))).bfloat16().embed
    table = embed.tokens.weight[TOKENS]
    assert torch.equal(embed(TOKENS, pos), table * 55.5)
    plain = build(spec_with(Embedding(scale=scale))).bfloat16().embed
    assert not torch.equal(plain(TOKENS, pos), table * 55.5)
    embed = embed.double()
    assert torch.equal(embed(TOKENS, pos), embed.tokens.weight[TOKENS] * scale)


@torch.no_grad()
def test_dropout_at_the_input_acts_in_training_only():
    model = build(spec_with(Embedding(dropout=0.5))).double()
    pos = Positions.arange(2, 3)
    model.eval()
    assert torch.equal(model.embed(TOKENS, pos), model.embed.tokens.weight[TOKENS])
    model.train()
    assert (model.embed(TOKENS, pos) == 0).any()


def test_a_tied_head_is_the_embedding_table():
    model = build(spec_with(tied=True))
    assert model.head.linear.weight is model.embed.tokens.weight
    assert model.head.linear.weight.data_ptr() == model.embed.tokens.weight.data_ptr()
    names = [name for name, _ in model.named_parameters()]
    assert "head.linear.weight" not in names  # counted once
    untied = build(spec_with())
    assert untied.head.linear.weight is not untied.embed.tokens.weight
    model.double()
    assert model.head.linear.weight is model.embed.tokens.weight


@torch.no_grad()
def test_a_tied_head_stays_tied_in_training():
    model = build(spec_with(tied=True))
    model.embed.tokens.weight += 1.0
    x = vectors(1, 2, 8, dtype=torch.float32)
    torch.testing.assert_close(model.head(x), x @ model.embed.tokens.weight.T)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("scale", [1.0, 0.25])
@torch.no_grad()
def test_logits(bias, softcap, scale):
    table = torch.nn.Embedding(5, 8)
    head = sharpen(Unembed(Head(bias=bias, scale=scale, softcap=softcap), 5, 8, table).to(F64))
    x = vectors(2, 3, 8)
    wanted = x @ head.linear.weight.T + (head.linear.bias if bias else 0)
    wanted = wanted * scale
    torch.testing.assert_close(head(x), wanted if softcap is None else softcap * torch.tanh(wanted / softcap))
    assert (head.linear.bias is not None) == bias


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (torch.tensor([[1, 5]]), r"token 5 is not in the vocabulary of 5 \(0 to 4\)"),
        (torch.tensor([[1, -1]]), "token -1 is not in the vocabulary"),
        (torch.tensor([1, 2]), r"of shape \(2,\): give whole numbers \(batch, tokens\)"),
        (torch.tensor([[1.0]]), "torch.float32 .* give whole numbers"),
        (torch.tensor([[True]]), "torch.bool .* give whole numbers"),
        (torch.zeros(1, 0, dtype=torch.long), r"tokens have shape \(1, 0\): give at least one"),
        (torch.zeros(0, 3, dtype=torch.long), "give at least one"),
    ],
)
def test_tokens_that_cannot_be(tokens, says):
    with pytest.raises(BadInput, match=says):
        build(spec_with())(tokens)


def test_the_whole_vocabulary_is_allowed():
    build(spec_with())(torch.tensor([[0, 4]]))
    build(spec_with())(torch.tensor([[0, 4]], dtype=torch.int32))
