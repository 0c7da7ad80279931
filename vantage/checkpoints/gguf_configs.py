"""The metadata of a GGUF file as Hugging Face's config of the same model, architecture by architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vantage.checkpoints.config import Config
from vantage.checkpoints.gguf import GGUF
from vantage.errors import CheckpointError


def _vocab(c: Config, file: GGUF) -> int:
    """As many as the embedding has rows: what other places say may be without padding."""
    c.inert("vocab_size")
    stored = file.tensors.get("token_embd.weight")
    if stored is None or len(stored.shape) != 2:
        raise CheckpointError(f"{file.path.name} lacks a 'token_embd.weight' of two dimensions")
    return stored.shape[0]


def _layers(c: Config, file: GGUF) -> int:
    count = c.whole("block_count", low=1)
    if count > len(file.tensors):  # before anything is laid out for every layer
        raise CheckpointError(f"{file.path.name}: block_count is {count}, and it holds {len(file.tensors)} tensors")
    return count


def _tokens(file: GGUF) -> dict[str, Any]:
    """The ids of the special tokens."""
    keys = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    return {ours: file.metadata.get(f"tokenizer.ggml.{theirs}") for ours, theirs in keys.items()}


def _decoder(c: Config, file: GGUF, kind: str, *, experts: bool = False, partial: bool = False) -> dict[str, Any]:
    """What LLaMA and its kin have in common. ``partial``: a share of each head may turn."""
    if not experts:
        c.must_be("expert_count", 0)
        c.must_be("expert_used_count", 0)
    heads, width = c.whole("attention.head_count", low=1), c.whole("embedding_length", low=1)
    head = c.whole("attention.key_length", width // heads, low=1)
    c.must_be("attention.value_length", head)
    turned = c.whole("rope.dimension_count", head, low=1)
    if not partial:
        c.must_be("rope.dimension_count", head)
    share = {"partial_rotary_factor": turned / head} if turned != head else {}
    return {
        "model_type": kind,
        "vocab_size": _vocab(c, file),
        "hidden_size": width,
        "intermediate_size": c.whole("feed_forward_length", low=1),
        "num_hidden_layers": _layers(c, file),
        "num_attention_heads": heads,
        "num_key_value_heads": c.whole("attention.head_count_kv", heads, low=1),
        "head_dim": head,
        "max_position_embeddings": c.whole("context_length", low=1),
        "rms_norm_eps": c.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **share,
        **_tokens(file),
    }


def _rope(c: Config, file: GGUF, config: dict[str, Any], base: float = 10000.0) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": c.number("rope.freq_base", base)}
    kind = c.choice("rope.scaling.type", {k: k for k in ("none", "linear", "yarn")}, "none")
    linear = c.number("rope.scale_linear", 1.0)  # how older files say it
    factor, original = c.number("rope.scaling.factor", linear), c.whole("rope.scaling.original_context_length", None)
    if kind == "linear" or (kind == "none" and linear != 1.0):
        rope |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        rope |= {"rope_type": "yarn", "factor": factor}
        rope |= {} if original is None else {"original_max_position_embeddings": original}
    elif "rope_freqs.weight" in file.tensors:
        rope |= _llama3(file, config["head_dim"], rope["rope_theta"])
    return {"rope_parameters": rope}


def _llama3(file: GGUF, head: int, theta: float) -> dict[str, Any]:
    """LLaMA 3.1 and later store the divisor of each frequency, not the rule. The rule is found and compared."""
    stored = file.get("rope_freqs.weight", torch.float64)
    factor = round(float(stored.max()), 4)  # it went through float32
    rule = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    turns = 8192 * theta ** -(torch.arange(0, head, 2, dtype=torch.float64) / head) / (2 * torch.pi)
    smooth = ((turns - 1.0) / (4.0 - 1.0)).clamp(0, 1)
    divisor = 1 / ((1 - smooth) / factor + smooth)
    if stored.shape != divisor.shape or not torch.allclose(stored, divisor, rtol=1e-4):
        raise CheckpointError(f"{file.path.name}: 'rope_freqs.weight' follows no rule that is known here")
    return {"rope_type": "llama3", **rule}


def llama(c: Config, file: GGUF) -> dict[str, Any]:
    """Mixtral is a LLaMA with experts there."""
    count = c.whole("expert_count", 0)
    config = _decoder(c, file, "mixtral" if count else "llama", experts=count > 0)
    if count:
        chosen = c.whole("expert_used_count", low=1)
        return config | {"num_local_experts": count, "num_experts_per_tok": chosen} | _rope(c, file, config)
    biases = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_gate.bias"}
    config |= {key: name in file.tensors for key, name in biases.items()}
    return config | _rope(c, file, config)


def qwen2(c: Config, file: GGUF) -> dict[str, Any]:
    config = _decoder(c, file, "qwen2")
    del config["head_dim"]  # always width / heads: Qwen 2 has no such key
    return config | _rope(c, file, {"head_dim": 0})


def qwen3(c: Config, file: GGUF) -> dict[str, Any]:
    return _qwen3_like(c, file, "qwen3")


def _qwen3_like(c: Config, file: GGUF, kind: str, *, experts: bool = False) -> dict[str, Any]:
    config = _decoder(c, file, kind, experts=experts)
    return config | {"attention_bias": "blk.0.attn_q.bias" in file.tensors} | _rope(c, file, config)


def qwen3_moe(c: Config, file: GGUF) -> dict[str, Any]:
    config = _qwen3_like(c, file, "qwen3_moe", experts=True)
    return config | {
        "num_experts": c.whole("expert_count", low=1),
        "num_experts_per_tok": c.whole("expert_used_count", low=1),
        "moe_intermediate_size": c.whole("expert_feed_forward_length", low=1),
        "norm_topk_prob": True,  # llama.cpp always does
    }


def smollm3(c: Config, file: GGUF) -> dict[str, Any]:
    """The file does not say which layers have no position: it is every fourth."""
    config = _decoder(c, file, "smollm3")
    return config | {"attention_bias": "blk.0.attn_q.bias" in file.tensors} | _rope(c, file, config)


def phi3(c: Config, file: GGUF) -> dict[str, Any]:
    config = _decoder(c, file, "phi3", partial=True)
    c.inert("rope.scaling.type", "rope.scaling.attn_factor")  # the tables say whether it is longer; the factor follows
    original = c.whole("rope.scaling.original_context_length", config["max_position_embeddings"], low=1)
    rope = {"rope_type": "default", "rope_theta": c.number("rope.freq_base", 10000.0)}
    tables = {f"{name}_factor": f"rope_factors_{name}.weight" for name in ("short", "long")}
    if tables["long_factor"] in file.tensors:
        rope |= {key: file.get(name, torch.float64).tolist() for key, name in tables.items()}
        rope["rope_type"] = "longrope"
    window = c.whole("attention.sliding_window", 0)  # 0: none
    own = {"rope_parameters": rope, "original_max_position_embeddings": original, "sliding_window": window or None}
    return config | own


def lfm2(c: Config, file: GGUF) -> dict[str, Any]:
    """Layers without key heads are convolutions."""
    heads = c.plain("attention.head_count_kv")
    layers = _layers(c, file)
    if not isinstance(heads, list) or len(heads) != layers or len({n for n in heads if n}) != 1:
        raise CheckpointError(f"{file.path.name}: attention.head_count_kv is {heads}; wanted a number for each layer")
    count, width = c.whole("attention.head_count", low=1), c.whole("embedding_length", low=1)
    c.must_be("attention.key_length", width // count)
    c.must_be("attention.value_length", width // count)
    c.must_be("rope.dimension_count", width // count)
    return {
        "model_type": "lfm2",
        "vocab_size": _vocab(c, file),
        "hidden_size": width,
        "intermediate_size": c.whole("feed_forward_length", low=1),
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": layers,
        "num_attention_heads": count,
        "num_key_value_heads": max(heads),
        "layer_types": ["full_attention" if n else "conv" for n in heads],
        "conv_L_cache": c.whole("shortconv.l_cache", low=2),
        "conv_bias": "blk.0.shortconv.conv.bias" in file.tensors,
        "max_position_embeddings": c.whole("context_length", low=1),
        "norm_eps": c.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.number("rope.freq_base", 1e6)},
        **_tokens(file),
    }


def gemma3(c: Config, file: GGUF) -> dict[str, Any]:
    """Five local layers, then a global one. The local base is not stored: it is 10,000 in every Gemma 3."""
    config = _decoder(c, file, "gemma3_text")
    period = c.whole("attention.sliding_window_pattern", 6, low=1)
    kinds = ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(len_of(config))]
    local = {"rope_type": "default", "rope_theta": c.number("rope.freq_base_swa", 10000.0)}
    ropes = {"full_attention": _rope(c, file, config, 1e6)["rope_parameters"], "sliding_attention": local}
    # llama.cpp always scales scores by the head's width, except in the 27B model, where it is width / heads
    by = config["hidden_size"] // config["num_attention_heads"] if len_of(config) == 62 else config["head_dim"]
    return config | {
        "sliding_window": c.whole("attention.sliding_window", low=1),
        "layer_types": kinds,
        "rope_parameters": ropes,
        "query_pre_attn_scalar": by,
        "attn_logit_softcapping": c.number("attn_logit_softcapping", None),
        "final_logit_softcapping": c.number("final_logit_softcapping", None),
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
    }


def len_of(config: Mapping[str, Any]) -> int:
    return config["num_hidden_layers"]


def gpt2(c: Config, file: GGUF) -> dict[str, Any]:
    heads = c.whole("attention.head_count", low=1)
    c.must_be("attention.head_count_kv", heads)
    return {
        "model_type": "gpt2",
        "vocab_size": _vocab(c, file),
        "n_positions": c.whole("context_length", low=1),
        "n_embd": c.whole("embedding_length", low=1),
        "n_layer": _layers(c, file),
        "n_head": heads,
        "n_inner": c.whole("feed_forward_length", low=1),
        "layer_norm_epsilon": c.number("attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **_tokens(file),
    }


def bert(c: Config, file: GGUF) -> dict[str, Any]:
    types = file.tensors.get("token_types.weight")
    c.inert("token_type_count")  # the table itself says it
    return {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": _vocab(c, file),
        "hidden_size": c.whole("embedding_length", low=1),
        "intermediate_size": c.whole("feed_forward_length", low=1),
        "num_hidden_layers": _layers(c, file),
        "num_attention_heads": c.whole("attention.head_count", low=1),
        "max_position_embeddings": c.whole("context_length", low=1),
        "layer_norm_eps": c.number("attention.layer_norm_epsilon"),
        "type_vocab_size": 1 if types is None else types.shape[0],
        "hidden_act": "gelu",
        **_tokens(file),
    }
