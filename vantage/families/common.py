"""What the files of many families read alike."""

from __future__ import annotations

from vantage.checkpoints.config import Config
from vantage.errors import CheckpointError
from vantage.position import Rope, scaling

# the names that transformers gives to activations
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


def rope(
    config: Config, *, base: float = 10000.0, pairing: str = "halves", partial: bool = False, share: float = 1.0
) -> Rope:
    """RoPE from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before).

    ``partial``: this family turns a share of each head (others ignore that key, so it is refused there);
    ``share`` is which, where the config does not say.
    """
    said = config.part("rope_parameters") or config.part("rope_scaling")
    theta, turned = config.number("rope_theta", None), None
    if said is not None:
        theta = said.number("rope_theta", theta)
    if partial:
        turned = config.number("partial_rotary_factor", None)
        turned = turned if said is None else said.number("partial_rotary_factor", turned)
    longest = config.whole("max_position_embeddings", None, low=1)
    rule = None if said is None else rope_rule(said, config, longest)
    return Rope(base if theta is None else theta, rule, pairing, share if turned is None else turned)


def rope_rule(said: Config, config: Config, longest: int | None) -> scaling.Rule | None:
    """The frequency rule that a config names."""
    said.inert("type" if "rope_type" in said else "rope_type")
    kind = said.choice(
        "rope_type" if "rope_type" in said else "type",
        {k: k for k in ("default", "linear", "dynamic", "yarn", "longrope", "su", "llama3", "proportional")},
        "default",
    )
    if kind == "default":
        return None
    if kind == "linear":
        return scaling.Linear(said.number("factor"))
    original = said.whole("original_max_position_embeddings", None, low=1)
    if original is None:
        original = config.whole("original_max_position_embeddings", longest, low=1)
    if original is None:
        raise CheckpointError("rope: neither original_max_position_embeddings nor max_position_embeddings is given")
    if kind == "dynamic":
        return scaling.DynamicNTK(said.number("factor"), longest or original)
    if kind == "llama3":
        low, high = said.number("low_freq_factor"), said.number("high_freq_factor")
        return scaling.Llama3(said.number("factor"), low, high, original)
    if kind == "yarn":
        return _yarn(said, original, longest)
    if kind == "proportional":
        return scaling.Proportional(said.number("partial_rotary_factor", 1.0), said.number("factor", 1.0))
    factor = said.number("factor", None)
    if factor is None and longest is not None:
        factor = longest / original
    return scaling.LongRope(
        said.numbers("short_factor"),
        said.numbers("long_factor"),
        original,
        factor,
        said.number("attention_factor", None),
    )


def _yarn(said: Config, original: int, longest: int | None) -> scaling.YaRN:
    factor = said.number("factor", None)
    if factor is None:
        factor = (longest or original) / original
    return scaling.YaRN(
        factor,
        original,
        said.number("beta_fast", 32.0),
        said.number("beta_slow", 1.0),
        said.number("attention_factor", None),
        said.number("mscale", None),
        said.number("mscale_all_dim", None),
        said.flag("truncate", True),
    )
