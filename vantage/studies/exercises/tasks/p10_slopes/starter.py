# vantage exercise P10-slopes: ALiBi's slopes for any number of heads
import torch


def slopes(heads):
    """(heads,): the slopes of the paper, also where heads is no power of two"""
    raise NotImplementedError
