"""A matrix product in torch: for testing the harness itself."""

from time import perf_counter

import torch


def setup(size: int = 1024, repeats: int = 5) -> None:
    global a, b, count
    torch.manual_seed(0)
    a, b, count = torch.randn(size, size), torch.randn(size, size), repeats
    # Libraries load their code on first use. Done here, that does not count as memory of the rounds.
    torch.mm(a, b)


def round() -> dict[str, list[float]]:
    seconds = []
    for _ in range(count):
        start = perf_counter()
        torch.mm(a, b)
        seconds.append(perf_counter() - start)
    return {"seconds": seconds}
