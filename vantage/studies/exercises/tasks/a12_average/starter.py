# vantage exercise A12: copy one value, average two
import torch


def copy_query(keys, a):
    """a query (d,) that puts nearly all weight on key a"""
    raise NotImplementedError


def average_query(keys, a, b):
    """a query (d,) that puts half the weight on key a and half on key b"""
    raise NotImplementedError
