"""What GGUF calls each tensor, and what llama.cpp changed when it wrote it.

An architecture is data: a function from its metadata to a config, a table of names, and the changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vantage.checkpoints import gguf_configs
from vantage.checkpoints.config import Config
from vantage.checkpoints.gguf import GGUF


@dataclass(frozen=True)
class Rewriting:
    """What llama.cpp did to a tensor, both ways; the numbers of heads come from the file's metadata."""

    undo: Callable[[Tensor, Config], Tensor]
    redo: Callable[[Tensor, Config], Tensor]


@dataclass(frozen=True)
class Architecture:
    """How one architecture is called and changed on its way into a GGUF file."""

    config: Callable[[Config, GGUF], dict[str, Any]]
    # theirs to Hugging Face's, without the ".weight" or ".bias" behind; {i} is the layer, {e} the expert
    names: Mapping[str, str]
    rewritten: Mapping[str, Rewriting]  # by their name without the layer

    def stored_name(self, name: str) -> str | None:
        """What a file calls a tensor with this name of Hugging Face's; ``None``: it has no place for it."""
        stem, _, kind = name.rpartition(".")
        number = re.search(r"\.(\d+)\.", stem)
        stem = stem if number is None else stem.replace(f".{number[1]}.", ".{i}.", 1)
        theirs = {ours: theirs for theirs, ours in self.names.items()}.get(stem)
        return None if theirs is None else f"{theirs.replace('{i}', number[1] if number else '')}.{kind}"

    def rewriting(self, theirs: str) -> Rewriting | None:
        return self.rewritten.get(re.sub(r"^blk\.\d+\.", "", theirs))


# ---- names and changes

LAYER, HF = "blk.{i}.", "model.layers.{i}."
DECODER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    **{f"{LAYER}attn_{x}": f"{HF}self_attn.{x}_proj" for x in "qkv"},
    **{f"{LAYER}ffn_{x}": f"{HF}mlp.{x}_proj" for x in ("gate", "up", "down")},
    f"{LAYER}attn_output": f"{HF}self_attn.o_proj",
    f"{LAYER}attn_norm": f"{HF}input_layernorm",
    f"{LAYER}ffn_norm": f"{HF}post_attention_layernorm",
}
EXPERTS = {f"{LAYER}ffn_{x}_exps.{{e}}": f"{HF}mlp.experts.{{e}}.{x}_proj" for x in ("gate", "up", "down")}
MIXTRAL = {
    f"{LAYER}ffn_{x}_exps.{{e}}": f"{HF}block_sparse_moe.experts.{{e}}.{w}"
    for x, w in (("gate", "w1"), ("down", "w2"), ("up", "w3"))
}
PHI3 = {f"{LAYER}attn_qkv": f"{HF}self_attn.qkv_proj", f"{LAYER}ffn_up": f"{HF}mlp.gate_up_proj"}
LFM2 = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",
    "output": "lm_head",
    **{f"{LAYER}attn_{x}": f"{HF}self_attn.{x}_proj" for x in "qkv"},
    **{f"{LAYER}attn_{x}_norm": f"{HF}self_attn.{x}_layernorm" for x in "qk"},
    **{f"{LAYER}ffn_{x}": f"{HF}feed_forward.{w}" for x, w in (("gate", "w1"), ("down", "w2"), ("up", "w3"))},
    **{f"{LAYER}shortconv.{x}": f"{HF}conv.{x}" for x in ("in_proj", "out_proj", "conv")},
    f"{LAYER}attn_output": f"{HF}self_attn.out_proj",
    f"{LAYER}attn_norm": f"{HF}operator_norm",
    f"{LAYER}ffn_norm": f"{HF}ffn_norm",
}
QK_NORM = {f"{LAYER}attn_{x}_norm": f"{HF}self_attn.{x}_norm" for x in "qk"}
SANDWICH = {
    f"{LAYER}post_attention_norm": f"{HF}post_attention_layernorm",
    f"{LAYER}ffn_norm": f"{HF}pre_feedforward_layernorm",
    f"{LAYER}post_ffw_norm": f"{HF}post_feedforward_layernorm",
}
GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    f"{LAYER}attn_norm": "transformer.h.{i}.ln_1",
    f"{LAYER}ffn_norm": "transformer.h.{i}.ln_2",
    f"{LAYER}attn_qkv": "transformer.h.{i}.attn.c_attn",
    f"{LAYER}attn_output": "transformer.h.{i}.attn.c_proj",
    f"{LAYER}ffn_up": "transformer.h.{i}.mlp.c_fc",
    f"{LAYER}ffn_down": "transformer.h.{i}.mlp.c_proj",
}
BERT_LAYER = "encoder.layer.{i}."
BERT = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    f"{LAYER}attn_q": f"{BERT_LAYER}attention.self.query",
    f"{LAYER}attn_k": f"{BERT_LAYER}attention.self.key",
    f"{LAYER}attn_v": f"{BERT_LAYER}attention.self.value",
    f"{LAYER}attn_output": f"{BERT_LAYER}attention.output.dense",
    f"{LAYER}attn_output_norm": f"{BERT_LAYER}attention.output.LayerNorm",
    f"{LAYER}ffn_up": f"{BERT_LAYER}intermediate.dense",
    f"{LAYER}ffn_down": f"{BERT_LAYER}output.dense",
    f"{LAYER}layer_output_norm": f"{BERT_LAYER}output.LayerNorm",
}


def _interleaved(kind: str) -> Rewriting:
    """LLaMA's rows of q and k are stored with the two halves of each head interleaved."""

    def heads(c: Config) -> int:
        count = c.whole("attention.head_count", low=1)
        return count if kind == "q" else c.whole("attention.head_count_kv", count, low=1)

    def undo(x: Tensor, c: Config) -> Tensor:
        return x.reshape(heads(c), -1, 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape)

    def redo(x: Tensor, c: Config) -> Tensor:
        return x.reshape(heads(c), 2, -1, *x.shape[1:]).transpose(1, 2).reshape(x.shape)

    return Rewriting(undo, redo)


INTERLEAVED = {f"attn_{x}.{w}": _interleaved(x) for x in "qk" for w in ("weight", "bias")}
# Gemma's norms multiply by 1 + w, and the file holds the sum.
ONE_MORE = Rewriting(lambda x, c: x - 1, lambda x, c: x + 1)
# GPT-2 stores its linear maps the other way round; the file has them turned.
TURNED = Rewriting(lambda x, c: x.transpose(-1, -2), lambda x, c: x.transpose(-1, -2))


# A convolution's weight has a dimension of 1, which the file leaves out.
NARROW = Rewriting(lambda x, c: x.unsqueeze(1), lambda x, c: x.squeeze(1))


NORMS = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm", "output_norm")
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        gguf_configs.llama, DECODER | MIXTRAL | {f"{LAYER}ffn_gate_inp": f"{HF}block_sparse_moe.gate"}, INTERLEAVED
    ),
    "smollm3": Architecture(gguf_configs.smollm3, DECODER, INTERLEAVED),
    "phi3": Architecture(gguf_configs.phi3, DECODER | PHI3, {}),
    "lfm2": Architecture(gguf_configs.lfm2, LFM2, {"shortconv.conv.weight": NARROW}),
    "qwen2": Architecture(gguf_configs.qwen2, DECODER, {}),
    "qwen3": Architecture(gguf_configs.qwen3, DECODER | QK_NORM, {}),
    "qwen3moe": Architecture(
        gguf_configs.qwen3_moe, DECODER | QK_NORM | EXPERTS | {f"{LAYER}ffn_gate_inp": f"{HF}mlp.gate"}, {}
    ),
    "gemma3": Architecture(
        gguf_configs.gemma3, DECODER | QK_NORM | SANDWICH, {f"{norm}.weight": ONE_MORE for norm in NORMS}
    ),
    "gpt2": Architecture(
        gguf_configs.gpt2, GPT2, {f"{x}.weight": TURNED for x in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")}
    ),
    "bert": Architecture(gguf_configs.bert, BERT, {}),
}
