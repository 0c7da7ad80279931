# vantage exercise A15: the receptive field of hard attention


def reach(picks, position):
    """the set of input positions that the top node at position depends on"""
    raise NotImplementedError


def bound(heads, levels):
    """how many they can be at most"""
    raise NotImplementedError
