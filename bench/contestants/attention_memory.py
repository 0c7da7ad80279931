"""One attention layer over a long text: ours, or the same layer written by hand around torch's sdpa."""

from time import perf_counter

import torch
import torch.nn.functional as F

WIDTH, HEADS = 768, 12


def setup(ours: bool, tokens: int = 16384) -> None:
    global run, x
    torch.manual_seed(0)
    run = _ours() if ours else _by_hand()
    with torch.inference_mode():
        x = torch.randn(1, tokens, WIDTH)
        run(x[:, :64])  # libraries load their code on first use


def round() -> dict[str, list[float]]:
    with torch.inference_mode():
        start = perf_counter()
        run(x)
        return {"seconds": [perf_counter() - start]}


def _ours():
    import vantage as vt
    from vantage.cache import NoCache
    from vantage.kernels import chooser
    from vantage.spec.parts import Context

    spec = vt.decoder(vocab=8, width=WIDTH, layers=1, heads=HEADS, position="none")
    attention = vt.build(spec).eval().blocks[0].steps[0].sublayer

    def run(x: torch.Tensor) -> torch.Tensor:
        return attention(x, Context(vt.Positions.arange(1, x.shape[1]), chooser("auto"), [NoCache()]))

    return run


def _by_hand():
    qkv, out = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False), torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def run(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in qkv(x).chunk(3, -1))
        return out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    return run
