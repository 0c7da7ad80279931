"""Run by the Python of bench/.authors: inputs from one file through the authors' code, as it comes, into another."""

from __future__ import annotations

import sys

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Inputs = dict[str, Tensor]


def forgetting(x: Inputs) -> Inputs:
    from fla.ops.forgetting_attn.naive import naive_forgetting_attn

    return {"out": naive_forgetting_attn(x["q"], x["k"], x["v"], x["g"])}


def path(x: Inputs) -> Inputs:
    from fla.ops.path_attn.naive import naive_path_attn

    q, k, v, w, beta = (x[name] for name in ("q", "k", "v", "w", "beta"))
    no_gate = q.new_zeros(q.shape[:3])
    return {"out": naive_path_attn(q, k, v, w, beta, no_gate, q.shape[-1] ** -0.5, chunk_size=16)}


def stick_breaking(x: Inputs) -> Inputs:
    from fla.ops.stickbreaking_attn.naive import naive_stickbreaking_attn

    return {"out": naive_stickbreaking_attn(x["q"], x["k"], x["v"])[0]}


def native_sparse(x: Inputs) -> Inputs:
    """The two branches that choose. Their own pooling of blocks runs on a GPU alone, and is a mean."""
    from fla.ops.nsa.naive import naive_nsa_compression, naive_nsa_selection, naive_nsa_topk

    q, k, v, size, keep = x["q"], x["k"], x["v"], int(x["size"]), int(x["keep"])
    scale = q.shape[-1] ** -0.5
    pooled_k, pooled_v = (torch.stack([part.mean(1) for part in t.split(size, 1)], 1) for t in (k, v))
    of_blocks, _ = naive_nsa_compression(q, pooled_k, pooled_v, size, scale)
    chosen = naive_nsa_topk(q, pooled_k, keep, size, scale)
    return {"of_blocks": of_blocks, "of_chosen": naive_nsa_selection(q, k, v, chosen, size, scale), "chosen": chosen}


def gated_delta(x: Inputs) -> Inputs:
    from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule, naive_recurrent_gated_delta_rule

    q, k, v, g, beta = (x[name] for name in ("q", "k", "v", "g", "beta"))
    out, state = naive_recurrent_gated_delta_rule(q, k, v, beta, g, output_final_state=True)
    chunked, _ = naive_chunk_gated_delta_rule(q, k, v, g, beta, chunk_size=16)
    return {"out": out, "state": state, "chunked": chunked}


def kimi_delta(x: Inputs) -> Inputs:
    from fla.ops.kda.naive import naive_recurrent_kda

    out, state = naive_recurrent_kda(x["q"], x["k"], x["v"], x["g"], x["beta"], output_final_state=True)
    return {"out": out, "state": state}


def indexer(x: Inputs) -> Inputs:
    from fla.ops.dsa.naive import naive_dsa_indexer

    return {"chosen": naive_dsa_indexer(x["q"], x["k"], x["w"], topk=int(x["keep"]), activation="relu")}


def normalisers(x: Inputs) -> Inputs:
    from entmax import entmax15, sparsemax

    outputs = {}
    for name, function in (("sparsemax", sparsemax), ("entmax15", entmax15)):
        scores = x["scores"].clone().requires_grad_()
        weights = function(scores, dim=-1)
        weights.backward(x["towards"])
        outputs |= {name: weights.detach(), f"{name}_gradient": scores.grad}
    return outputs


def forgetting_caches(x: Inputs) -> Inputs:
    """The logits of one more token after a prompt whose keys were thinned out once."""
    from kvpress import KeyRerotationPress, SnapKVPress, StreamingLLMPress
    from transformers import AutoModelForCausalLM, DynamicCache

    folder = bytes(x["folder"].tolist()).decode()
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").double().eval()
    prompt, last, size, sinks = x["prompt"], x["last"], int(x["size"]), int(x["sinks"])
    ratio = 1 - (size + 0.5) / prompt.shape[1]  # kvpress rounds down what is kept
    presses = {
        "streaming": (StreamingLLMPress(ratio, n_sink=sinks), prompt.shape[1]),
        "by_place": (KeyRerotationPress(StreamingLLMPress(ratio, n_sink=sinks)), size),
        "snapkv": (SnapKVPress(ratio, window_size=int(x["window"]), kernel_size=int(x["pool"])), prompt.shape[1]),
    }
    outputs = {}
    for name, (press, position) in presses.items():
        cache = DynamicCache()
        with torch.no_grad():
            with press(model):
                model(prompt, past_key_values=cache)
            assert cache.get_seq_length() == size, (name, cache.get_seq_length(), size)
            places = torch.tensor([[position]])
            outputs[name] = model(last, past_key_values=cache, position_ids=places).logits[0, 0]
    return outputs


def polar(x: Inputs) -> Inputs:
    """Scores of radii and angles; they work in float32."""
    from x_transformers.x_transformers import PolarEmbedding, apply_polar_pos_emb

    embedding = PolarEmbedding(x["q"].shape[-1], x["q"].shape[1])
    with torch.no_grad():
        embedding.learned_bias.copy_(x["delta"][:, None])
        freqs, bias = embedding(x["positions"])
        q, k = apply_polar_pos_emb(x["q"], freqs), apply_polar_pos_emb(x["k"], freqs + bias)
    return {"scores": q @ k.mT}


def value_residual(x: Inputs) -> Inputs:
    """One attention whose values are half its own and half those that are given."""
    from x_transformers.x_transformers import Attention

    heads, dim = x["first"].shape[1], x["first"].shape[-1]
    attention = Attention(dim=x["x"].shape[-1], heads=heads, dim_head=dim, causal=True).double().eval()
    with torch.no_grad():
        for name in ("q", "k", "v", "out"):
            getattr(attention, f"to_{name}").weight.copy_(x[name])
        return {"out": attention(x["x"], value_residual=x["first"])}


JOBS = {
    "forgetting": forgetting,
    "path": path,
    "stick_breaking": stick_breaking,
    "native_sparse": native_sparse,
    "gated_delta": gated_delta,
    "kimi_delta": kimi_delta,
    "indexer": indexer,
    "normalisers": normalisers,
    "forgetting_caches": forgetting_caches,
    "polar": polar,
    "value_residual": value_residual,
}


if __name__ == "__main__":
    job, source, target = sys.argv[1:]
    save_file({name: t.contiguous() for name, t in JOBS[job](load_file(source)).items()}, target)
