"""docs/parts.md is what the registries hold."""

import subprocess
import sys
from pathlib import Path


def test_the_page_is_up_to_date():
    """In a process of its own: other tests register parts in this one."""
    page = subprocess.run([sys.executable, "-m", "vantage.parts"], capture_output=True, text=True, check=True).stdout
    text = (Path(__file__).parents[1] / "docs" / "parts.md").read_text(encoding="utf-8")
    assert text == page, "run `python -m vantage.parts > docs/parts.md`"
