"""Grok-1 and Grok-2 against their equations, written here in float64, one token at a time, without the library."""

import math

import pytest
import torch

import vantage as vt
from tests.parity.oracle import VOCAB, check, random_tensors, write
from vantage.errors import CheckpointError

WIDTH, HEADS, GROUPS, HIDDEN, LAYERS, EXPERTS = 24, 4, 2, 20, 2, 5
GROK_1 = {
    "model_type": "grok-1",
    "architectures": ["Grok1ModelForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "attn_output_multiplier": 1.9,  # so large that the caps bite
    "max_attn_value": 3.0,
    "embedding_multiplier_scale": 4.9,
    "output_multiplier_scale": 0.577,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": True,
}
GROK_2 = {
    "model_type": "git",
    "architectures": ["Grok1ForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 28,
    "moe_intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": 8,
    "embedding_multiplier_scale": 4.9,
    "output_multiplier_scale": 0.5,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "residual_moe": True,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "final_logit_softcapping": 2.0,
    "attn_logit_softcapping": 1.5,
    "router_logit_softcapping": 0.7,
    "rope_theta": 208533496,
    "rope_type": "original",
    "attn_temperature_len": 9,
    "sliding_window_size": -1,
    "global_attn_every_n": 1,
    "original_max_position_embeddings": 8192,
    "scaling_factor": 16.0,
    "extrapolation_factor": 1.0,
    "attn_factor": 1.0,
    "beta_fast": 8,
    "beta_slow": 1,
}


class Names:
    """What the two checkpoints call the same things."""

    def __init__(self, config):
        self.c, self.two = config, config["model_type"] == "git"
        self.norm = "weight" if self.two else "scale"
        self.attention = "self_attn" if self.two else "attn"
        self.moe = "block_sparse_moe" if self.two else "moe_block"
        self.gate, self.up, self.down = ("w1", "w3", "w2") if self.two else ("linear", "linear_v", "linear_1")
        self.dim = config.get("head_dim", WIDTH // HEADS)

    def shapes(self):
        layer = {f"{x}_norm.{self.norm}": (WIDTH,) for x in ("pre_attn", "post_attn", "pre_moe", "post_moe")}
        sizes = {"q": HEADS, "k": GROUPS, "v": GROUPS}
        layer |= {f"{self.attention}.{x}_proj.weight": (n * self.dim, WIDTH) for x, n in sizes.items()}
        layer |= {f"{self.attention}.o_proj.weight": (WIDTH, HEADS * self.dim)}
        layer |= {f"{self.moe}.gate.weight": (EXPERTS, WIDTH)}
        for e in range(EXPERTS):
            name = f"{self.moe}.experts.{e}"
            layer |= {f"{name}.{x}.weight": (HIDDEN, WIDTH) for x in (self.gate, self.up)}
            layer |= {f"{name}.{self.down}.weight": (WIDTH, HIDDEN)}
        if self.c.get("residual_moe"):
            dense = self.c["intermediate_size"]
            layer |= {f"mlp.{x}_proj.weight": (dense, WIDTH) for x in ("gate", "up")}
            layer |= {"mlp.down_proj.weight": (WIDTH, dense)}
        head = {} if self.c.get("tie_word_embeddings") else {"lm_head.weight": (VOCAB, WIDTH)}
        ends = {"model.embed_tokens.weight": (VOCAB, WIDTH), f"model.norm.{self.norm}": (WIDTH,), **head}
        return {**ends, **{f"model.layers.{i}.{n}": s for i in range(LAYERS) for n, s in layer.items()}}


def rms(x, scale):
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5) * scale


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def turned(x, theta):
    """(T, d): dimension k pairs with k + d/2."""
    T, d = x.shape
    angle = torch.arange(T, dtype=torch.float64)[:, None] * theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    a, b = x[:, : d // 2], x[:, d // 2 :]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def feed(w, x, gate, up, down):
    return (gelu(x @ w[gate].T) * (x @ w[up].T)) @ w[down].T


def attend(w, n, x, name):
    """One row (T, D). Head h reads the keys of group h // (heads per group)."""
    c, T = n.c, len(x)
    theta = c.get("rope_theta", 10000.0)
    scale = n.dim**-0.5 if n.two else c["attn_output_multiplier"]
    cap = c["attn_logit_softcapping" if n.two else "max_attn_value"]
    q, k, v = ((x @ w[f"{name}.{p}_proj.weight"].T).split(n.dim, -1) for p in "qkv")
    out = []
    for h in range(HEADS):
        g = h // (HEADS // GROUPS)
        scores = turned(q[h], theta) @ turned(k[g], theta).T * scale
        scores = cap * torch.tanh(scores / cap)
        late = c.get("attn_temperature_len")
        if late is not None:
            for i in range(T):
                scores[i] *= math.log2(i) / math.log2(late) if i > late else 1.0
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
        out.append(scores.softmax(-1) @ v[g])
    return torch.cat(out, -1) @ w[f"{name}.o_proj.weight"].T


def mix(w, n, x, name):
    """One token (D,): the two best of all experts, weighted by a softmax over all of them."""
    scores = w[f"{name}.{n.moe}.gate.weight"] @ x
    if n.two:
        cap = n.c["router_logit_softcapping"]
        scores = cap * torch.tanh(scores / cap)
    share = torch.softmax(scores, -1)
    best = sorted(range(EXPERTS), key=lambda e: -float(share[e]))[:2]
    names = [[f"{name}.{n.moe}.experts.{e}.{part}.weight" for part in (n.gate, n.up, n.down)] for e in best]
    out = sum(share[e] * feed(w, x, *three) for e, three in zip(best, names, strict=True))
    if n.c.get("residual_moe"):
        dense = (f"{name}.mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
        out = (out + feed(w, x, *dense)) / math.sqrt(2)
    return out


def logits(w, n, tokens):
    rows = []
    for row in tokens:
        x = w["model.embed_tokens.weight"][row] * n.c["embedding_multiplier_scale"]
        for i in range(LAYERS):
            name = f"model.layers.{i}"
            norms = {p: w[f"{name}.{p}_norm.{n.norm}"] for p in ("pre_attn", "post_attn", "pre_moe", "post_moe")}
            x = x + rms(attend(w, n, rms(x, norms["pre_attn"]), f"{name}.{n.attention}"), norms["post_attn"])
            fed = torch.stack([mix(w, n, t, name) for t in rms(x, norms["pre_moe"])])
            x = x + rms(fed, norms["post_moe"])
        head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
        rows.append(rms(x, w[f"model.norm.{n.norm}"]) @ head.T * n.c["output_multiplier_scale"])
    out, cap = torch.stack(rows), n.c.get("final_logit_softcapping")
    return out if cap is None else cap * torch.tanh(out / cap)


@pytest.mark.parametrize(
    "config",
    [
        GROK_1,
        {**GROK_1, "tie_word_embeddings": False},
        {**GROK_1, "max_attn_value": 30.0, "attn_output_multiplier": 0.088},
        {**GROK_1, "rope_theta": 500.0},
        GROK_2,
        {**GROK_2, "residual_moe": False},
        {**GROK_2, "attn_temperature_len": None},
        {**GROK_2, "attn_temperature_len": 50},
        {**GROK_2, "final_logit_softcapping": None},
    ],
    ids=["1", "1-untied", "1-caps", "1-theta", "2", "2-experts-only", "2-even", "2-not-yet-late", "2-uncapped"],
)
def test_grok_is_its_equations(tmp_path, config):
    names = Names(config)
    w = random_tensors(names.shapes())
    write(tmp_path / "grok", config, w)
    wide = {name: t.double() for name, t in w.items()}
    check(tmp_path / "grok", lambda tokens: logits(wide, names, tokens))


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({**GROK_2, "rope_type": "yarn_log"}, "rope_type"),
        ({**GROK_2, "sliding_window_size": 512}, "sliding_window_size"),
        ({**GROK_2, "rope_rotate_half_dims": True}, "rope_rotate_half_dims"),
        ({**GROK_1, "residual_moe": True}, "residual_moe"),
    ],
)
def test_what_it_does_not_know_is_named(tmp_path, config, key):
    write(tmp_path / "grok", config, random_tensors(Names(GROK_1).shapes()))
    with pytest.raises(CheckpointError, match=key):
        vt.load(tmp_path / "grok")
