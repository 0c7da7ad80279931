# vantage exercise K2: a step with a cache
import torch


def step(x, cache, wq, wk, wv):
    """x (d,), cache None or (K, V) -> out (e,), (K, V)"""
    q, k, v = x @ wq, (x @ wk)[None], (x @ wv)[None]
    if cache is not None:
        k, v = torch.cat([cache[0], k]), torch.cat([cache[1], v])
    weights = (k @ q / len(q) ** 0.5).softmax(-1)
    return weights @ v, (k, v)
