"""Tiny GGUF files, written by the ``gguf`` package from tiny transformers models, as llama.cpp's converter would."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from tests.parity.case import DECODER, sharpen

PLAIN = gguf.GGMLQuantizationType.F32


def write(
    path: Path,
    arch: str,
    metadata: dict[str, Any],
    tensors: dict[str, np.ndarray],
    kinds: dict[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    metadata = {"tokenizer.ggml.model": "none", **metadata}  # llama.cpp wants to be told
    if "token_embd.weight" in tensors:
        metadata = {f"{arch}.vocab_size": len(tensors["token_embd.weight"]), **metadata}
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, value in tensors.items():
        kind = (kinds or {}).get(name, PLAIN)
        # quantised tensors come as bytes, and their shape is in bytes as well
        writer.add_tensor(name, np.ascontiguousarray(value), raw_dtype=None if kind == PLAIN else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def made(cls: str, config: str, **changes: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, cls)(getattr(transformers, config)(**changes)).eval()
        sharpen(model)
    return model


BASE = {**DECODER, "num_key_value_heads": 2}


def shape(arch: str, c: Any) -> dict[str, Any]:
    """The metadata of LLaMA's kin."""
    return {
        f"{arch}.{key}": value
        for key, value in {
            "block_count": c.num_hidden_layers,
            "context_length": c.max_position_embeddings,
            "embedding_length": c.hidden_size,
            "feed_forward_length": c.intermediate_size,
            "attention.head_count": c.num_attention_heads,
            "attention.head_count_kv": c.num_key_value_heads,
            "attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        }.items()
    }


NAMES = [
    (r"^model\.embed_tokens", "token_embd"),
    (r"^model\.norm", "output_norm"),
    (r"^lm_head", "output"),
    (r"^model\.layers\.", "blk."),
    (r"self_attn\.([qkv])_proj", r"attn_\1"),
    (r"self_attn\.o_proj", "attn_output"),
    (r"self_attn\.([qk])_norm", r"attn_\1_norm"),
    (r"mlp\.(gate|up|down)_proj", r"ffn_\1"),
    (r"input_layernorm", "attn_norm"),
]
PRE = [(r"post_attention_layernorm", "ffn_norm")]
SANDWICH = [
    (r"post_attention_layernorm", "post_attention_norm"),
    (r"pre_feedforward_layernorm", "ffn_norm"),
    (r"post_feedforward_layernorm", "post_ffw_norm"),
]


def renamed(model: Any, names: list[tuple[str, str]]) -> dict[str, np.ndarray]:
    tied = model.config.tie_word_embeddings
    out: dict[str, np.ndarray] = {}
    for name, value in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        for old, new in names:
            name = re.sub(old, new, name)
        out[name] = value.numpy()
    return out


def woven(w: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp does to LLaMA's q and k: the halves of each head one by one."""
    return w.reshape(heads, 2, len(w) // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def with_woven_heads(tensors: dict[str, np.ndarray], config: Any) -> dict[str, np.ndarray]:
    heads = {".attn_q.": config.num_attention_heads, ".attn_k.": config.num_key_value_heads}
    kind = {name: next((part for part in heads if part in name), None) for name in tensors}
    return {name: x if kind[name] is None else woven(x, heads[kind[name]]) for name, x in tensors.items()}


def llama(path: Path, **changes: Any) -> Any:
    model = made("LlamaForCausalLM", "LlamaConfig", **{**BASE, **changes})
    c, tensors = model.config, with_woven_heads(renamed(model, NAMES + PRE), model.config)
    rope = {"llama.rope.freq_base": c.rope_parameters["rope_theta"], "llama.rope.dimension_count": c.head_dim}
    write(path, "llama", {**shape("llama", c), **rope}, tensors)
    return model


def qwen2(path: Path, **changes: Any) -> Any:
    model = made("Qwen2ForCausalLM", "Qwen2Config", **{**BASE, **changes})
    rope = {"qwen2.rope.freq_base": model.config.rope_parameters["rope_theta"]}
    write(path, "qwen2", {**shape("qwen2", model.config), **rope}, renamed(model, NAMES + PRE))
    return model


def qwen3(path: Path) -> Any:
    model = made("Qwen3ForCausalLM", "Qwen3Config", **BASE, head_dim=16)
    more = {"rope.freq_base": model.config.rope_parameters["rope_theta"], "attention.key_length": 16}
    more |= {"attention.value_length": 16}
    metadata = {**shape("qwen3", model.config), **{f"qwen3.{k}": v for k, v in more.items()}}
    write(path, "qwen3", metadata, renamed(model, NAMES + PRE))
    return model


def gemma3(path: Path) -> Any:
    base = {**BASE, "num_hidden_layers": 7, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 9}
    model = made("Gemma3ForCausalLM", "Gemma3TextConfig", **base)
    c, tensors = model.config, renamed(model, NAMES + SANDWICH)
    tensors = {name: value + 1 if "norm" in name else value for name, value in tensors.items()}
    more = {"rope.freq_base": c.rope_parameters["full_attention"]["rope_theta"], "attention.sliding_window": 9}
    more |= {"attention.key_length": 16, "attention.value_length": 16}
    write(path, "gemma3", {**shape("gemma3", c), **{f"gemma3.{k}": v for k, v in more.items()}}, tensors)
    return model


def gpt2(path: Path) -> Any:
    model = made("GPT2LMHeadModel", "GPT2Config", vocab_size=67, n_embd=48, n_layer=3, n_head=4, n_positions=64)
    names = [
        (r"^transformer\.", ""),
        (r"wte", "token_embd"),
        (r"wpe", "position_embd"),
        (r"ln_f", "output_norm"),
        (r"^h\.", "blk."),
        (r"ln_1", "attn_norm"),
        (r"ln_2", "ffn_norm"),
        (r"attn\.c_attn", "attn_qkv"),
        (r"attn\.c_proj", "attn_output"),
        (r"mlp\.c_fc", "ffn_up"),
        (r"mlp\.c_proj", "ffn_down"),
    ]
    tensors = renamed(model, names)
    turned = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
    tensors = {name: value.T if name.endswith(turned) else value for name, value in tensors.items()}
    metadata = {"block_count": 3, "context_length": 64, "embedding_length": 48, "feed_forward_length": 192}
    metadata |= {"attention.head_count": 4, "attention.layer_norm_epsilon": 1e-5}
    write(path, "gpt2", {f"gpt2.{k}": v for k, v in metadata.items()}, tensors)
    return model


def bert(path: Path, **changes: Any) -> Any:
    base = {"vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    base |= {"intermediate_size": 56, "max_position_embeddings": 64, **changes}
    model = made("BertModel", "BertConfig", **base)
    names = [
        (r"embeddings\.word_embeddings", "token_embd"),
        (r"embeddings\.token_type_embeddings", "token_types"),
        (r"embeddings\.position_embeddings", "position_embd"),
        (r"embeddings\.LayerNorm", "token_embd_norm"),
        (r"^encoder\.layer\.", "blk."),
        (r"attention\.self\.query", "attn_q"),
        (r"attention\.self\.key", "attn_k"),
        (r"attention\.self\.value", "attn_v"),
        (r"attention\.output\.dense", "attn_output"),
        (r"attention\.output\.LayerNorm", "attn_output_norm"),
        (r"intermediate\.dense", "ffn_up"),
        (r"output\.dense", "ffn_down"),
        (r"output\.LayerNorm", "layer_output_norm"),
    ]
    # llama.cpp leaves the pooler and the table of position numbers out
    tensors = {k: v for k, v in renamed(model, names).items() if "pooler" not in k and "_ids" not in k}
    metadata = {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": base["hidden_size"],
        "feed_forward_length": base["intermediate_size"],
    }
    metadata |= {"attention.head_count": 4, "attention.layer_norm_epsilon": 1e-12, "attention.causal": False}
    metadata |= {"pooling_type": 1}
    write(path, "bert", {f"bert.{k}": v for k, v in metadata.items()}, tensors)
    return model


def smollm3(path: Path) -> Any:
    model = made("SmolLM3ForCausalLM", "SmolLM3Config", **{**BASE, "num_hidden_layers": 5, "pad_token_id": 0})
    c, tensors = model.config, with_woven_heads(renamed(model, NAMES + PRE), model.config)
    write(path, "smollm3", {**shape("smollm3", c), "smollm3.rope.freq_base": c.rope_parameters["rope_theta"]}, tensors)
    return model


def phi3(path: Path, **changes: Any) -> Any:
    model = made("Phi3ForCausalLM", "Phi3Config", **{**BASE, "sliding_window": None, **changes})
    c = model.config
    names = [(r"self_attn\.qkv_proj", "attn_qkv"), (r"mlp\.gate_up_proj", "ffn_up"), *NAMES, *PRE]
    rope = c.rope_parameters
    turned = int(rope.get("partial_rotary_factor", 1.0) * c.hidden_size // c.num_attention_heads)
    more = {"rope.freq_base": rope["rope_theta"], "rope.dimension_count": turned}
    more |= {"attention.sliding_window": c.sliding_window or 0}
    more |= {"rope.scaling.original_context_length": c.original_max_position_embeddings}
    tensors = renamed(model, names)
    if "long_factor" in rope:
        longer = c.max_position_embeddings / c.original_max_position_embeddings
        more["rope.scaling.attn_factor"] = (1 + math.log(longer) / math.log(c.original_max_position_embeddings)) ** 0.5
    for name in ("long", "short") if "long_factor" in rope else ():
        tensors[f"rope_factors_{name}.weight"] = np.array(rope[f"{name}_factor"], np.float32)
    write(path, "phi3", {**shape("phi3", c), **{f"phi3.{k}": v for k, v in more.items()}}, tensors)
    return model


def longrope(path: Path) -> Any:
    """Phi-4-mini's: a part of each head turns, and more slowly past the original length."""
    factors = {"short_factor": [1.0, 1.25, 1.5], "long_factor": [1.5, 2.0, 4.0]}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5, **factors}
    return phi3(path, rope_parameters=rope, original_max_position_embeddings=16)


def phi3_window(path: Path) -> Any:
    return phi3(path, sliding_window=9)


def lfm2(path: Path, **changes: Any) -> Any:
    kinds = ["conv", "full_attention", "conv"]
    model = made("Lfm2ForCausalLM", "Lfm2Config", **{**BASE, "layer_types": kinds, "block_multiple_of": 32, **changes})
    c = model.config
    names = [
        (r"^model\.embedding_norm", "token_embd_norm"),
        (r"self_attn\.out_proj", "attn_output"),
        (r"self_attn\.([qk])_layernorm", r"attn_\1_norm"),
        (r"conv\.(in_proj|out_proj|conv)", r"shortconv.\1"),
        (r"feed_forward\.w1", "ffn_gate"),
        (r"feed_forward\.w2", "ffn_down"),
        (r"feed_forward\.w3", "ffn_up"),
        (r"operator_norm", "attn_norm"),
        *NAMES,
    ]
    tensors = renamed(model, names)
    tensors = {k: v[:, 0] if k.endswith("shortconv.conv.weight") else v for k, v in tensors.items()}
    metadata = shape("lfm2", _Named(c, rms_norm_eps=c.norm_eps, num_key_value_heads=[0, 2, 0]))
    metadata |= {"lfm2.feed_forward_length": len(tensors["blk.0.ffn_gate.weight"]), "lfm2.shortconv.l_cache": 3}
    write(path, "lfm2", {**metadata, "lfm2.rope.freq_base": c.rope_parameters["rope_theta"]}, tensors)
    return model


class _Named:
    """A config with other values."""

    def __init__(self, config: Any, **others: Any):
        self._config = config
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def experts_stacked(tensors: dict[str, np.ndarray], hidden: int) -> dict[str, np.ndarray]:
    """transformers keeps gate and up of all experts in one; a file has three tensors, of all experts each."""
    out = dict[str, np.ndarray]()
    for name, value in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[1]
            out[f"blk.{layer}.ffn_gate_exps.weight"] = value[:, :hidden]
            out[f"blk.{layer}.ffn_up_exps.weight"] = value[:, hidden:]
        elif name.endswith("experts.down_proj"):
            out[f"blk.{name.split('.')[1]}.ffn_down_exps.weight"] = value
        else:
            out[re.sub(r"(mlp|block_sparse_moe)\.gate\.", "ffn_gate_inp.", name)] = value
    return out


def qwen3moe(path: Path, **changes: Any) -> Any:
    base = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "head_dim": 16}
    model = made("Qwen3MoeForCausalLM", "Qwen3MoeConfig", **{**BASE, **base, "norm_topk_prob": True, **changes})
    c, names = model.config, [name for name in NAMES if "mlp" not in name[0]] + PRE
    more = {"rope.freq_base": c.rope_parameters["rope_theta"], "attention.key_length": 16, "attention.value_length": 16}
    more |= {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": c.moe_intermediate_size}
    metadata = {**shape("qwen3moe", c), **{f"qwen3moe.{k}": v for k, v in more.items()}}
    write(path, "qwen3moe", metadata, experts_stacked(renamed(model, names), c.moe_intermediate_size))
    return model


def mixtral(path: Path) -> Any:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
    model = made("MixtralForCausalLM", "MixtralConfig", **{**BASE, **experts})
    c, names = model.config, [name for name in NAMES if "mlp" not in name[0]] + PRE
    tensors = with_woven_heads(experts_stacked(renamed(model, names), c.intermediate_size), c)
    more = {"rope.freq_base": c.rope_parameters["rope_theta"], "expert_count": 4, "expert_used_count": 2}
    write(path, "llama", {**shape("llama", c), **{f"llama.{k}": v for k, v in more.items()}}, tensors)
    return model
