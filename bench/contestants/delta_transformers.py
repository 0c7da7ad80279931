"""The same layer in transformers, in its own torch functions: no flash-linear-attention is installed."""

import torch
from delta_shape import HEAD, HEADS, TAPS, WIDTH, check, inputs, timed
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet


def setup(tokens: int, training: bool) -> None:
    global layer, x, trains
    torch.manual_seed(0)
    config = Qwen3NextConfig(
        hidden_size=WIDTH,
        linear_num_key_heads=HEADS,
        linear_num_value_heads=HEADS,
        linear_key_head_dim=HEAD,
        linear_value_head_dim=HEAD,
        linear_conv_kernel_dim=TAPS,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    layer = Qwen3NextGatedDeltaNet(config, 0)
    x, trains = inputs(tokens), training
    check(layer)


def round() -> dict[str, list[float]]:
    return timed(lambda: layer(x), trains)
