"""LLaMA-4's text model. Chunks and the temperature's steps are short, so that 40 tokens cross several."""

from tests.parity.case import DECODER, THETA, Case, rope_options

LLAMA4 = Case(
    "llama4_text",
    "Llama4ForCausalLM",
    "Llama4TextConfig",
    {
        **DECODER,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "intermediate_size": 20,
        "intermediate_size_mlp": 28,
        "num_local_experts": 4,
        "attention_chunk_size": 10,
        "floor_scale": 8,
        "rope_parameters": {"rope_type": "default", **THETA},
    },
    {
        "multi-query": {"num_key_value_heads": 1, "head_dim": 16},
        "biases": {"attention_bias": True},
        "tied": {"tie_word_embeddings": True},
        "gelu": {"hidden_act": "gelu"},
        "eps": {"rms_norm_eps": 1e-2},
        "two-experts": {"num_experts_per_tok": 2},
        "interleaved": {"interleave_moe_layer_step": 2},
        "listed-experts": {"moe_layers": [0, 3]},
        "only-dense": {"moe_layers": []},
        "no-qk-norm": {"use_qk_norm": False},
        "no-temperature": {"attn_temperature_tuning": False},
        "temperature": {"attn_scale": 0.7, "floor_scale": 3},
        "long-chunks": {"attention_chunk_size": 100},
        "nope-every-second": {"no_rope_layer_interval": 2},
        "nope-listed": {"no_rope_layers": [0, 1, 1, 0]},
        "all-full": {"layer_types": ["full_attention"] * 4},
        "nope-chunked": {"layer_types": ["full_attention", "chunked_attention"] * 2},
        **rope_options(6),
    },
)

CASES = [LLAMA4]
