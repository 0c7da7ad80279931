"""How wide a head is, where a config may leave that to the model's width."""

from __future__ import annotations

from vantage.errors import BadInput


def head_width(width: int, heads: int, given: int | None, field: str = "head_dim") -> int:
    """What the config's ``field`` gives; ``None``: an equal share of the model's width."""
    if heads < 1 or (given is None and width % heads):
        raise BadInput(f"width {width} does not divide into {heads} heads: change one, or say {field}=")
    return width // heads if given is None else given
