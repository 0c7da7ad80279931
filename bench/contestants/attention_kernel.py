"""One call of a kernel, without the maps around it: the one that ``kernel="auto"`` takes, or one by name."""

from time import perf_counter

import torch

from vantage.kernels import chooser
from vantage.spec.forms import DistanceTable, Slope
from vantage.spec.masks import Causal, Window
from vantage.spec.parts import Need, View
from vantage.spec.positions import Positions

HEADS, WIDTH = 12, 64


def setup(kind: str, kernel: str = "auto", tokens: int = 4096) -> None:
    global run
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, tokens, HEADS, WIDTH).transpose(1, 2) for _ in range(3))
    at = Positions.arange(1, tokens)
    biases = {
        "alibi": Slope(2.0 ** -torch.arange(1.0, HEADS + 1)),
        "t5": DistanceTable(torch.randn(HEADS, 129), 0),
    }
    mask = Causal() & Window(1024) if kind == "window" else Causal()
    need, view = Need(mask, WIDTH**-0.5, bias=biases.get(kind)), View(k, v, at)

    def run() -> None:
        chooser(kernel)(need, q, view)(q, view, at.against(at), need)  # masks and tiles are worked out in each call


def round() -> dict[str, list[float]]:
    with torch.inference_mode():
        start = perf_counter()
        run()
        return {"seconds": [perf_counter() - start]}
