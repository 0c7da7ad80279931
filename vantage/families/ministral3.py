"""Ministral 3, its text model: Mistral with YaRN and a temperature past the length it was first trained for."""

from __future__ import annotations

from vantage.attention import LengthTemperature
from vantage.checkpoints.config import Config
from vantage.families import llama, llama_layout
from vantage.families.common import rope_rule
from vantage.families.family import Family
from vantage.model.norms import RMSNorm
from vantage.position import Rope
from vantage.position.scaling import YaRN
from vantage.spec.model import Layer, ModelSpec
from vantage.spec.parts import Buildable


def spec(c: Config) -> ModelSpec:
    norm = RMSNorm(c.number("rms_norm_eps", 1e-5))
    attention = llama_layout.attention(c, head_dim=128)
    layer = Layer(
        attention, llama_layout.feed_forward(c), norm, llama_layout.mask(llama_layout.window(c)), transforms(c)
    )
    return llama_layout.model(c, (layer,) * llama_layout.count(c), norm)


def transforms(c: Config) -> tuple[Buildable, ...]:
    """RoPE and the temperature, both from ``rope_parameters``; without it, what transformers takes then."""
    part, theta = c.part("rope_parameters") or c.part("rope_scaling"), c.number("rope_theta", None)
    if part is None:
        rule = YaRN(16.0, 16_384, mscale=1.0, mscale_all_dim=1.0)
        return Rope(1_000_000.0 if theta is None else theta, rule), LengthTemperature(0.1, 16_384.0, "ministral3")
    part.inert("max_position_embeddings")  # the model's own, once more
    rule = rope_rule(part, c, c.whole("max_position_embeddings", None, low=1))
    turn = Rope(part.number("rope_theta", 10_000.0 if theta is None else theta), rule)
    floor = part.whole("original_max_position_embeddings", low=1)
    return turn, LengthTemperature(part.number("llama_4_scaling_beta"), float(floor), "ministral3")


FAMILY = Family("ministral3", spec, llama.links, ignored=("rotary_emb.inv_freq",))
