# vantage exercise A90: the weights of equal keys
import torch


def weights(n):
    """(n,)"""
    return torch.full((n,), 1 / n)
