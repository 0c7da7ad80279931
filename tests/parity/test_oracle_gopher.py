"""Gopher: the whole against its equations in float64; its relative attention, part by part, against XLNet's.

Transformer-XL itself has left transformers; XLNet's two-stream attention is built on the same ``rel_attn_core``.
"""

import pytest
import torch
from transformers import XLNetConfig, XLNetModel
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

import vantage as vt
from tests.parity.oracle import TOKENS, VOCAB, check, random_tensors, write
from vantage.spec.parts import BiasInputs
from vantage.spec.positions import Positions

WIDTH, HEADS, DIM, HIDDEN, LAYERS = 24, 3, 10, 36, 3
CONFIG = {
    "model_type": "gopher",
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "head_dim": DIM,
    "intermediate_size": HIDDEN,
    "max_position_embeddings": 64,
}


def shapes(tied=True):
    maps = {**{f"attention.{x}": (HEADS * DIM, WIDTH) for x in "qkv"}, "attention.out": (WIDTH, HEADS * DIM)}
    maps |= {"mlp.up": (HIDDEN, WIDTH), "mlp.down": (WIDTH, HIDDEN)}
    layer = {f"{name}.weight": shape for name, shape in maps.items()}
    layer |= {f"{name}.bias": shape[:1] for name, shape in maps.items()}
    layer |= {"norm_1.weight": (WIDTH,), "norm_2.weight": (WIDTH,), "attention.r.weight": (HEADS * DIM, WIDTH)}
    layer |= {"attention.content_bias": (HEADS, DIM), "attention.position_bias": (HEADS, DIM)}
    head = {} if tied else {"lm_head.weight": (VOCAB, WIDTH)}
    ends = {"embed_tokens.weight": (VOCAB, WIDTH), "norm.weight": (WIDTH,), **head}
    return {**ends, **{f"layers.{i}.{n}": s for i in range(LAYERS) for n, s in layer.items()}}


def rms(x, scale, eps):
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * scale


def sinusoid(distance, base):
    """R of Dai et al. 2019: sines of all frequencies, then cosines."""
    angle = distance * base ** (-torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
    return torch.cat([angle.sin(), angle.cos()])


def gelu(x):
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def attend(w, x, name, base):
    """A_ij = q_i·k_j + q_i·W_r R(i-j) + u·k_j + v·W_r R(i-j), Dai et al. 2019, equation after (5)."""
    B, T, _ = x.shape
    q, k, v = ((x @ w[f"{name}.{p}.weight"].T + w[f"{name}.{p}.bias"]).split(DIM, -1) for p in "qkv")
    distances = torch.stack([sinusoid(t, base) for t in range(T)]) @ w[f"{name}.r.weight"].T  # (T, heads · dim)
    out = []
    for h in range(HEADS):
        u, u_r = w[f"{name}.content_bias"][h], w[f"{name}.position_bias"][h]
        r = distances[:, h * DIM : (h + 1) * DIM]
        scores = torch.full((B, T, T), float("-inf"), dtype=torch.float64)
        for i in range(T):
            for j in range(i + 1):
                content = ((q[h][:, i] + u) * k[h][:, j]).sum(-1)
                scores[:, i, j] = (content + (q[h][:, i] + u_r) @ r[i - j]) / DIM**0.5
        out.append(scores.softmax(-1) @ v[h])
    return torch.cat(out, -1) @ w[f"{name}.out.weight"].T + w[f"{name}.out.bias"]


def logits(w, tokens, eps, base, activation):
    x = w["embed_tokens.weight"][tokens]
    for i in range(LAYERS):
        name = f"layers.{i}"
        x = x + attend(w, rms(x, w[f"{name}.norm_1.weight"], eps), f"{name}.attention", base)
        up = rms(x, w[f"{name}.norm_2.weight"], eps) @ w[f"{name}.mlp.up.weight"].T + w[f"{name}.mlp.up.bias"]
        x = x + activation(up) @ w[f"{name}.mlp.down.weight"].T + w[f"{name}.mlp.down.bias"]
    return rms(x, w["norm.weight"], eps) @ w.get("lm_head.weight", w["embed_tokens.weight"]).T


OPTIONS = {
    "plain": {},
    "untied": {"tie_word_embeddings": False},
    "eps": {"rms_norm_eps": 1e-2},
    "base": {"relative_base": 100.0},
    "relu": {"hidden_act": "relu"},
}


@pytest.mark.parametrize("changes", OPTIONS.values(), ids=OPTIONS)
def test_gopher_is_its_equations(tmp_path, changes):
    w = random_tensors(shapes(changes.get("tie_word_embeddings", True)))
    write(tmp_path / "gopher", {**CONFIG, **changes}, w)
    wide = {name: t.double() for name, t in w.items()}
    eps, base = changes.get("rms_norm_eps", 1e-6), changes.get("relative_base", 10000.0)
    activation = torch.relu if "hidden_act" in changes else gelu
    check(tmp_path / "gopher", lambda tokens: logits(wide, tokens, eps, base, activation), TOKENS[:, :24])


# ---- part by part against XLNet


@pytest.fixture
def both(tmp_path):
    """Our first layer, and an XLNet layer with the same u, v and W_r; what ours saw is in ``seen``."""
    w = random_tensors(shapes())
    ours = vt.load(write(tmp_path / "gopher", CONFIG, w), dtype=torch.float64)
    config = XLNetConfig(d_model=WIDTH, n_head=HEADS, vocab_size=VOCAB, n_layer=1)
    config.d_head = DIM  # the config's check allows only width / heads; the attention itself does not mind
    theirs, name = XLNetRelativeAttention(config).double().eval(), "layers.0.attention"
    for p in theirs.parameters():
        torch.nn.init.zeros_(p)
    with torch.no_grad():
        theirs.r_w_bias.copy_(w[f"{name}.content_bias"])
        theirs.r_r_bias.copy_(w[f"{name}.position_bias"])
        theirs.r.copy_(w[f"{name}.r.weight"].T.reshape(WIDTH, HEADS, DIM))
    return ours, theirs


def their_distances(theirs, T):
    """XLNet's own encoding of distances, through its W_r: (distances, 1, heads, dim)."""
    model = XLNetModel(XLNetConfig(d_model=WIDTH, n_head=1, vocab_size=VOCAB, n_layer=1, d_inner=4))
    encoded = model.relative_positional_encoding(T, T, bsz=1).double()
    return torch.einsum("ibh,hnd->ibnd", encoded, theirs.r)


@torch.no_grad()
def test_its_scores_are_those_of_xlnet(both):
    ours, theirs = both
    attention = ours.blocks[0].steps[0].sublayer
    gen, T = torch.Generator().manual_seed(2), 17
    q, k = torch.randn(2, 2, HEADS, T, DIM, generator=gen, dtype=torch.float64)
    pos = Positions.arange(2, T)
    # ours are (batch, heads, time, dim), theirs (time, batch, heads, dim)
    q_theirs, k_theirs = q.permute(2, 0, 1, 3), k.permute(2, 0, 1, 3)
    content = torch.einsum("ibnd,jbnd->bnij", q_theirs + theirs.r_w_bias, k_theirs)
    torch.testing.assert_close(attention.qk[0].query(q, pos) @ k.transpose(-1, -2), content)
    r = their_distances(theirs, T).expand(-1, 2, -1, -1)
    distance = torch.einsum("ibnd,jbnd->bnij", q_theirs + theirs.r_r_bias, r)
    shifted = theirs.rel_shift_bnij(distance, klen=T)
    bias = attention.scorer.bias.at(BiasInputs(q, q, k, pos, pos, theirs.scale)).value
    seen = torch.ones(T, T).tril().bool()  # their sinusoids are float32
    torch.testing.assert_close(bias[..., seen], (shifted * theirs.scale)[..., seen], rtol=0, atol=2e-6)


@torch.no_grad()
def test_its_weights_and_values_are_those_of_xlnet(both):
    ours, theirs = both
    seen = {}

    def watch(site, index, view, need, done):
        seen[index] = (view, done)

    T = TOKENS.shape[1]
    ours.hidden(TOKENS, watch=watch)
    view, done = seen[0]
    x = ours.blocks[0].steps[0].before(ours.embed(TOKENS, Positions.arange(2, T)))
    q = ours.blocks[0].steps[0].sublayer.project(x)[0]
    q, k, v = (y.permute(2, 0, 1, 3) for y in (q, view.k, view.v))
    r = their_distances(theirs, T).expand(-1, 2, -1, -1)
    future = torch.ones(T, T, dtype=torch.float64).triu(1)[:, :, None, None].expand(-1, -1, 2, HEADS)
    out, weights = theirs.rel_attn_core(q, k, v, r, attn_mask=future, output_attentions=True)
    torch.testing.assert_close(done.weights, weights.permute(2, 3, 0, 1), rtol=0, atol=2e-6)
    torch.testing.assert_close(done.out, out.permute(1, 2, 0, 3), rtol=0, atol=2e-5)
