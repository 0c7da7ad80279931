"""PaLM against the equations of its paper (section 2), written here in float64 without the library."""

import pytest
import torch

import vantage as vt
from tests.parity.oracle import VOCAB, check, random_tensors, write
from vantage.errors import CheckpointError

WIDTH, HEADS, DIM, HIDDEN, LAYERS = 24, 3, 10, 36, 3
CONFIG = {
    "model_type": "palm",
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "head_dim": DIM,
    "intermediate_size": HIDDEN,
    "max_position_embeddings": 64,
}


def shapes():
    layer = {
        "norm": (WIDTH,),
        "attention.q": (HEADS * DIM, WIDTH),
        "attention.k": (DIM, WIDTH),  # one head of keys and values for all queries
        "attention.v": (DIM, WIDTH),
        "attention.out": (WIDTH, HEADS * DIM),
        "mlp.gate": (HIDDEN, WIDTH),
        "mlp.up": (HIDDEN, WIDTH),
        "mlp.down": (WIDTH, HIDDEN),
    }
    layers = {f"layers.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in layer.items()}
    return {"embed_tokens.weight": (VOCAB, WIDTH), "norm.weight": (WIDTH,), **layers}


def norm(x, scale, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps) * scale


def turned(x, theta):
    """RoPE as complex numbers: dimensions 2k and 2k + 1 are one number, turned by t · theta^(-2k/d)."""
    T, d = x.shape[-2:]
    angle = torch.arange(T, dtype=torch.float64)[:, None] * theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], d // 2, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).reshape(x.shape)


def logits(w, tokens, eps, theta):
    """y = x + MLP(norm(x)) + Attention(norm(x)); MLP(x) = (swish(x W) · x V) W2; logits = E norm(y) / sqrt(n)."""
    T = tokens.shape[1]
    future = torch.ones(T, T).triu(1).bool()
    x = w["embed_tokens.weight"][tokens]
    for i in range(LAYERS):
        name = f"layers.{i}"
        n = norm(x, w[f"{name}.norm.weight"], eps)
        k = turned(n @ w[f"{name}.attention.k.weight"].T, theta)
        v = n @ w[f"{name}.attention.v.weight"].T
        heads = []
        for q in (n @ w[f"{name}.attention.q.weight"].T).split(DIM, -1):
            scores = turned(q, theta) @ k.transpose(-1, -2) / DIM**0.5
            heads.append(scores.masked_fill(future, float("-inf")).softmax(-1) @ v)
        attention = torch.cat(heads, -1) @ w[f"{name}.attention.out.weight"].T
        gate, up = (n @ w[f"{name}.mlp.{part}.weight"].T for part in ("gate", "up"))
        x = x + attention + (gate * torch.sigmoid(gate) * up) @ w[f"{name}.mlp.down.weight"].T
    return norm(x, w["norm.weight"], eps) @ w["embed_tokens.weight"].T / WIDTH**0.5


@pytest.mark.parametrize(
    "changes", [{}, {"layer_norm_eps": 1e-2}, {"rope_theta": 500.0}], ids=["plain", "eps", "theta"]
)
def test_palm_is_its_equations(tmp_path, changes):
    w = random_tensors(shapes())
    write(tmp_path / "palm", {**CONFIG, **changes}, w)
    wide = {name: t.double() for name, t in w.items()}
    eps, theta = changes.get("layer_norm_eps", 1e-6), changes.get("rope_theta", 10000.0)
    check(tmp_path / "palm", lambda tokens: logits(wide, tokens, eps, theta))


def test_what_it_does_not_know_is_named(tmp_path):
    w = random_tensors(shapes())
    write(tmp_path / "untied", {**CONFIG, "tie_word_embeddings": False}, w)
    with pytest.raises(CheckpointError, match="tie_word_embeddings"):
        vt.load(tmp_path / "untied")
    write(tmp_path / "bias", {**CONFIG, "attention_bias": True}, w)
    with pytest.raises(CheckpointError, match="attention_bias"):
        vt.load(tmp_path / "bias")
