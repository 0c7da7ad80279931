"""Which part of the input a token belongs to."""

from dataclasses import replace

import pytest
import torch

from tests.attention.helpers import F64, check_gradients, sharpen, vectors
from vantage.errors import BadInput
from vantage.model import build, decoder, encoder
from vantage.model.token_types import TokenTypes
from vantage.spec.model import Embedding

TOKENS = torch.tensor([[1, 4, 2], [0, 4, 4]])
TYPES = torch.tensor([[0, 1, 2], [2, 2, 0]])


def model_with(types, make=encoder, **more):
    spec = make(vocab=5, width=8, layers=2, heads=2, position="rope")
    return sharpen(build(replace(spec, embedding=Embedding(types=types, **more))).double()).eval()


@torch.no_grad()
def test_types_are_added_before_the_norm_and_none_means_zero():
    model = model_with(3)
    embed = model.embed
    seen = []
    embed.norm.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    model(TOKENS, types=TYPES)
    torch.testing.assert_close(seen[0], embed.tokens.weight[TOKENS] + embed.types.table[TYPES])
    assert torch.equal(model(TOKENS), model(TOKENS, types=torch.zeros_like(TOKENS)))
    assert not torch.equal(model(TOKENS), model(TOKENS, types=TYPES))


@torch.no_grad()
def test_tokens_of_different_types_see_each_other():
    model = model_with(3)
    moved = TOKENS.clone()
    moved[0, 2] = 0
    assert not torch.allclose(model(TOKENS, types=TYPES)[0, 0], model(moved, types=TYPES)[0, 0])


@torch.no_grad()
def test_types_of_a_decoder_through_a_cache():
    model = model_with(3, decoder)
    cache = model.new_cache(2)
    steps = [model(TOKENS[:, i : i + 1], types=TYPES[:, i : i + 1], cache=cache) for i in range(3)]
    torch.testing.assert_close(torch.cat(steps, 1), model(TOKENS, types=TYPES))


def test_gradients():
    types = sharpen(TokenTypes(3, 4).to(F64))
    check_gradients(types, lambda m, x: m(x, TYPES), vectors(2, 3, 4))
    check_gradients(types, lambda m, x: m(x), vectors(2, 3, 4))


@pytest.mark.parametrize(
    ("types", "says"),
    [
        (TYPES + 1, r"token type 3 is not one of the 3 \(0 to 2\)"),
        (TYPES - 1, "token type -1 is not one of"),
        (TYPES[:, :2], r"of shape \(2, 2\), the tokens \(2, 3\): give a whole number for each token"),
        (TYPES.float(), "torch.float32 .* give a whole number"),
        (TYPES.bool(), "torch.bool .* give a whole number"),
    ],
)
def test_types_that_cannot_be(types, says):
    with pytest.raises(BadInput, match=says):
        model_with(3)(TOKENS, types=types)


def test_a_model_without_types_refuses_them():
    with pytest.raises(BadInput, match="has no token types: leave types out"):
        model_with(0)(TOKENS, types=TYPES)


@torch.no_grad()
def test_a_narrow_table_is_projected():
    model = model_with(3, width=6)
    embed = model.embed
    assert embed.tokens.weight.shape == (5, 6)
    assert model(TOKENS, types=TYPES).shape == (2, 3, 8)
    x = embed.tokens.weight[TOKENS] + embed.types.table[TYPES]
    pos = model.place(TOKENS, None, None, None, None)
    torch.testing.assert_close(embed(TOKENS, pos, TYPES), x @ embed.project.weight.T + embed.project.bias)
