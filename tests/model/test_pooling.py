"""One vector a row, and what stands before a head."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.attention.helpers import F64, check_gradients, sharpen, vectors
from vantage.errors import BadInput
from vantage.model import build, encoder, encoder_decoder
from vantage.model.norms import LayerNorm
from vantage.model.pooling import First, Pooler, Transform, first_token, mean_pool
from vantage.spec.model import Embedding, Head

TOKENS = torch.tensor([[1, 4, 2], [0, 4, 4]])


def test_the_mean_leaves_padding_out():
    hidden = vectors(3, 4, 5)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
    hidden[1, 3] = float("nan")
    got = mean_pool(hidden, mask)
    torch.testing.assert_close(got[0], hidden[0].mean(0))
    torch.testing.assert_close(got[1], hidden[1, :2].mean(0))
    assert (got[2] == 0).all()
    torch.testing.assert_close(mean_pool(hidden[:1]), got[:1])
    torch.testing.assert_close(mean_pool(hidden, mask.bool()), got)
    with pytest.raises(BadInput, match=r"the mask has shape \(3, 2\)"):
        mean_pool(hidden, mask[:, :2])


def test_first():
    x = vectors(2, 3, 4)
    assert torch.equal(first_token(x), x[:, 0])
    assert torch.equal(First().build(4, 4)(x), x[:, 0])


@torch.no_grad()
def test_pooler_and_transform():
    x = vectors(2, 3, 4)
    pooler = sharpen(Pooler().build(4, 6).to(F64))
    torch.testing.assert_close(pooler(x), torch.tanh(pooler.linear(x[:, 0])))
    assert Pooler("relu", 3).build(4, 6)(x.float()).shape == (2, 3)
    transform = sharpen(Transform("gelu", LayerNorm()).build(4, 6).to(F64))
    torch.testing.assert_close(transform(x), transform.norm(F.gelu(transform.linear(x))))
    for bad in (lambda: Pooler("swoosh"), lambda: Transform("swoosh", LayerNorm())):
        with pytest.raises(BadInput, match="no activation is called 'swoosh'"):
            bad()


@pytest.mark.parametrize("config", [Pooler(), Transform("gelu", LayerNorm())])
def test_gradients(config):
    module = sharpen(config.build(4, 3).to(F64))
    check_gradients(module, lambda m, x: m(x), vectors(2, 2, 4))


@torch.no_grad()
def test_a_masked_head_of_another_width_tied_to_its_table():
    spec = encoder(vocab=5, width=8, layers=1, heads=2, position="none")
    head = Head(tied=True, bias=True, transform=Transform("relu", LayerNorm()), width=6)
    model = sharpen(build(replace(spec, embedding=Embedding(width=6), head=head, pooler=Pooler())).double()).eval()
    assert model.head.linear.weight is model.embed.tokens.weight
    hidden = model.hidden(TOKENS)
    wanted = model.head.transform(hidden) @ model.embed.tokens.weight.T + model.head.linear.bias
    torch.testing.assert_close(model(TOKENS), wanted)
    assert model.pooler(hidden).shape == (2, 8)


def test_a_model_without_a_pooler_says_so():
    model = build(encoder(vocab=5, width=8, layers=1, heads=2))
    with pytest.raises(BadInput, match="this model has no pooler"):
        model.pooler(model(TOKENS))


def test_a_table_shared_by_encoder_and_decoder():
    spec = encoder_decoder(vocab=5, width=8, layers=1, heads=2)
    shared = replace(spec, embedding=replace(spec.embedding, shared=True))
    model = build(shared)
    assert model.encoder.embed.tokens.weight is model.embed.tokens.weight
    apart = build(spec)
    assert apart.encoder.embed.tokens.weight is not apart.embed.tokens.weight
    sizes = [sum(p.numel() for p in m.parameters()) for m in (apart, model)]
    assert sizes[0] - sizes[1] == 5 * 8
    with pytest.raises(BadInput, match="needs an encoder with the decoder's vocabulary"):
        replace(shared, encoder=replace(shared.encoder, vocab=6))
    with pytest.raises(BadInput, match="needs an encoder"):
        replace(shared, encoder=None)
