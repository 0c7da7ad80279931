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
    "quick_gelu": "quick_gelu",
}


def rope(
    config: Config, *, base: float = 10000.0, pairing: str = "halves", partial: bool = False, share: float = 1.0
) -> Rope:
    """RoPE from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before).

    ``partial``: this family turns a share of each head (others ignore that key, so it is refused there);
    ``share`` is which, where the config does not say.
    """
    rope_config = config.part("rope_parameters") or config.part("rope_scaling")
    theta, turned = config.number("rope_theta", None), None
    if rope_config is not None:
        theta = rope_config.number("rope_theta", theta)
    if partial:
        turned = config.number("partial_rotary_factor", None)
        turned = turned if rope_config is None else rope_config.number("partial_rotary_factor", turned)
    longest = config.whole("max_position_embeddings", None, low=1)
    rule = None if rope_config is None else rope_rule(rope_config, config, longest)
    return Rope(base if theta is None else theta, rule, pairing, share if turned is None else turned)


def rope_rule(
    rope_config: Config, config: Config, longest: int | None, plain: tuple[str, ...] = ("default",)
) -> scaling.Rule | None:
    """The frequency rule that a config names; ``plain`` are the names of none."""
    rope_config.inert("type" if "rope_type" in rope_config else "rope_type")
    kind = rope_config.choice(
        "rope_type" if "rope_type" in rope_config else "type",
        {k: k for k in (*plain, "linear", "dynamic", "yarn", "longrope", "su", "llama3", "proportional")},
        "default",
    )
    if kind in plain:
        return None
    if kind == "linear":
        return scaling.Linear(rope_config.number("factor"))
    original = rope_config.whole("original_max_position_embeddings", None, low=1)
    if original is None:
        original = config.whole("original_max_position_embeddings", longest, low=1)
    if original is None:
        raise CheckpointError("rope: neither original_max_position_embeddings nor max_position_embeddings is given")
    if kind == "dynamic":
        return scaling.DynamicNTK(rope_config.number("factor"), longest or original)
    if kind == "llama3":
        low, high = rope_config.number("low_freq_factor"), rope_config.number("high_freq_factor")
        return scaling.Llama3(rope_config.number("factor"), low, high, original)
    if kind == "yarn":
        return _yarn(rope_config, original, longest)
    if kind == "proportional":
        return scaling.Proportional(rope_config.number("partial_rotary_factor", 1.0), rope_config.number("factor", 1.0))
    factor = rope_config.number("factor", None)
    if factor is None and longest is not None:
        factor = longest / original
    return scaling.LongRope(
        rope_config.numbers("short_factor"),
        rope_config.numbers("long_factor"),
        original,
        factor,
        rope_config.number("attention_factor", None),
    )


def _yarn(rope_config: Config, original: int, longest: int | None) -> scaling.YaRN:
    factor = rope_config.number("factor", None)
    if factor is None:
        factor = (longest or original) / original
    return scaling.YaRN(
        factor,
        original,
        rope_config.number("beta_fast", 32.0),
        rope_config.number("beta_slow", 1.0),
        rope_config.number("attention_factor", None),
        rope_config.number("mscale", None),
        rope_config.number("mscale_all_dim", None),
        rope_config.flag("truncate", True),
    )
