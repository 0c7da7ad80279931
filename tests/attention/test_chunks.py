"""Rules with a state in chunks give what they give token by token: outputs, states and gradients, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import vantage as vt
from tests.attention.helpers import F64, context, vectors
from vantage.attention import chunks
from vantage.attention.delta_rule import delta_rule_by_token, delta_rule_in_chunks, delta_rule_operations
from vantage.attention.state_space import state_space_by_token, state_space_in_chunks, state_space_operations
from vantage.cache.build import no_caches
from vantage.conformance.scenarios import sharpen
from vantage.spec.operations import PassSize
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions

H, D, E = 4, 5, 3

ROWS = {
    "runs": lambda T: Positions.arange(2, T),
    "later": lambda T: Positions.arange(2, T, start=1000),
    "left": lambda T: Positions.rows([T, T - 9], pad="left"),
    "right": lambda T: Positions.rows([T // 2 - 3, T]),
    "an empty row": lambda T: Positions.rows([0, T]),
    "documents": lambda T: Positions.packed([[5, T - 5], [T // 2, 3, 1, T // 4]], width=T),
    "a gap": lambda T: Positions.from_mask(torch.arange(T)[None] % 7 < torch.tensor([[3], [6]])),
}


def decays(kind: str, *shape: int) -> Tensor:
    """Logarithms of factors: mild ones, from 1 down to what float64 has no number for, and 0."""
    g, gen = -vectors(*shape, seed=7).abs(), torch.Generator().manual_seed(8)
    if kind == "strong":
        scales = torch.tensor([0, 1e-3, 1, 50, 700, 1e4], dtype=F64)
        return g * scales[torch.randint(len(scales), shape, generator=gen)]
    if kind == "nothing left":
        return g.masked_fill(torch.rand(shape, generator=gen) < 0.1, -torch.inf)
    return g


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def delta_inputs(T: int, g: Tensor) -> list[Tensor]:
    q, k, v = unit(vectors(2, T, H, D)), unit(vectors(2, T, H, D, seed=1)), vectors(2, T, H, E, seed=2)
    return [q, k, v, g, vectors(2, T, H, 1, seed=3).sigmoid(), vectors(2, H, D, E, seed=4)]


def compare(by_token: Callable, in_chunks: Callable, inputs: list[Tensor], pos: Positions) -> None:
    T = pos.shape[1]
    columns = tuple(sorted({0, T // 3, T // 2, max(0, T - 2), T - 1}))
    found = []
    for rule in (by_token, in_chunks):
        given = [t.clone().requires_grad_() for t in inputs]
        out, states = rule(*given, pos, columns)
        results = [torch.where(pos.filled[..., None, None], out, 0), *states]  # outputs in padding mean nothing
        loss = sum((t * vectors(*t.shape, seed=10 + i)).sum() for i, t in enumerate(results))
        assert isinstance(loss, Tensor)
        found.append([*results, *torch.autograd.grad(loss, given)])
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 tokens: token by token the way back costs the square of the length."""
    monkeypatch.setattr(chunks, "CHUNK", 16)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", ["mild", "strong", "nothing left"])
@pytest.mark.parametrize("channels", [1, D], ids=["heads", "channels"])
def test_the_delta_rule(channels: int, kind: str, rows: str):
    T = 42  # two chunks and some
    compare(delta_rule_by_token, delta_rule_in_chunks, delta_inputs(T, decays(kind, 2, T, H, channels)), ROWS[rows](T))


@pytest.mark.parametrize("T", [1, 2, 5, 17, 63, 64, 65, 129])
@pytest.mark.parametrize("channels", [1, D], ids=["heads", "channels"])
def test_any_length(channels: int, T: int):
    compare(
        delta_rule_by_token,
        delta_rule_in_chunks,
        delta_inputs(T, decays("strong", 2, T, H, channels)),
        Positions.arange(2, T),
    )


def test_keys_of_two_channels():
    """The fewest that can decay each by itself."""
    T = 20
    q, k, v = unit(vectors(2, T, H, 2)), unit(vectors(2, T, H, 2, seed=1)), vectors(2, T, H, E, seed=2)
    inputs = [q, k, v, decays("mild", 2, T, H, 2), vectors(2, T, H, 1, seed=3).sigmoid(), vectors(2, H, 2, E, seed=4)]
    compare(delta_rule_by_token, delta_rule_in_chunks, inputs, Positions.arange(2, T))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", ["mild", "strong", "nothing left"])
@pytest.mark.parametrize("groups", [1, 2, H])
def test_state_spaces(groups: int, kind: str, rows: str):
    T = 42
    x, b, c = vectors(2, T, H, E), vectors(2, T, groups, D, seed=1), vectors(2, T, groups, D, seed=2)
    inputs = [x, decays(kind, 2, T, H), b, c, vectors(2, H, D, E, seed=4)]
    compare(state_space_by_token, state_space_in_chunks, inputs, ROWS[rows](T))


def test_how_many_tokens_a_chunk_has():
    """A power of two, no more than the tokens fill and no more than 64; up to 4 tokens go one by one."""
    assert [chunks.chunk_size(n) for n in (1, 2, 3, 5, 8, 9, 64, 65)] == [1, 2, 4, 8, 8, 16, 64, 64]
    assert [chunks.goes_by_token(n) for n in (1, 4, 5)] == [True, True, False]


@pytest.mark.parametrize("rule", ["delta rule by head", "delta rule by channel", "state space"])
def test_each_chunk_costs_the_same(rule: str):
    """130 tokens are three chunks: the last is filled up."""
    shape = Shape(width=20, heads=H, kv_heads=2, key_dim=D, value_dim=E, rotary_dim=0)

    def operations(tokens: int) -> dict[str, int]:
        size = PassSize(2, tokens, tokens)
        if rule == "state space":
            return state_space_operations(size, shape)
        return delta_rule_operations(size, shape, by_channel=rule.endswith("channel"))

    assert operations(130) == {name: 3 * cost for name, cost in operations(64).items()}


@pytest.mark.parametrize("channels", [1, D], ids=["heads", "channels"])
def test_the_same_key_again_and_again(channels: int):
    """With β = 2 and no decay each token turns what is there to its opposite: no inverse by powers stands that."""
    T = 70
    q, k, v, _, beta, start = delta_inputs(T, torch.zeros(()))
    k = k[:, :1].expand(-1, T, -1, -1)
    inputs = [q, k, v, torch.zeros(2, T, H, channels, dtype=F64), torch.full_like(beta, 2), start]
    compare(delta_rule_by_token, delta_rule_in_chunks, inputs, Positions.arange(2, T))


@pytest.mark.parametrize("channels", [1, D], ids=["heads", "channels"])
def test_float32_keeps_its_digits_behind_a_strong_decay(channels: int):
    """Differences of running sums would lose them: e^-3000, then factors near 1."""
    T = 64
    g = decays("mild", 2, T, H, channels) * 0.01
    g[:, ::8] = -3000
    inputs = delta_inputs(T, g)
    want, _ = delta_rule_by_token(*inputs, Positions.arange(2, T), ())
    got, _ = delta_rule_in_chunks(*(t.float() for t in inputs), Positions.arange(2, T), ())
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)


def test_what_stands_in_padding_reaches_nobody():
    T = 70
    pos = Positions.rows([T, T - 9], pad="left")
    inputs = delta_inputs(T, decays("mild", 2, T, H, D))
    want, (state,) = delta_rule_in_chunks(*inputs, pos, (T - 1,))
    nan = [torch.where(pos.filled[..., None, None], t, torch.nan) for t in inputs[:-1]]
    given = [t.requires_grad_() for t in nan]
    out, (last,) = delta_rule_in_chunks(*given, inputs[-1], pos, (T - 1,))
    assert torch.equal(out[pos.filled], want[pos.filled])
    assert torch.equal(last, state)
    for grad in torch.autograd.grad(out[pos.filled].sum(), given):
        assert bool(grad.isfinite().all())
        assert not grad[~pos.filled].any()


def test_memory_grows_with_the_tokens_alone():
    """No tensor of a pass has more than so many numbers for each token."""
    largest = {T: largest_tensor(T) for T in (128, 512)}
    assert largest[512] <= 4 * largest[128]


def largest_tensor(T: int) -> int:
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = [0]

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in torch.utils._pytree.tree_leaves(out) if isinstance(t, Tensor))
            return out

    given = [t.requires_grad_() for t in delta_inputs(T, decays("mild", 2, T, H, D))]
    with Sizes():
        delta_rule_in_chunks(*given, Positions.arange(2, T), ())[0].sum().backward()
    return max(sizes)


# ---- in a model

LAYERS = {
    "gated-delta": vt.GatedDelta(4, vt.RMSNorm(), key_heads=2),
    "kimi-delta": vt.KimiDelta(4, vt.RMSNorm(), rank=3),
    "mamba-2": vt.Mamba2(4, vt.RMSNorm(), head_dim=6, state_dim=5, groups=2),
    "lightning": vt.Lightning(4, vt.RMSNorm(), rate=2.0),
}


@torch.no_grad()
@pytest.mark.parametrize("layer", LAYERS)
def test_chunks_behind_a_cached_state(layer: str):
    spec = vt.decoder(vocab=19, width=16, layers=2, attention=LAYERS[layer], position="none")
    model = sharpen(vt.build(spec).double())
    tokens = torch.randint(19, (2, 150), generator=torch.Generator().manual_seed(0))
    whole, cache = model(tokens), model.new_cache(2, draft=3)
    got = [model(part, cache=cache) for part in tokens.split([70, 1, 6, 64, 9], 1)]
    torch.testing.assert_close(torch.cat(got, 1), whole, rtol=1e-9, atol=1e-9)
    cache.crop(148)
    torch.testing.assert_close(model(tokens[:, 148:], cache=cache), whole[:, 148:], rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_over_documents_and_padding(layer: str, monkeypatch: pytest.MonkeyPatch):
    spec = vt.decoder(vocab=19, width=16, layers=1, attention=LAYERS[layer], position="none")
    model = sharpen(vt.build(spec).double())
    mixer, pos = model.blocks[0].sublayers[0], ROWS["documents"](42)
    found = []
    for few in (1000, chunks.MAX_TOKENS_ONE_BY_ONE):
        monkeypatch.setattr(chunks, "MAX_TOKENS_ONE_BY_ONE", few)
        x = vectors(2, 42, 16).requires_grad_()
        out = mixer(x, context(pos, caches=no_caches(model.spec, None, model.dtype)))[pos.filled]
        found.append((out, *torch.autograd.grad(out.square().sum(), [x, *mixer.parameters()])))
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
