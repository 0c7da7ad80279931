"""What a setting can be, said where it is read: with its own name, and before anything is made of it."""

from __future__ import annotations

from vantage.errors import BadInput


def at_least_one(section: object, *names: str) -> None:
    """Refuse fields that count something and are below 1; ``None`` is none at all."""
    for name in names:
        value = getattr(section, name)
        if value is not None and value < 1:
            raise BadInput(f"{name}={value}: give at least 1")
