"""The studio: the page, and the API behind it, on top of the OpenAI-compatible server. For this machine alone.

``create_studio(settings)`` makes the application; ``vantage studio`` runs it. ``vantage serve`` has none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vantage.serve.studio.app import create_studio as create_studio

__all__ = ["create_studio"]


def __getattr__(name: str) -> Any:
    """Imported when first wanted, as ``vantage.serve`` does."""
    if name == "create_studio":
        from vantage.serve.studio.app import create_studio

        return create_studio
    raise AttributeError(f"module 'vantage.serve.studio' has no attribute {name!r}")
