"""Position inside the attention path, against attention layers of transformers with the same weights."""

import pytest
import torch
from transformers import BloomConfig, LlamaConfig, T5Config
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor
from transformers.models.gptj.modeling_gptj import GPTJConfig, create_sinusoidal_positions
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as turn_adjacent
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from tests.attention.helpers import Listing, attention, run, vectors
from vantage.attention import GroupedQuery
from vantage.position import T5, Alibi, Rope
from vantage.spec.masks import Causal, Everything
from vantage.spec.model import Scores
from vantage.spec.positions import Positions

KERNELS = pytest.mark.parametrize("kernel", ["reference", "sdpa", "flex"])
CLOSE = {"rtol": 0, "atol": 5e-6}  # they work out positions and the softmax in float32


def causal_mask(T, dtype=torch.float64):
    return torch.full((1, 1, T, T), -torch.inf, dtype=dtype).triu(1)


def decoded(module, x, kernel):
    """A prefill of three tokens and then one at a time."""
    cache, T = Listing(), x.shape[1]
    parts = [run(module, x[:, :3], caches=[cache], kernel=kernel)]
    for t in range(3, T):
        parts.append(
            run(module, x[:, t : t + 1], pos=Positions.arange(x.shape[0], 1, t), caches=[cache], kernel=kernel)
        )
    return torch.cat(parts, 1)


@KERNELS
@torch.no_grad()
def test_rope_is_llamas(kernel):
    config = LlamaConfig(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    config._attn_implementation = "eager"
    theirs = LlamaAttention(config, 0).double()
    ours = attention(GroupedQuery(4, 2), 32, parts=Rope(config.rope_parameters["rope_theta"]).parts(causal=True))
    parts = zip((theirs.q_proj, theirs.k_proj, theirs.v_proj), ours.qkv.weight.split((32, 16, 16)), strict=True)
    for part, weight in parts:
        part.weight.copy_(weight)
    theirs.o_proj.weight.copy_(ours.out.weight)
    x, at = vectors(2, 6, 32), torch.arange(6)[None]
    wanted, _ = theirs(x, LlamaRotaryEmbedding(config)(x, at), causal_mask(6))
    torch.testing.assert_close(run(ours, x, kernel=kernel), wanted, **CLOSE)
    torch.testing.assert_close(decoded(ours, x, kernel), wanted, **CLOSE)


@torch.no_grad()
def test_adjacent_pairs_are_gpt_js():
    config = GPTJConfig(n_embd=16, n_head=2, rotary_dim=8)
    table = create_sinusoidal_positions(64, config.rotary_dim).double()
    ours, x = attention(GroupedQuery(2), 16, parts=Rope(pairing="adjacent").parts(causal=True)), 2 * vectors(1, 6, 16)
    q, k, v = (t.transpose(1, 2) for t in ours.project(x))  # (B, T, H, d), as they have it
    sin, cos = table[None, :6].chunk(2, -1)
    q, k = turn_adjacent(q, sin, cos), turn_adjacent(k, sin, cos)
    scores = torch.einsum("bthd,bshd->bhts", q, k) / 8**0.5 + causal_mask(6)
    wanted = ours.out(torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v).flatten(2))
    torch.testing.assert_close(run(ours, x), wanted, **CLOSE)


@KERNELS
@pytest.mark.parametrize("heads", [4, 6])
@torch.no_grad()
def test_alibi_is_blooms(kernel, heads):
    width = 4 * heads
    theirs = BloomAttention(BloomConfig(hidden_size=width, n_head=heads, hidden_dropout=0.0), 0).double().eval()
    ours = attention(GroupedQuery(heads, bias=True, out_bias=True), width, parts=Alibi().parts(causal=True))
    fused = ours.qkv.weight.view(3, heads, 4, width).transpose(0, 1).reshape(3 * width, width)
    theirs.query_key_value.weight.copy_(fused)
    theirs.query_key_value.bias.copy_(ours.qkv.bias.view(3, heads, 4).transpose(0, 1).flatten())
    theirs.dense.load_state_dict(ours.out.state_dict())
    x, real = 2 * vectors(2, 6, width), torch.ones(2, 6, dtype=torch.long)
    alibi = build_alibi_tensor(real, heads, torch.float64)
    wanted, weights = theirs(x, torch.zeros_like(x), alibi, causal_mask(6))
    torch.testing.assert_close(run(ours, x, kernel=kernel), wanted, **CLOSE)
    torch.testing.assert_close(decoded(ours, x, kernel), wanted, **CLOSE)
    seen = []
    run(ours, x, watch=lambda site, i, view, need, done: seen.append(done.weights))
    torch.testing.assert_close(seen[0], weights.view(2, heads, 6, 6), **CLOSE)


@KERNELS
@pytest.mark.parametrize("decoder", [True, False])
@torch.no_grad()
def test_t5_bias_is_t5s(kernel, decoder):
    config = T5Config(
        d_model=16,
        d_kv=4,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        is_decoder=decoder,
        dropout_rate=0.0,
    )
    config._attn_implementation = "eager"
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double().eval()
    encoding = T5(buckets=8, max_distance=20)
    mask = Causal() if decoder else Everything()
    scores = GroupedQuery(4, scores=Scores(scale=1.0))
    ours = attention(scores, 16, mask, parts=encoding.parts(causal=decoder))
    for part, weight in zip((theirs.q, theirs.k, theirs.v), ours.qkv.weight.chunk(3), strict=True):
        part.weight.copy_(weight)
    theirs.o.weight.copy_(ours.out.weight)
    theirs.relative_attention_bias.weight.copy_(ours.scorer.bias.table)
    x = vectors(2, 26, 16)
    wanted = theirs(x, mask=causal_mask(26) if decoder else torch.zeros(1, 1, 1, 26))[0]
    torch.testing.assert_close(run(ours, x, kernel=kernel), wanted, rtol=0, atol=1e-5)
