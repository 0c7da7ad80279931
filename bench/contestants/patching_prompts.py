"""Two prompts of 30 tokens that differ in one name, and the tokens that are measured."""

from collections.abc import Callable

LENGTH = 30
BEGIN = (
    "In the afternoon the whole family was at home. When Mary and John at last went to the big store in the village,"
)


def prompts(encode: Callable[[str], list[int]]) -> tuple[list[int], list[int], int, int]:
    rows = [encode(f"{BEGIN} {name} gave a drink to")[-LENGTH:] for name in ("John", "Mary")]
    assert all(len(row) == LENGTH for row in rows)
    return rows[0], rows[1], encode(" Mary")[0], encode(" John")[0]
