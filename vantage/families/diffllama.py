"""DiffLlama: LLaMA with differential attention."""

from __future__ import annotations

from itertools import chain

from vantage.attention import Differential
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Joined, Link, Rows, each, same
from vantage.families import llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.families.llama import ends
from vantage.families.module_links import gated_links, kinds, modules
from vantage.model.norms import RMSNorm
from vantage.model.unit import UnitRMS
from vantage.spec.model import Layer, ModelSpec

OURS, THEIRS = "blocks.{i}.steps", "model.layers.{i}"


def spec(c: Config) -> ModelSpec:
    eps = c.number("rms_norm_eps", 1e-5)
    heads, bias = c.whole("num_attention_heads", low=2), c.flag("attention_bias", False)
    c.must_be("attention_dropout", 0.0)  # transformers refuses it: two softmaxes, and no rule for dropping from both
    c.inert("lambda_std_dev")  # of fresh weights
    attention = Differential(
        heads,
        c.whole("num_key_value_heads", heads, low=2),
        c.whole("head_dim", None, low=1),
        UnitRMS(eps),
        bias=bias,
        out_bias=bias,
    )
    layer = Layer(attention, llama_layout.feed_forward(c), RMSNorm(eps), qk=(rope(c),))
    return llama_layout.model(c, (layer,) * llama_layout.count(c), RMSNorm(eps))


def links(c: Config, spec: ModelSpec) -> list[Link]:
    return [*ends(spec), *each(len(spec.layers), layer_links(spec))]


def layer_links(spec: ModelSpec) -> list[Link]:
    layer = spec.layers[0]
    attention = layer.attention
    assert isinstance(attention, Differential)
    ours, theirs = f"{OURS}.0.sublayer", f"{THEIRS}.self_attn"
    norms = {f"{OURS}.0.before": f"{THEIRS}.input_layernorm", f"{OURS}.1.before": f"{THEIRS}.post_attention_layernorm"}
    lambdas = {f"{ours}.lambda_{x}": f"{theirs}.lambda_{x}" for x in ("q1", "k1", "q2", "k2")}
    s = attention.shape(spec.width)
    pairs, per, d = s.kv_heads // 2, s.heads // s.kv_heads, s.key_dim
    keys = paired(pairs, 1, d)
    orders = (paired(pairs, per, d), keys, keys)
    sizes, names = tuple(len(order.order) for order in orders), tuple(f"{theirs}.{x}_proj" for x in "qkv")
    qkv = [
        Joined(f"{ours}.qkv.{kind}", tuple(f"{name}.{kind}" for name in names), sizes, changes=orders)
        for kind in kinds(attention.bias)
    ]
    return [
        *modules(norms, bias=False),
        *qkv,
        *modules({f"{ours}.out": f"{theirs}.o_proj"}, bias=attention.out_bias),
        *same(lambdas),
        *gated_links("", f"{THEIRS}.mlp", layer.ffn),
    ]


def paired(pairs: int, per: int, d: int) -> Rows:
    """Heads of ``d`` rows, ``per`` of them for each key head: theirs has the second of every pair in the second half,
    ours has it behind the first."""
    heads = (which * pairs * per + pair * per + j for pair in range(pairs) for which in range(2) for j in range(per))
    return Rows(tuple(chain.from_iterable(range(head * d, (head + 1) * d) for head in heads)))


FAMILY = Family("diffllama", spec, links, ignored=("rotary_emb.inv_freq",))
