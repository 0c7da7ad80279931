"""A GGUF file as if it were a Hugging Face folder: the same tensor names, the same config keys.

An architecture is data: a function from its metadata to a config, a table of names, and the changes that
llama.cpp made to tensors when it wrote them. Families then load a GGUF file without knowing it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vantage.checkpoints.config import Config
from vantage.checkpoints.gguf import GGUF
from vantage.errors import CheckpointError, unknown
from vantage.model.packed import PACKED_TYPES


@dataclass(frozen=True)
class Rewriting:
    """What llama.cpp did to a tensor, both ways; the numbers of heads come from the file's metadata."""

    undo: Callable[[Tensor, Config], Tensor]
    redo: Callable[[Tensor, Config], Tensor]


@dataclass(frozen=True)
class Architecture:
    """How one architecture is called and changed on its way into a GGUF file."""

    config: Callable[[Config, GGUF], dict[str, Any]]
    names: Mapping[str, str]  # theirs to Hugging Face's, without the ".weight" or ".bias" behind; {i} is the layer
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


class GGUFTensors:
    """The tensors of a GGUF file under Hugging Face's names, and the config that they fit."""

    def __init__(self, path: str | Path, dtype: torch.dtype = torch.float32):
        self.file, self._dtype = GGUF(path), dtype
        arch = self.file.metadata.get("general.architecture")
        if not isinstance(arch, str) or arch not in ARCHITECTURES:
            raise CheckpointError(f"{self.file.path.name}: {unknown('architecture of GGUF', arch, ARCHITECTURES)}")
        self._arch = ARCHITECTURES[arch]
        self._metadata = metadata_of(self.file, arch)
        self.config = self._arch.config(self._metadata, self.file)
        self._metadata.settle(INERT)
        self._home = self._homes()

    def names(self) -> Iterator[str]:
        return iter(self._home)

    def shape(self, name: str) -> tuple[int, ...]:
        """As Hugging Face stores it: found by undoing the changes on a tensor without data."""
        theirs = self._home[name]
        stored = self.file.tensors[theirs].shape
        if self._arch.rewriting(theirs) is None:
            return stored
        return tuple(self._undone(theirs, torch.empty(stored, device="meta")).shape)

    def get(self, name: str) -> Tensor:
        return self._undone(self._home[name], self.file.get(self._home[name], self._dtype))

    def packed_kind(self, name: str) -> str | None:
        """The type of a matrix of blocks or of 16-bit numbers; ``None``: it has none of these."""
        stored = self.file.tensors[self._home[name]]
        return stored.kind.name if stored.kind.name in PACKED_TYPES and len(stored.shape) == 2 else None

    def row_length(self, name: str) -> int:
        """Of a matrix as the file has it: Hugging Face may have it turned."""
        return self.file.tensors[self._home[name]].shape[1]

    def row_addresses(self, name: str) -> Tensor:
        """(N, 1): where the rows of a matrix lie in memory.

        Undoing what llama.cpp changed moves whole rows of a matrix, or turns it twice.
        """
        return self._undone(self._home[name], self.file.row_addresses(self._home[name])[:, None])

    def pages(self, name: str) -> tuple[int, int]:
        """The address and the length of a tensor's pages, whose memory may be given back: the file still has them."""
        return self.file.pages(self._home[name])

    def release(self) -> None:
        """Let go of the pages that were read: the file still has them."""
        self.file.release()

    def _undone(self, theirs: str, tensor: Tensor) -> Tensor:
        rewriting = self._arch.rewriting(theirs)
        try:
            return tensor if rewriting is None else rewriting.undo(tensor, self._metadata)
        except RuntimeError as e:
            raise CheckpointError(f"{self.file.path.name}: {theirs!r} has shape {tuple(tensor.shape)}: {e}") from e

    def _homes(self) -> dict[str, str]:
        """Hugging Face's name to theirs."""
        home: dict[str, str] = {}
        for theirs in self.file.tensors:
            if theirs in COMPUTED:
                continue
            stem, _, kind = theirs.rpartition(".")
            layer = re.match(r"blk\.(\d+)\.", stem)
            number = layer[1] if layer else ""
            name = self._arch.names.get(stem.replace(f"blk.{number}.", "blk.{i}.", 1) if layer else stem)
            # what has no other name keeps its own, and is refused with it where the tensors are counted
            home[theirs if name is None else f"{name.replace('{i}', number)}.{kind}"] = theirs
        return home


def metadata_of(file: GGUF, arch: str) -> Config:
    """The metadata that shapes the model, under account: a key that nobody reads is refused."""
    about = {k.removeprefix(arch + "."): _plain(v) for k, v in file.metadata.items() if k.startswith(arch + ".")}
    return Config(about, f"{file.path.name}: {arch}")


def _plain(value: Any) -> Any:
    """float32 numbers as their shortest decimals (1e-05, not 9.999999747378752e-06); arrays as lists."""
    if isinstance(value, float):
        return float(str(np.float32(value))) if np.float32(value) == value else value
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value


# Said in many files, and without effect on what is computed.
INERT = frozenset(["tensor_data_layout", "rope.scaling.finetuned", "attention.causal", "pooling_type"])
# Tables that follow from the config, where they are compared (see ``_llama3``) or not needed at all.
COMPUTED = frozenset(["rope_freqs.weight"])


# ---- configs


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


def _decoder(c: Config, file: GGUF, kind: str) -> dict[str, Any]:
    """What LLaMA and its kin have in common."""
    c.must_be("expert_count", 0)
    c.must_be("expert_used_count", 0)
    heads, width = c.whole("attention.head_count", low=1), c.whole("embedding_length", low=1)
    head = c.whole("attention.key_length", width // heads, low=1)
    c.must_be("attention.value_length", head)
    c.must_be("rope.dimension_count", head)
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


def _llama(c: Config, file: GGUF) -> dict[str, Any]:
    config = _decoder(c, file, "llama")
    biases = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_gate.bias"}
    config |= {key: name in file.tensors for key, name in biases.items()}
    return config | _rope(c, file, config)


def _qwen2(c: Config, file: GGUF) -> dict[str, Any]:
    config = _decoder(c, file, "qwen2")
    del config["head_dim"]  # always width / heads: Qwen 2 has no such key
    return config | _rope(c, file, {"head_dim": 0})


def _qwen3(c: Config, file: GGUF) -> dict[str, Any]:
    config = _decoder(c, file, "qwen3")
    return config | {"attention_bias": "blk.0.attn_q.bias" in file.tensors} | _rope(c, file, config)


def _gemma3(c: Config, file: GGUF) -> dict[str, Any]:
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


def _gpt2(c: Config, file: GGUF) -> dict[str, Any]:
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


def _bert(c: Config, file: GGUF) -> dict[str, Any]:
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


# Gemma's norms multiply by 1 + w, and the file holds the sum.
ONE_MORE = Rewriting(lambda x, c: x - 1, lambda x, c: x + 1)
# GPT-2 stores its linear maps the other way round; the file has them turned.
TURNED = Rewriting(lambda x, c: x.transpose(-1, -2), lambda x, c: x.transpose(-1, -2))


NORMS = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm", "output_norm")
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        _llama, DECODER, {f"attn_{x}.{w}": _interleaved(x) for x in "qk" for w in ("weight", "bias")}
    ),
    "qwen2": Architecture(_qwen2, DECODER, {}),
    "qwen3": Architecture(_qwen3, DECODER | QK_NORM, {}),
    "gemma3": Architecture(_gemma3, DECODER | QK_NORM | SANDWICH, {f"{norm}.weight": ONE_MORE for norm in NORMS}),
    "gpt2": Architecture(
        _gpt2, GPT2, {f"{x}.weight": TURNED for x in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")}
    ),
    "bert": Architecture(_bert, BERT, {}),
}
