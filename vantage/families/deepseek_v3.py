"""DeepSeek-V3 and R1: V2 with sigmoid scores and a balancing bias in the router."""

from __future__ import annotations

from vantage.checkpoints.config import Config
from vantage.families.common import rope
from vantage.families.deepseek_v2 import links, model
from vantage.families.family import Family
from vantage.model.routers import GroupLimited
from vantage.spec.model import ModelSpec


def spec(c: Config) -> ModelSpec:
    pairing = "adjacent" if c.flag("rope_interleave", True) else "halves"
    return model(c, rope(c, pairing=pairing), router(c), mlp_bias=False)


def router(c: Config) -> GroupLimited:
    c.must_be("topk_method", "noaux_tc")
    c.must_be("scoring_func", "sigmoid")
    # layers that guess the tokens after the next one, for drafting: no part of the logits
    c.inert("num_nextn_predict_layers", "num_mtp_layers")
    return GroupLimited(
        c.whole("num_experts_per_tok", low=1),
        c.whole("n_group", low=1),
        c.whole("topk_group", low=1),
        "sigmoid",
        best=2,
        bias=True,
        renormalise=c.flag("norm_topk_prob", True),
        scale=c.number("routed_scaling_factor", 1.0),
    )


# layer 61 of the published checkpoints, behind the last (60), is the drafting layer
FAMILY = Family(
    "deepseek_v3",
    spec,
    links,
    ignored=("rotary_emb.inv_freq", "model.layers.61."),
    wide=("e_score_correction_bias",),  # its differences are smaller than bfloat16 tells apart, and it decides
)
