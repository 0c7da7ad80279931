"""The kernels of a decoding step against the formulas in float64: on a GPU where there is one, else interpreted."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from tests.kernels.cached_bias import bias_values, forms
from tests.kernels.fused_calls import DEVICE, MISSING
from vantage.generation.sampling import Picker, uniform
from vantage.spec.sampling import Sampling

pytestmark = pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton")
TYPES = [torch.float32] if DEVICE == "cpu" else [torch.float32, torch.bfloat16, torch.float16]
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).abs().max() / want.double().abs().max())


def normal(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.float32).to(dtype)


PRODUCTS = [(96, 40, False, -1), (130, 33, True, 3), (64, 7, False, 1)]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("inputs", "outputs", "gated", "function"), PRODUCTS)
def test_a_product_with_its_norm_and_activation(inputs, outputs, gated, function, dtype):
    from vantage.kernels.gpu import product

    torch.manual_seed(inputs)
    x, gain = normal(1, inputs, dtype=dtype), normal(inputs, dtype=dtype)
    w = normal(outputs * (1 + gated), inputs, dtype=dtype) / inputs**0.5
    bias, out = normal(len(w), dtype=dtype), normal(1, outputs, dtype=dtype)
    before = out.double()
    product.multiply(x, w, out, bias=bias, gain=gain, eps=1e-5, offset=1.0, add=True, function=function, gated=gated)
    wide = x.double()
    normed = wide * torch.rsqrt((wide**2).mean(-1, keepdim=True) + 1e-5) * (1 + gain.double())
    y = normed @ w.double().T + bias.double()
    apply = {-1: lambda t: t, 1: torch.nn.functional.gelu, 3: torch.nn.functional.silu}[function]
    want = before + apply(y[:, :outputs]) * (y[:, outputs:] if gated else 1)
    assert error(out, want) < LIMIT[dtype]


@pytest.mark.parametrize("centred", [False, True])
def test_a_norm_of_many_rows(centred):
    from vantage.kernels.gpu import product

    x, gain, bias = (normal(*shape, dtype=torch.float32) for shape in ((5, 48), (48,), (48,)))
    out = torch.empty_like(x)
    product.norm(x, out, gain=gain, bias=bias, eps=1e-5, offset=0.0, centred=centred)
    wide = x.double() - (x.double().mean(-1, keepdim=True) if centred else 0)
    want = wide * torch.rsqrt((wide**2).mean(-1, keepdim=True) + 1e-5) * gain.double() + bias.double()
    assert error(out, want) < 1e-5


AS_PRODUCT = ", as a product"
# heads, key/value heads, width, tokens held, window, softcap, form of the bias, pairing (0: none; 5 and 6: keys by
# tables of their own), norms of heads
ATTENTION = [
    (4, 2, 16, 37, 0, None, None, 1, False),
    (4, 4, 24, 5, 0, 2.0, "slopes", 0, True),
    (8, 1, 32, 150, 50, None, None, 2, True),
    (4, 2, 16, 0, 0, None, None, 1, False),
    (6, 2, 16, 70, 20, None, "table", 0, False),
    (4, 2, 16, 37, 0, None, None, 5, True),
    (4, 1, 32, 9, 0, None, None, 6, False),
    *((6, 2, 16, 70, 0, None, name, 1, False) for name in forms(1)),
    *((6, 2, 16, 70, 0, None, name + AS_PRODUCT, 1, False) for name in forms(1) if name.startswith("ratio")),
]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("paged", [False, True], ids=["own places", "paged"])
@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention_of_a_new_token(case, paged, dtype, monkeypatch):
    """Rows of unequal length; unused memory is poisoned; the new key and value stand in the cache afterwards."""
    from vantage.kernels.gpu import decode, head_vectors, score_bias

    H, G, D, n, window, softcap, form, pairing, normed = case
    torch.manual_seed(n)
    held, block, splits = [n, max(0, n - 3)], 16, 4
    places = (n // block + 2) * block
    shape = (G, 2 * places, D) if paged else (2, G, places, D)
    k, v = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
    table = torch.randperm(2 * places // block).view(2, -1).int().to(DEVICE)

    def at(buffer: Tensor, b: int, tokens: Tensor) -> Tensor:
        if not paged:
            return buffer[b][:, tokens]
        return buffer[:, table[b].long()[tokens // block] * block + tokens % block]

    for buffer in (k, v):
        for b in range(2):
            past = torch.arange(held[b] + 1, places, device=DEVICE)
            if paged:
                buffer[:, table[b].long()[past // block] * block + past % block] = float("nan")
            else:
                buffer[b][:, past] = float("nan")
    qkv = normal(2, (H + 2 * G) * D, dtype=dtype)
    lengths = torch.tensor(held, dtype=torch.int32, device=DEVICE)
    rows = decode.RowState(lengths, lengths.clone(), torch.zeros_like(lengths), table, block if paged else 0)
    work = decode.Workspace.make(2, splits, H, G, D, torch.device(DEVICE))
    apart, pairing = divmod(pairing, head_vectors.KEYS_APART)
    turned = D // 2 if pairing == 2 else D
    angle = torch.arange(n + 1).double()[:, None] * 10000.0 ** (-torch.arange(0, turned, 2).double() / turned)
    cos, sin = angle.cos(), angle.sin()
    if pairing == 1:
        cos, sin = torch.cat([cos, cos], 1), torch.cat([-sin, sin], 1)
    else:
        cos, sin = cos.repeat_interleave(2, 1), torch.stack([-sin, sin], -1).flatten(1)
    if apart:  # keys go the other way, and are twice as large
        cos, sin = torch.cat([cos, 2 * cos], 1), torch.cat([sin, -2 * sin], 1)
    cos, sin = (t.float().to(DEVICE).contiguous() for t in (cos, sin))
    gain = normal(D, dtype=dtype)
    bias = None if form is None else forms(H)[form.removesuffix(AS_PRODUCT)]
    if form is None or not form.endswith(AS_PRODUCT):
        monkeypatch.setattr("vantage.kernels.gpu.score_bias.MOST_BREAKS", 0)
    on_device = None if bias is None else score_bias.device_bias(bias, torch.device(DEVICE))
    sinks = normal(H, dtype=dtype) if window else None
    out = torch.empty(2, H * D, device=DEVICE, dtype=dtype)
    head_norm = head_vectors.HeadNorm(gain, 1e-6, 0.0) if normed else None
    stores = torch.tensor([decode.store_numbers([k, v])], device=DEVICE)
    decode.decode(
        qkv, out, stores, 0, rows, work, heads=H, kv_heads=G, key_dim=D, value_dim=D, scale=D**-0.5, softcap=softcap,
        window=window, bias=on_device, sinks=sinks, q_norm=head_norm, k_norm=head_norm, keys=32, least=32,
        rotation=head_vectors.RopeTables(cos, sin, turned, pairing, bool(apart)) if pairing else None,
    )  # fmt: skip

    def prepared(x: Tensor, m: int, side: int) -> Tensor:
        if normed:
            x = x * torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-6) * gain.double()
        if pairing:
            front = x[:, :turned]
            swapped = front.roll(turned // 2, -1)
            if pairing == 2:
                swapped = front.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
            c, s = (table[m].double().view(-1, turned)[side * apart] for table in (cos, sin))
            x = torch.cat([front * c + swapped * s, x[:, turned:]], 1)
        return x

    for b, m in enumerate(held):
        q, new_k, new_v = qkv[b].double().view(-1, D).split((H, G, G))
        q, new_k = prepared(q, m, 0), prepared(new_k, m, 1)
        here = torch.tensor([m], device=DEVICE)
        assert error(at(k, b, here)[:, 0], new_k) < LIMIT[dtype]
        assert torch.equal(at(v, b, here)[:, 0].double(), new_v)
        before = torch.arange(m, device=DEVICE)
        keys = torch.cat([at(k, b, before).double(), new_k[:, None]], 1).repeat_interleave(H // G, 0)
        values = torch.cat([at(v, b, before).double(), new_v[:, None]], 1).repeat_interleave(H // G, 0)
        scores = (q[:, None] * keys).sum(-1) * D**-0.5
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if bias is not None:
            scores = scores + bias_values(bias, H, m + 1)[:, m].to(DEVICE)
        if window:
            scores[:, : max(0, m + 1 - window)] = float("-inf")
        if sinks is not None:
            weights = torch.softmax(torch.cat([scores, sinks.double()[:, None]], 1), -1)[:, :-1]
        else:
            weights = torch.softmax(scores, -1)
        assert error(out[b].view(H, D), (weights[:, :, None] * values).sum(1)) < LIMIT[dtype]
    assert not work.arrived.any(), "ready for the next layer"


SAMPLINGS = [
    Sampling(0.0),
    Sampling(1.0, seed=3),
    Sampling(0.7, top_k=20, seed=4),
    Sampling(1.3, top_p=0.9, seed=5),
    Sampling(1.0, min_p=0.05, seed=6),
    Sampling(0.9, top_k=50, top_p=0.8, min_p=0.01, seed=7),
]


@pytest.mark.parametrize("samplings", [SAMPLINGS, SAMPLINGS[5:]], ids=["several rows", "one row"])
@pytest.mark.parametrize("ties", [False, True])
def test_tokens_are_chosen_as_the_host_chooses_them(ties, samplings):
    """The same logits and seed give the same token and log-probability; with equal logits too."""
    from vantage.kernels.gpu import choose

    V, rows = 300, len(samplings)
    torch.manual_seed(0)
    logits = torch.randn(rows, V) * 3
    logits = logits.round() if ties else logits
    pickers = [Picker(sampling, (), vocab=V) for sampling in samplings]
    settings = [(s.temperature, s.top_p or 1.0, s.min_p or 0.0) for s in samplings]
    uniforms = [[uniform(picker.seed, 0, step) for picker in pickers] for step in range(2)]
    choices = choose.Choices.over(
        torch.tensor(settings, dtype=torch.float64, device=DEVICE),
        torch.tensor([s.top_k or 0 for s in samplings], dtype=torch.int32, device=DEVICE),
        torch.tensor(uniforms, dtype=torch.float64, device=DEVICE),
        torch.zeros(rows, dtype=torch.int32, device=DEVICE),
    )
    tokens = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
    held, pos = torch.full_like(tokens, 5), torch.full_like(tokens, 9)
    unused = ties and rows > 1
    held[0] = -1 if unused else 5  # a row that is not in use
    for step in range(2):
        choose.choose_tokens(logits.to(DEVICE), choices, tokens, held, pos, chunk=128)
        for b in range(int(unused), rows):
            pick = pickers[b].pick(logits[b])
            assert int(tokens[b]) == int(choices.tokens[step, b]) == pick.token
            assert float(choices.logprobs[step, b]) == pytest.approx(pick.logprob, abs=1e-4)
            pickers[b].took(pick.token)
    assert held.tolist() == [-1 if unused else 7] + [7] * (rows - 1)
    assert pos.tolist() == [9 if unused else 11] + [11] * (rows - 1)


def test_logits_that_are_no_numbers_are_told():
    from vantage.kernels.gpu import choose

    logits = torch.zeros(2, 50, device=DEVICE)
    logits[1, 7] = float("nan")
    zeros = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    choices = choose.Choices.over(
        torch.zeros(2, 3, dtype=torch.float64, device=DEVICE),
        zeros.clone(),
        torch.zeros(1, 2, dtype=torch.float64, device=DEVICE),
        zeros.clone(),
    )
    choose.choose_tokens(logits, choices, zeros.clone(), zeros.clone(), zeros.clone())
    assert choices.status[0].tolist() == [choose.CHOSEN, choose.NOT_FINITE]


@pytest.mark.slow
def test_they_compile_for_other_gpus():
    """In a process of its own: here the same kernels are interpreted."""
    command = [sys.executable, "-m", "tests.kernels.compile_steps"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=_without_interpreter())
    assert done.returncode == 0, done.stderr[-3000:]


def _without_interpreter() -> dict[str, str]:
    import os

    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
