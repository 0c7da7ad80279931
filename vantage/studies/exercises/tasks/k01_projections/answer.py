# vantage exercise K1: count the projections


def without_cache(n):
    return n * (n + 1) // 2


def with_cache(n):
    return n


def times(n, t):
    return n - t
