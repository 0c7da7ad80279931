"""docs/parts.md is what the registries hold."""

from pathlib import Path

from vantage.parts import page


def test_the_page_is_up_to_date():
    text = (Path(__file__).parents[1] / "docs" / "parts.md").read_text(encoding="utf-8")
    assert text == page(), "run `python -m vantage.parts > docs/parts.md`"
