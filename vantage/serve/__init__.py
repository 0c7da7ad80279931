"""Serving: an HTTP server that speaks OpenAI's API, over the batching engine.

``create_app(settings)`` makes the application; ``vantage serve`` runs it with uvicorn. Needs the extra ``serve``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vantage.serve.options import read_settings
from vantage.serve.settings import Access, Batching, Limits, Logs, ServedModel, ServerSettings

if TYPE_CHECKING:
    from vantage.serve.app import create_app as create_app

__all__ = ["Access", "Batching", "Limits", "Logs", "ServedModel", "ServerSettings", "create_app", "read_settings"]


def __getattr__(name: str) -> Any:
    """The app is imported when it is first wanted: the command line reads the settings to show its help."""
    if name == "create_app":
        from vantage.serve.app import create_app

        return create_app
    raise AttributeError(f"module 'vantage.serve' has no attribute {name!r}")
