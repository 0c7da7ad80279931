"""Servers that several tests share: none of these changes what the next one sees."""

from __future__ import annotations

import pytest

from tests.serve.running import KEY, pulled, serving, tiny

KEYS = {"VANTAGE_API_KEY": f"{KEY},another-key"}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="session")
def small(folder):
    """The tiny model behind a key."""
    with serving(folder, f"tiny={tiny(folder)}", "--capacity", "128", env=KEYS) as it:
        yield it


@pytest.fixture(scope="session")
def real(folder):
    """SmolLM2 in its 4 bits, and MiniLM."""
    with serving(folder, pulled("smollm2"), pulled("minilm"), "--capacity", "4096", env=KEYS) as it:
        yield it
