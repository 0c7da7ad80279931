"""GPT-1: as GPT-2, but with the norm after each sum, none at the end, and gelu meaning its tanh form."""

from __future__ import annotations

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each
from vantage.families.family import Family
from vantage.families.gpt2 import MASKS, attention, ends, layer_links, model
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm
from vantage.spec.model import POST, Layer, ModelSpec

ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


def spec(c: Config) -> ModelSpec:
    ffn = FeedForward(4 * c.whole("n_embd", low=1), c.choice("afn", ACTIVATIONS, "gelu"), gated=False, bias=True)
    norm = LayerNorm(c.number("layer_norm_epsilon", 1e-5))
    layer = Layer(attention(c), ffn, norm, wiring=POST, dropout=c.number("resid_pdrop", 0.1))
    c.must_be("n_special", 0)  # rows for tokens of a task: no checkpoint has any
    c.inert("predict_special_tokens")
    return model(c, (layer,) * c.whole("n_layer", low=1))


def links(c: Config, spec: ModelSpec) -> list[Link]:
    return [*ends(spec, "tokens_embed", "positions_embed"), *each(len(spec.layers), layer_links("outer"))]


FAMILY = Family("openai-gpt", spec, links, ignored=MASKS, prefix="transformer.")
