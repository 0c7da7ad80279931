# vantage exercise A15: the receptive field of hard attention


def reach(picks, position):
    """the set of input positions that the top node at position depends on"""
    seen = {position}
    for level in reversed(picks):
        seen = seen | {source for place in seen for source in level[place]}
    return seen


def bound(heads, levels):
    """how many they can be at most"""
    return (heads + 1) ** levels
