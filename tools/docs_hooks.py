"""What mkdocs does besides its own: files outside docs/ become pages, and links to them lead there.

The pages stay where they are and read well there; nothing is copied into docs/.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "bench"
OUTSIDE = {  # where a file of the repository is on the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "LICENSE.txt",
    "tests/conformance/refused.txt": "refused.txt",
    # the results that README's table links to
    **{f"bench/{path}": path for path in sorted(f.relative_to(BENCH).as_posix() for f in BENCH.glob("kept/**/*.json"))},
}
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
SHIM = '<script src="https://unpkg.com/iframe-worker/shim"></script>'  # what the theme would load from elsewhere
OWN_SHIM = "javascripts/folder-worker.js"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def on_files(files: Files, *, config: Any) -> Files:
    for path, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Links as they hold in the repository, turned into those of the site."""
    place = page.file.src_uri
    source = next((path for path, there in OUTSIDE.items() if there == place), f"docs/{place}")

    def turned(match: re.Match[str]) -> str:
        target, mark, anchor = match[1].partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside = OUTSIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if not target or "://" in target or inside is None:
            return match[0]
        return f"]({posixpath.relpath(inside, posixpath.dirname(place) or '.')}{mark}{anchor})"

    pieces = FENCE.split(markdown)
    return "".join(piece if piece.startswith("```") else LINK.sub(turned, piece) for piece in pieces)


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """The search of a page in a folder needs a script, and it is one of our own."""
    place = posixpath.relpath(OWN_SHIM, posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace(SHIM, f'<script src="{place}"></script>')
