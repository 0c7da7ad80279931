# vantage exercise P1: which layers are permutation equivariant?
import torch


def is_equivariant(layer, tokens, width):
    """True if layer(P x) = P layer(x) for every permutation P"""
    raise NotImplementedError
