# vantage exercise P7: T5's buckets
import math

import torch


def bucket(distance, bidirectional, buckets, max_distance):
    """the bucket of each distance (key position - query position)"""
    first = torch.zeros_like(distance)
    if bidirectional:
        buckets = buckets // 2
        first = (distance > 0).long() * buckets
        far = distance.abs()
    else:
        far = (-distance).clamp(min=0)
    exact = buckets // 2
    growth = torch.log(far.clamp(min=exact) / exact) / math.log(max_distance / exact)
    large = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    return first + torch.where(far < exact, far, large)
