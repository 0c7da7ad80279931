# vantage exercise A10: softmax with a temperature
import torch


def softmax(x, temperature):
    """(..., n) -> (..., n), without torch.softmax"""
    top = x.max(dim=-1, keepdim=True).values
    exps = torch.exp((x - top) / temperature)
    return exps / exps.sum(-1, keepdim=True)
