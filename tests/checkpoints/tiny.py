"""Tiny GGUF files, written by the ``gguf`` package from tiny transformers models, as llama.cpp's converter would."""

from __future__ import annotations

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


def llama(path: Path, **changes: Any) -> Any:
    model = made("LlamaForCausalLM", "LlamaConfig", **{**BASE, **changes})
    c, tensors = model.config, renamed(model, NAMES + PRE)
    for name in tensors:
        if ".attn_q." in name or ".attn_k." in name:
            heads = c.num_attention_heads if ".attn_q." in name else c.num_key_value_heads
            tensors[name] = woven(tensors[name], heads)
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
