"""How many tokens of how many rows graphs are made for."""

from __future__ import annotations

# tokens of a row that a graph is made for; a longer pass is several of the largest
CHUNKS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
SHORT = (2, 4, 8)  # of several rows, also so many: drafts
MOST_DRAFTED, MOST_DRAFTS = 16, 128  # tokens of a row and of all rows, for programs that take nothing longer
MIN_TOKENS = 2  # tokens of a pass; a single one is a step


def most_tokens(*, chunks: bool) -> int:
    """Of all rows of a pass. ``chunks``: whether it may be long."""
    return CHUNKS[-1] if chunks else MOST_DRAFTS


def sizes_for(rows: int, *, chunks: bool) -> tuple[int, ...]:
    """Tokens of each of so many rows that graphs are made for."""
    sizes = SHORT + CHUNKS if rows > 1 or not chunks else CHUNKS
    longest = CHUNKS[-1] if chunks else MOST_DRAFTED
    return tuple(n for n in sizes if n <= longest and n * rows <= most_tokens(chunks=chunks))


def bucket_for(tokens: int, rows: int = 1, *, chunks: bool = True) -> int | None:
    """The tokens of the graph that takes so many of each of these rows, or of chunks the most that there is room for;
    ``None``: there is no room for these rows, or a draft is too long."""
    sizes = sizes_for(rows, chunks=chunks)
    return next((n for n in sizes if n >= tokens), max(sizes, default=None) if chunks else None)
