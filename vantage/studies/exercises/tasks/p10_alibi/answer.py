# vantage exercise P10: ALiBi's bias
import torch


def alibi_bias(n_heads, seq_len):
    """(n_heads, seq_len, seq_len), to be added to the scores; n_heads is a power of two"""
    slopes = 2.0 ** (-8 * torch.arange(1, n_heads + 1) / n_heads)
    at = torch.arange(seq_len)
    distance = (at[:, None] - at[None, :]).abs()
    return -slopes[:, None, None] * distance
