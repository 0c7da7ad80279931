# vantage exercise A10: softmax with a temperature
import torch


def softmax(x, temperature):
    """(..., n) -> (..., n), without torch.softmax"""
    raise NotImplementedError
