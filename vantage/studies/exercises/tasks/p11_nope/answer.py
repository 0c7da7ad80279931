# vantage exercise P11: position without an encoding
import torch


def keys_and_values(first):
    """first (T,) -> K (T, d) and V (T, 1), for a causal head whose output is 1, 1/2, 1/3, ..."""
    keys = torch.ones(len(first), 2)
    values = first[:, None].clone()
    return keys, values
