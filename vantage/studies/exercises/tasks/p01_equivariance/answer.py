# vantage exercise P1: which layers are permutation equivariant?
import torch


def is_equivariant(layer, tokens, width):
    """True if layer(P x) = P layer(x) for every permutation P"""
    x = torch.randn(tokens, width)
    out = layer(x)
    for i in range(tokens - 1):
        order = torch.arange(tokens)
        order[i], order[i + 1] = i + 1, i
        if not torch.allclose(layer(x[order]), out[order], atol=1e-4):
            return False
    return True
