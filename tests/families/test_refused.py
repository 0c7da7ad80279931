"""Configs of the newer families that say something else than what is computed: refused, never ignored."""

import pytest

from tests.parity.cases import CASES
from vantage.checkpoints.config import Config
from vantage.errors import BadInput, CheckpointError
from vantage.families import families

BASE = {case.family: case.base for case in CASES}


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        ("qwen3_next", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; wanted 'silu' or 'swish'"),
        ("qwen3_next", {"layer_types": ["conv"] * 4}, "wanted 'full_attention' or 'linear_attention'"),
        ("qwen3_next", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1; wanted a whole number from 2"),
        ("lfm2", {"layer_types": ["linear_attention"] * 3}, "wanted 'full_attention' or 'conv'"),
        ("lfm2", {"block_use_swiglu": False}, "block_use_swiglu is False; wanted True"),
        ("lfm2", {"conv_dim": 24}, "conv_dim is 24; wanted 48"),
        ("lfm2", {"tie_embedding": True, "tie_word_embeddings": False}, "tie_word_embeddings is False; wanted True"),
        ("cohere2", {"use_qk_norm": True}, "use_qk_norm is True; wanted False"),
        ("cohere2", {"head_dim": 16}, "head_dim is 16; wanted 12"),
        ("cohere2", {"layer_switch": 3}, "layer_switch is 3; wanted 4"),
        ("cohere2", {"sliding_window": None}, "no sliding_window is in use"),
        ("exaone4", {"sliding_window_pattern": "LLLG"}, "sliding_window_pattern is 'LLLG'; wanted a whole number"),
        ("kimi_linear", {"tie_word_embeddings": True}, "tie_word_embeddings is True; wanted False"),
        ("kimi_linear", {"mlp_layer_types": ["sparse"]}, "wanted 'dense' or 'sparse' for 4 layers"),
        (
            "kimi_linear",
            {"linear_attn_config": {"full_attn_layers": [1], "kda_layers": [1, 2, 3]}},
            "full_attn_layers and kda_layers are not 1 to 4, each once",
        ),
        ("qwen3_5_text", {"attn_output_gate": False}, "attn_output_gate is False; wanted True"),
        ("qwen3_5_moe_text", {"norm_topk_prob": False}, "norm_topk_prob is False; wanted True"),
        ("ministral3", {"rope_parameters": {"rope_theta": 1e6}}, "'original_max_position_embeddings' is missing"),
        ("gemma3n_text", {"num_kv_shared_layers": 6}, "no earlier layer is 'full_attention' or 'sliding_attention'"),
        ("gemma3n_text", {"num_kv_shared_layers": 4}, "no earlier layer is 'full_attention'"),
        ("gemma3n_text", {"activation_sparsity_pattern": [0.5]}, "activation_sparsity_pattern speaks of 1 layers"),
        ("gemma3n_text", {"intermediate_size": [56]}, "intermediate_size speaks of 1 layers, num_hidden_layers is 6"),
        ("gemma3n_text", {"altup_active_idx": 4}, "active=4: there are 4 streams"),
        ("ministral3", {"layer_types": ["full_attention"] * 3}, "'layer_types' may change the model"),
    ],
)
def test_a_config_that_says_otherwise(family, changes, says):
    with pytest.raises((CheckpointError, BadInput), match=says):
        read(family, {**BASE[family], **changes})


def read(family, values):
    """As loading does, without tensors."""
    config = Config(values)
    families()[family].links(config, families()[family].spec(config))
    config.settle()


@pytest.mark.parametrize("family", ["qwen3_next", "lfm2", "cohere2", "exaone4", "gemma3n_text", "ministral3"])
def test_a_key_of_no_known_meaning(family):
    read(family, BASE[family])
    with pytest.raises(CheckpointError, match="'invented' may change the model"):
        read(family, {**BASE[family], "invented": 1})
