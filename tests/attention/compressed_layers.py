"""DeepSeek-V4's attention of transformers, and ours with its weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Attention, DeepseekV4RotaryEmbedding

import vantage as vt
from tests.attention.helpers import attention, context, sharpen
from vantage.cache.layer_cache import NoCache
from vantage.spec.positions import Positions

WIDTH, HEADS, DIM, ROPE, NEAR, RANK = 24, 4, 12, 6, 5, 10
THETA, EPS = 160000.0, 1e-6
KINDS = {"hca": "heavily_compressed_attention", "csa": "compressed_sparse_attention"}
CHOICE = {"keep": 3, "heads": 12, "head_dim": 8, "rope_dim": ROPE, "qk": (vt.Rope(THETA, pairing="adjacent"),)}


def their_config(kind: str, ratio: int, **other) -> DeepseekV4Config:
    return DeepseekV4Config(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        head_dim=DIM,
        partial_rotary_factor=ROPE / DIM,
        q_lora_rank=RANK,
        sliding_window=NEAR,
        num_hidden_layers=1,
        layer_types=[KINDS[kind]],
        compress_rates=dict.fromkeys(KINDS.values(), ratio),
        compress_rope_theta=THETA,
        o_groups=2,
        o_lora_rank=7,
        index_n_heads=CHOICE["heads"],
        index_head_dim=CHOICE["head_dim"],
        index_topk=CHOICE["keep"],
        rms_norm_eps=EPS,
        attn_implementation="eager",
        **other,
    )


def our_config(kind: str, ratio: int) -> vt.HeavilyCompressed | vt.CompressedSparse:
    same = {
        "head_dim": DIM,
        "ratio": ratio,
        "near": NEAR,
        "rope_dim": ROPE,
        "turned_values": True,
        "norm": vt.RMSNorm(EPS),
        "maps": vt.SmallMaps(RANK, EPS, out_rank=7, out_groups=2),
        "scores": vt.Scores(sinks=True),
    }
    if kind == "hca":
        return vt.HeavilyCompressed(HEADS, **same)
    return vt.CompressedSparse(HEADS, **same, choice=vt.EntryChooser(**CHOICE))


def both(kind: str, ratio: int) -> tuple[nn.Module, nn.Module, DeepseekV4RotaryEmbedding]:
    config = their_config(kind, ratio)
    theirs = sharpen(DeepseekV4Attention(config, 0).float(), seed=3)
    parts = vt.Rope(THETA, pairing="adjacent").parts(causal=True)
    ours = attention(our_config(kind, ratio), WIDTH, parts=parts, dtype=torch.float32)
    taken = {
        "q_down.weight": theirs.q_a_proj.weight,
        "q_low_norm.weight": theirs.q_a_norm.weight,
        "q.weight": theirs.q_b_proj.weight,
        "kv.weight": theirs.kv_proj.weight,
        "kv_norm.weight": theirs.kv_norm.weight,
        "out.down": theirs.o_a_proj.weight.view(2, 7, -1),
        "out.up.weight": theirs.o_b_proj.weight,
        "scorer.sinks": theirs.sinks,
        **pooled("pool", "entry_norm", theirs.compressor),
    }
    if kind == "csa":
        indexer = theirs.compressor.indexer
        taken |= pooled("choice.pool", "choice.norm", indexer)
        taken |= {
            "choice.q.weight": indexer.q_b_proj.weight,
            "choice.weights.weight": indexer.scorer.weights_proj.weight,
        }
    ours.load_state_dict({name: value.detach() for name, value in taken.items()})
    return ours, theirs, DeepseekV4RotaryEmbedding(config)


def pooled(pool: str, norm: str, theirs: nn.Module) -> dict[str, Tensor]:
    maps = torch.cat([theirs.kv_proj.weight, theirs.gate_proj.weight])
    return {f"{pool}.maps.weight": maps, f"{pool}.bias": theirs.position_bias, f"{norm}.weight": theirs.kv_norm.weight}


def run_theirs(theirs: nn.Module, rotary: DeepseekV4RotaryEmbedding, x: Tensor) -> Tensor:
    T = x.shape[1]
    ids = torch.arange(T).expand(len(x), T)
    far = (ids[0][:, None] - ids[0]) >= NEAR
    hidden = far | (ids[0] > ids[0][:, None])
    mask = torch.zeros(len(x), 1, T, T).masked_fill(hidden, float("-inf"))
    tables = {"compress": rotary(x, ids, layer_type="compress")}
    return theirs(x, tables, ids, mask)[0]


def run_ours(module: nn.Module, x: Tensor, pos: Positions | None = None, kernel: str = "reference") -> Tensor:
    pos = Positions.arange(*x.shape[:2]) if pos is None else pos
    kept = module.config.cache_shape(x.shape[-1]).streams
    return module(x, context(pos, caches=[NoCache(kept)], kernel=kernel))
