"""Qwen3.5's text model with experts on every layer, and one more that every token goes to."""

from __future__ import annotations

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each
from vantage.families import llama_layout, qwen3_5, qwen3_next
from vantage.families.family import Family
from vantage.families.llama import ends
from vantage.model.experts import Experts, TopK
from vantage.spec.model import ModelSpec


def spec(c: Config) -> ModelSpec:
    c.inert("output_router_logits", "router_aux_loss_coef")  # what training may ask for besides the logits
    c.must_be("norm_topk_prob", True)
    shared = llama_layout.feed_forward(c, "shared_expert_intermediate_size")
    expert, router = (
        llama_layout.feed_forward(c, "moe_intermediate_size"),
        TopK(c.whole("num_experts_per_tok", 8, low=1)),
    )
    count = c.whole("num_experts", c.whole("num_local_experts", 256, low=1), low=1)
    experts = Experts(expert, count, router, shared=shared, shared_gate=True)
    return qwen3_5.hybrid(c, [experts] * llama_layout.count(c))


def links(c: Config, spec: ModelSpec) -> list[Link]:
    table = ends(spec)
    for i, layer in enumerate(spec.layers):
        table += each([i], [*qwen3_5.mixer_links(layer.attention, spec.width), *qwen3_next.expert_links(layer)])
    return table


FAMILY = Family("qwen3_5_moe_text", spec, links, ignored=("mtp.",))
