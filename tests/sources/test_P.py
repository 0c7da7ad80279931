"""P1, P8 and P11 through whole modules and models. The encodings' own numbers stand in tests/position."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from tests.attention.helpers import F64, Listing, attention, run, set_qkv, sharpen, vectors
from vantage.attention import GroupedQuery
from vantage.model import build, decoder, encoder
from vantage.model.feed_forward import FeedForward
from vantage.position import Rope, Sinusoidal
from vantage.position.rope import Rotation
from vantage.spec.masks import Everything
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions

INDEX = torch.tensor([4, 2, 0, 5, 1, 3])


# ---- P1


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "flex"])
def test_P1_attention_is_permutation_equivariant(kernel):
    """Attention(PX) = P · Attention(X)."""
    module, x = attention(GroupedQuery(4, 2), 8, Everything()), vectors(1, 6, 8)
    with torch.no_grad():
        straight, permuted = run(module, x, kernel=kernel), run(module, x[:, INDEX], kernel=kernel)
    torch.testing.assert_close(permuted, straight[:, INDEX])


def test_P1_also_through_the_feed_forward_layer_with_biases():
    module, x = attention(GroupedQuery(4, 2), 8, Everything()), vectors(1, 6, 8)
    ffn = sharpen(FeedForward(12, "relu", gated=False, bias=True).build(8).to(F64))
    assert ffn.up.bias.abs().min() > 0
    with torch.no_grad():
        torch.testing.assert_close(ffn(run(module, x[:, INDEX])), ffn(run(module, x))[:, INDEX])


def hidden(model, tokens):
    with torch.no_grad():
        return model.hidden(tokens)


TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9]])


def model_with(position, make=encoder, **options):
    spec = make(vocab=11, width=16, layers=2, heads=2, position=position, ffn="gelu", norm="layer", **options)
    return sharpen(build(spec).double())


def test_P1_and_through_a_whole_encoder():
    model = model_with("none")
    torch.testing.assert_close(hidden(model, TOKENS[:, INDEX]), hidden(model, TOKENS)[:, INDEX])


def test_P1_erratum_equivariant_is_not_invariant():
    """The output is permuted with the input; it does not stay the same. A mean over tokens does."""
    model = model_with("none")
    straight, permuted = hidden(model, TOKENS), hidden(model, TOKENS[:, INDEX])
    assert (straight - permuted).abs().max() > 0.1
    torch.testing.assert_close(straight.mean(1), permuted.mean(1))


@pytest.mark.parametrize(
    "position", ["sinusoidal", "learned", "shifted", "rope", "xpos", "alibi", "t5", "shaw", "xl", "kerple", "fire"]
)
def test_P1_every_position_encoding_breaks_it(position):
    """PX + Φ ≠ P(X + Φ), wherever Φ acts."""
    model = model_with(position, max_length=8)
    assert (hidden(model, TOKENS[:, INDEX]) - hidden(model, TOKENS)[:, INDEX]).abs().max() > 1e-3


@pytest.mark.parametrize("position", ["sinusoidal", "rope", "alibi"])
def test_P1_and_moving_the_positions_along_restores_it(position):
    model = model_with(position)
    with torch.no_grad():
        moved = model.hidden(TOKENS[:, INDEX], positions=INDEX)
    torch.testing.assert_close(moved, hidden(model, TOKENS)[:, INDEX])


def test_P1_a_causal_mask_breaks_it():
    model = model_with("none", make=decoder)
    assert (hidden(model, TOKENS[:, INDEX]) - hidden(model, TOKENS)[:, INDEX]).abs().max() > 1e-2


def test_P1_the_sum_at_the_input():
    """The encoding is added to the tokens as they come: PX + Φ, not P(X + Φ)."""
    part = Sinusoidal().build(Shape(8, 2, 2, 4, 4, 4))
    x, pos = vectors(1, 6, 8), Positions.arange(1, 6)
    assert not torch.allclose(part(x[:, INDEX], pos), part(x, pos)[:, INDEX])
    torch.testing.assert_close(part(x[:, INDEX], Positions.of(INDEX)), part(x, pos)[:, INDEX])


# ---- P8


@dataclass(frozen=True)
class FromZero:
    """S3's ``apply_rope``: whatever the positions are, it starts at 0."""

    shared = True

    def build(self, shape: Shape) -> nn.Module:
        return _FromZero(Rope(), shape.rotary_dim)


class _FromZero(Rotation):
    def turn(self, x_BHTd, pos):
        return super().turn(x_BHTd, Positions.arange(*pos.shape))


def test_P8_erratum_rope_that_starts_at_0_fails_with_a_cache_and_ours_holds():
    spec = decoder(vocab=11, width=16, layers=3, heads=2)
    wrong = replace(spec, layers=tuple(replace(layer, qk=(FromZero(),)) for layer in spec.layers))
    tokens = torch.randint(11, (1, 10), generator=torch.Generator().manual_seed(0))
    errors = {}
    for name, one in (("ours", spec), ("theirs", wrong)):
        model = sharpen(build(one).double())
        cache = model.new_cache()
        with torch.no_grad():
            whole = model(tokens)
            steps = [model(tokens[:, :4], cache=cache)] + [
                model(tokens[:, t : t + 1], cache=cache) for t in range(4, 10)
            ]
        errors[name] = (torch.cat(steps, 1) - whole).abs()
        if name == "ours":
            ours = whole
    torch.testing.assert_close(whole, ours)  # in one pass nobody sees a difference
    assert errors["ours"].max() < 1e-10
    assert errors["theirs"][:, :4].max() < 1e-10  # nor in the prefill
    assert (errors["theirs"][:, 4:].amax(-1) > 0.05).all()  # every cached step is wrong


# ---- P11


def counting_head(kernel_width=2):
    """K = constant, V = "am I the first token": x is (am I first, 1)."""
    module = attention(GroupedQuery(1, head_dim=2, value_dim=1), kernel_width)
    q = torch.tensor([[0.3, -1.2], [0.7, 0.4]], dtype=F64)
    k = torch.tensor([[0.0, 0.0], [1.5, -0.5]], dtype=F64)  # reads the 1 alone
    v = torch.tensor([[1.0], [0.0]], dtype=F64)  # reads "am I first"
    set_qkv(module, q, k, v)
    return module


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "flex"])
def test_P11_a_causal_head_without_position_tells_it(kernel):
    x = torch.ones(1, 9, 2, dtype=F64)
    x[:, 1:, 0] = 0.0
    module = counting_head()
    with torch.no_grad():
        out = run(module, x, kernel=kernel)[0, :, 0]
    torch.testing.assert_close(out, 1 / torch.arange(1, 10, dtype=F64))


def test_P11_and_through_a_cache():
    x = torch.ones(1, 6, 2, dtype=F64)
    x[:, 1:, 0] = 0.0
    module, cache = counting_head(), Listing()
    with torch.no_grad():
        steps = [run(module, x[:, t : t + 1], pos=Positions.arange(1, 1, t), caches=[cache]) for t in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1)[0, :, 0], 1 / torch.arange(1, 7, dtype=F64))


def test_P11_it_needs_the_causal_mask():
    """Seen by everyone, the first token tells nobody where they are."""
    x = torch.ones(1, 5, 2, dtype=F64)
    x[:, 1:, 0] = 0.0
    module = counting_head()
    module.scorer.mask = Everything()
    with torch.no_grad():
        out = run(module, x)[0, :, 0]
    torch.testing.assert_close(out, torch.full((5,), 0.2, dtype=F64))
