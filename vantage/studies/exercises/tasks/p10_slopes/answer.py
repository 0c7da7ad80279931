# vantage exercise P10-slopes: ALiBi's slopes for any number of heads
import torch


def power_of_two(heads):
    return [2.0 ** (-8 * k / heads) for k in range(1, heads + 1)]


def slopes(heads):
    """(heads,): the slopes of the paper, also where heads is no power of two"""
    below = 2 ** (heads.bit_length() - 1)
    rest = power_of_two(2 * below)[0::2][: heads - below]
    return torch.tensor(power_of_two(below) + rest)
