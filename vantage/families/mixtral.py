"""Mixtral: Mistral with a choice of experts as its feed-forward part."""

from __future__ import annotations

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each
from vantage.families import llama, llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.model.experts import Experts, TopK
from vantage.model.norms import RMSNorm
from vantage.spec.model import Layer, ModelSpec


def spec(c: Config) -> ModelSpec:
    c.inert("output_router_logits", "router_aux_loss_coef")  # what training may ask for besides the logits
    c.must_be("router_jitter_noise", 0.0)
    norm = RMSNorm(c.number("rms_norm_eps", 1e-5))
    router = TopK(c.whole("num_experts_per_tok", 2, low=1))
    experts = Experts(llama_layout.feed_forward(c), c.whole("num_local_experts", 8, low=1), router)
    mask = llama_layout.mask(llama_layout.window(c))
    layer = Layer(llama_layout.attention(c), experts, norm, mask, (rope(c, base=1_000_000.0),))
    return llama_layout.model(c, (layer,) * llama_layout.count(c), norm)


def links(c: Config, spec: ModelSpec) -> list[Link]:
    theirs, names = "model.layers.{i}.block_sparse_moe", ("w1", "w3", "w2")
    experts = llama_layout.expert_links(spec.layers[0], theirs, names)
    return [*llama.ends(spec), *each(len(spec.layers), [*llama.attention_links(spec), *experts])]


FAMILY = Family("mixtral", spec, links)
