"""What the families in LLaMA's layout read from a config, and what they refuse; no weights here."""

from functools import partial

import pytest

from vantage.checkpoints.config import Config
from vantage.errors import CheckpointError
from vantage.families import families, gemma3, gpt_oss, mistral, mixtral, phi3, qwen2, qwen3_moe, smollm3
from vantage.model.experts import Experts
from vantage.position.scaling import LongRope, YaRN
from vantage.spec.masks import Causal, SameSegment, Window

FULL, SLIDING = "full_attention", "sliding_attention"
NARROW, WIDE = Causal() & Window(9) & SameSegment(), Causal() & SameSegment()
BASE = {
    "vocab_size": 67,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "head_dim": 12,
}


def read(family, **values):
    config = Config({**BASE, **values})
    spec = family.spec(config)
    config.settle()
    return spec


def test_all_are_found_under_their_model_type():
    wanted = "mistral qwen2 qwen3 gemma3_text gemma3 phi3 smollm3 mixtral qwen3_moe gpt_oss"
    assert set(wanted.split()) <= set(families())


def masks(family, **values):
    return [layer.mask for layer in read(family, **values).layers]


def test_windows_by_layer():
    assert masks(mistral, sliding_window=9) == [NARROW] * 4
    assert masks(mistral, sliding_window=None) == [WIDE] * 4
    assert masks(mistral) == [Causal() & Window(4096) & SameSegment()] * 4  # as transformers takes it
    old = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3}
    assert masks(qwen2, **old) == [WIDE, WIDE, WIDE, NARROW]
    assert masks(qwen2, **{**old, "use_sliding_window": False}) == [WIDE] * 4
    assert masks(gpt_oss, sliding_window=9) == [NARROW, WIDE, NARROW, WIDE]
    assert masks(gemma3, sliding_window=9, sliding_window_pattern=2) == [NARROW, WIDE, NARROW, WIDE]
    assert masks(gemma3, sliding_window=9) == [NARROW] * 4  # the first global layer would be the sixth
    assert masks(smollm3, use_sliding_window=True, sliding_window=9) == [WIDE, WIDE, WIDE, NARROW]


def test_smollm3_has_no_position_on_every_fourth_layer():
    assert [len(layer.qk) for layer in read(smollm3).layers] == [1, 1, 1, 0]


def test_gemma3_as_it_was_written_before_transformers_5():
    """Published configs: two bases and a scaling of the global layers in three separate keys."""
    spec = read(
        gemma3,
        sliding_window=9,
        layer_types=[SLIDING, FULL, SLIDING, FULL],
        rope_theta=1e6,
        rope_local_base_freq=2e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        cache_implementation="hybrid",
    )
    local, whole = (layer.qk[1] for layer in spec.layers[:2])
    assert (local.base, local.scaling) == (2e4, None)
    assert (whole.base, whole.scaling.factor) == (1e6, 8.0)


def test_gpt_oss_without_a_word_on_rope_has_the_published_yarn():
    (turn,) = read(gpt_oss, sliding_window=9).layers[0].qk
    assert (turn.base, turn.scaling) == (150_000.0, YaRN(32.0, 4096, truncate=False))


def test_phi3_as_it_was_written_before_transformers_5():
    factors = [1.0] * 6
    scaling = {"type": "su", "short_factor": factors, "long_factor": factors}
    spec = read(phi3, rope_scaling=scaling, original_max_position_embeddings=32, embd_pdrop=0.0)
    assert spec.layers[0].qk[0].scaling == LongRope(tuple(factors), tuple(factors), 32, 4.0)


def test_qwen3_moe_chooses_its_layers():
    moe = partial(read, qwen3_moe, moe_intermediate_size=8, num_experts=3)
    assert [isinstance(layer.ffn, Experts) for layer in moe(decoder_sparse_step=2).layers] == [False, True] * 2
    assert not any(isinstance(layer.ffn, Experts) for layer in moe(mlp_only_layers=[0, 1, 2, 3]).layers)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 6, "long_factor": [1.0] * 6}
REFUSED = [
    (gemma3, {"sliding_window": 9, "use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    (gemma3, {"sliding_window": 9, "rope_parameters": {"rope_theta": 1.0}}, "'rope_theta' may change the model"),
    (gemma3, {"sliding_window": None}, "no sliding_window is in use"),
    (qwen2, {"layer_types": [SLIDING] * 4, "sliding_window": 9}, "no sliding_window is in use"),
    (qwen2, {"layer_types": [FULL] * 3}, "names 3 layers, num_hidden_layers is 4"),
    (qwen2, {"layer_types": [FULL] * 3 + ["chunked_attention"]}, "'chunked_attention'; wanted 'full_attention'"),
    (smollm3, {"no_rope_layers": [1, 0]}, "no_rope_layers names 2 layers, num_hidden_layers is 4"),
    (phi3, {"rope_parameters": YARN}, "YaRN"),
    (
        phi3,
        {
            "rope_parameters": {**LONG, "original_max_position_embeddings": 32},
            "original_max_position_embeddings": 64,
        },
        "is 64, and in rope 32",
    ),
    (phi3, {"attention_bias": True}, "attention_bias is True"),
    (mixtral, {"router_jitter_noise": 0.1}, "router_jitter_noise is 0.1"),
    (gpt_oss, {"sliding_window": 9, "num_experts_per_tok": 4, "experts_per_token": 2}, "experts_per_token is 2"),
    (mistral, {"partial_rotary_factor": 0.5}, "'partial_rotary_factor' may change the model"),
    (mistral, {"attention_bias": True}, "'attention_bias' may change the model"),
]


@pytest.mark.parametrize(("family", "values", "why"), REFUSED)
def test_refused_by_name(family, values, why):
    with pytest.raises(CheckpointError, match=why):
        read(family, **values)
