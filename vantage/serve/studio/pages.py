"""The pages of the studio: each is a folder here, and what it has in ``routes.router`` answers under /studio/api.

A new page is a folder and one line in ``PAGES``.
"""

from __future__ import annotations

from importlib import import_module

from fastapi import APIRouter

from vantage.serve.studio import models

PAGES = (
    "chat",
    "conversations",
    "attention",
    "lens",
    "positions",
    "cost",
    "compare",
    "studies",
    "build",
)


def routers() -> list[APIRouter]:
    """Of all pages, and the one that they share."""
    return [models.router, *(import_module(f"vantage.serve.studio.{page}.routes").router for page in PAGES)]
