"""Phi-3 and Phi-4: q, k and v in one matrix, gate and up in one, LongRoPE, a share of each head turned."""

from __future__ import annotations

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each, same
from vantage.errors import CheckpointError
from vantage.families import llama, llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.model.norms import RMSNorm
from vantage.position import Rope
from vantage.position.scaling import LongRope
from vantage.spec.model import Layer, ModelSpec


def spec(c: Config) -> ModelSpec:
    c.must_be("attention_bias", False)
    c.inert("embd_pdrop")  # transformers drops nothing at the embeddings, whatever this says
    norm = RMSNorm(c.number("rms_norm_eps", 1e-5))
    mask, dropout = llama_layout.mask(llama_layout.window(c)), c.number("resid_pdrop", 0.0)
    layer = Layer(llama_layout.attention(c), llama_layout.feed_forward(c), norm, mask, (long_rope(c),), dropout=dropout)
    return llama_layout.model(c, (layer,) * llama_layout.count(c), norm)


def long_rope(c: Config) -> Rope:
    """Plain RoPE or LongRoPE: transformers reads any other name as the latter, so none is taken here."""
    turn = rope(c, partial=True)
    original = c.whole("original_max_position_embeddings", None, low=1)
    if turn.scaling is not None:
        if not isinstance(turn.scaling, LongRope):
            raise CheckpointError(f"config.json: rope is {turn.scaling}; wanted rope_type 'default' or 'longrope'")
        if original not in (None, turn.scaling.original):
            raise CheckpointError(
                f"config.json: original_max_position_embeddings is {original}, and in rope {turn.scaling.original}"
            )
    return turn


def links(c: Config, spec: ModelSpec) -> list[Link]:
    ours, theirs = "blocks.{i}.steps", "model.layers.{i}"
    layer = same(
        {
            f"{ours}.0.before.weight": f"{theirs}.input_layernorm.weight",
            f"{ours}.0.sublayer.qkv.weight": f"{theirs}.self_attn.qkv_proj.weight",
            f"{ours}.0.sublayer.out.weight": f"{theirs}.self_attn.o_proj.weight",
            f"{ours}.1.before.weight": f"{theirs}.post_attention_layernorm.weight",
            f"{ours}.1.sublayer.gate_up.weight": f"{theirs}.mlp.gate_up_proj.weight",
            f"{ours}.1.sublayer.down.weight": f"{theirs}.mlp.down_proj.weight",
        }
    )
    return [*llama.ends(spec), *each(len(spec.layers), layer)]


FAMILY = Family("phi3", spec, links)
