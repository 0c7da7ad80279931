"""The pages of the studio: each is a folder here, whose ``routes.router`` answers under /studio/api.

A new page is a folder and one line in ``PAGES``.
"""

from __future__ import annotations

from fastapi import APIRouter

from vantage.serve.studio.attention import routes as attention
from vantage.serve.studio.build import routes as build
from vantage.serve.studio.chat import routes as chat
from vantage.serve.studio.compare import routes as compare
from vantage.serve.studio.cost import routes as cost
from vantage.serve.studio.positions import routes as positions
from vantage.serve.studio.studies import routes as studies

PAGES: dict[str, APIRouter] = {
    "chat": chat.router,
    "attention": attention.router,
    "positions": positions.router,
    "cost": cost.router,
    "compare": compare.router,
    "studies": studies.router,
    "build": build.router,
}
