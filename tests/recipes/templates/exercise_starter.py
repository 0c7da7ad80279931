# vantage exercise A90: the weights of equal keys
import torch


def weights(n):
    """(n,)"""
    raise NotImplementedError
