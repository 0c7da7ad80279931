# vantage exercise K1: count the projections


def without_cache(n):
    raise NotImplementedError


def with_cache(n):
    raise NotImplementedError


def times(n, t):
    raise NotImplementedError
