"""DeepSeek-V2 and V3: latent attention, routers with and without groups, YaRN in the scores."""

from tests.parity.case import DECODER, SHORT, Case, rope_options

LATENT = {
    **DECODER,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 6,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
}
YARN = {"rope_type": "yarn", "factor": 4.0, **SHORT}
OPTIONS = {
    "direct-queries": {"q_lora_rank": None},
    "biases": {"attention_bias": True},
    "tied": {"tie_word_embeddings": True},
    "gelu": {"hidden_act": "gelu"},
    "eps": {"rms_norm_eps": 1e-2},
    "only-dense": {"first_k_dense_replace": 3},
    "only-experts": {"first_k_dense_replace": 0},
    "two-shared": {"n_shared_experts": 2},
    "scaled": {"routed_scaling_factor": 1.7},
    **rope_options(4),
    "yarn": {"rope_parameters": YARN},
    "yarn-mscale": {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.707}},
    "yarn-all-dim": {"rope_parameters": {**YARN, "mscale_all_dim": 1.0}},
}

V2 = Case(
    "deepseek_v2",
    "DeepseekV2ForCausalLM",
    "DeepseekV2Config",
    LATENT,
    {
        **OPTIONS,
        "groups": {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
        "mlp-bias": {"mlp_bias": True},
    },
)
V3 = Case(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    "DeepseekV3Config",
    {**LATENT, "n_group": 4, "topk_group": 2},
    {
        **OPTIONS,
        "one-group": {"n_group": 1, "topk_group": 1},
        "raw-weights": {"norm_topk_prob": False},
        "halves": {"rope_interleave": False},
        "no-drafting-layer": {"num_mtp_layers": 0},
    },
)

CASES = [V2, V3]
