"""Qwen 3 with experts: on every layer, on every so many, and not on those named."""

from __future__ import annotations

from vantage.attention import QKNorm
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each
from vantage.families import llama, llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.model.experts import Experts, TopK
from vantage.model.norms import RMSNorm
from vantage.spec.model import FeedForwardConfig, Layer, ModelSpec


def spec(c: Config) -> ModelSpec:
    c.inert("output_router_logits", "router_aux_loss_coef")  # what training may ask for besides the logits
    c.inert("max_window_layers")  # the window, where it is used, is on all layers
    norm = RMSNorm(c.number("rms_norm_eps", 1e-6))
    bias = c.flag("attention_bias", False)
    attention = llama_layout.attention(c, bias=bias, out_bias=bias)
    mask = llama_layout.mask(llama_layout.window(c, used=c.flag("use_sliding_window", False), silent=4096))
    qk = (QKNorm(norm), rope(c))
    return llama_layout.model(c, [Layer(attention, ffn, norm, mask, qk) for ffn in feed_forwards(c)], norm)


def feed_forwards(c: Config, *, renormalise: bool = False) -> list[FeedForwardConfig]:
    """The feed-forward part of each layer. transformers 5 writes the number of experts under another name.

    ``renormalise`` is what the family does when its config is silent.
    """
    router = TopK(c.whole("num_experts_per_tok", 8, low=1), renormalise=c.flag("norm_topk_prob", renormalise))
    count = c.whole("num_experts", c.whole("num_local_experts", 128))
    dense = llama_layout.feed_forward(c)
    sparse = Experts(llama_layout.feed_forward(c, "moe_intermediate_size"), count, router)
    step, spared = c.whole("decoder_sparse_step", 1, low=1), c.numbers("mlp_only_layers", ())
    routed = [count > 0 and i not in spared and (i + 1) % step == 0 for i in range(llama_layout.count(c))]
    return [sparse if is_sparse else dense for is_sparse in routed]


def links(c: Config, spec: ModelSpec) -> list[Link]:
    routed = [i for i, layer in enumerate(spec.layers) if isinstance(layer.ffn, Experts)]
    dense = [i for i in range(len(spec.layers)) if i not in routed]
    names = ("gate_proj", "up_proj", "down_proj")
    return [
        *llama.ends(spec),
        *each(len(spec.layers), [*llama.attention_links(spec), *llama_layout.qk_norm_links()]),
        *(link for i in dense for link in each([i], llama_layout.feed_forward_links(spec.layers[i]))),
        *(
            link
            for i in routed
            for link in each([i], llama_layout.expert_links(spec.layers[i], "model.layers.{i}.mlp", names))
        ),
    ]


FAMILY = Family("qwen3_moe", spec, links)
