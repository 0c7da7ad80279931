"""The same English text for everybody, long enough for every bench."""

TEXT = (
    "the sea was calm that morning and the old keeper climbed the stairs of the lighthouse one by one counting them as "
    "he had done every day for forty years while gulls turned above the rocks and a small boat far out drew its line "
    "across the water toward the harbour where nobody was awake yet except the baker and her two sons"
)


def text(repeats: int = 130) -> str:
    """Not the same sentence again and again: each time another word begins it."""
    words = TEXT.split()
    turned = (words[i % len(words) :] + words[: i % len(words)] for i in range(repeats))
    return ". ".join(" ".join(them).capitalize() for them in turned)
