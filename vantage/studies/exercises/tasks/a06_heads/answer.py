# vantage exercise A6: split into heads and merge
import torch


def split_heads(x, heads):
    """(batch, tokens, heads * d) -> (batch, heads, tokens, d)"""
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, heads, width // heads).transpose(1, 2)


def merge_heads(x):
    """(batch, heads, tokens, d) -> (batch, tokens, heads * d)"""
    batch, heads, tokens, d = x.shape
    return x.transpose(1, 2).reshape(batch, tokens, heads * d)
