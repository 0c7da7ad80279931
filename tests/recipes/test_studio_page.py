"""Adding a page to the studio, as CONTRIBUTING.md says it: a folder and one line here, a file and one line in web/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes.copies import ROOT, PackageCopy

CHECK = """
from fastapi.testclient import TestClient

from vantage.serve import ServedModel, ServerSettings
from vantage.serve.studio import create_studio
from vantage.serve.studio.pages import PAGES
from vantage.serve.studio.types import main, typescript

assert "glossary" in PAGES

app = create_studio(ServerSettings((ServedModel("tiny", "nowhere"),)))
http = TestClient(app, base_url="http://127.0.0.1:8000")
assert http.get("/studio/api/glossary").status_code == 403  # behind the token, like every other
answer = http.get("/studio/api/glossary", headers={"X-Vantage-Token": app.state.studio.token})
assert answer.status_code == 200, answer.text
assert "RoPE" in [entry["name"] for entry in answer.json()["entries"]]

text = typescript()
assert "export interface GlossaryAnswer {\\n  entries: GlossaryEntry[];\\n}" in text
assert "/** A name, and what it stands for. */\\nexport interface GlossaryEntry {" in text
assert main() == 0
print("found everywhere")
"""


def applied(folder: Path) -> PackageCopy:
    copy = PackageCopy.of(folder)
    shutil.copytree(ROOT / "web/src", folder / "web/src")
    copy.add_file("studio_page.py", "vantage/serve/studio/glossary/routes.py")
    copy.add_line("vantage/serve/studio/pages.py", '"build",', '"glossary",')
    copy.add_file("studio_page.tsx", "web/src/pages/glossary.tsx")
    line = '{ id: "glossary", title: "Glossary", load: () => import("./pages/glossary") },'
    copy.add_line("web/src/app.tsx", 'id: "build"', line)
    return copy


def test_a_page_is_a_folder_and_one_line_and_a_file_and_one_line(tmp_path: Path) -> None:
    copy = applied(tmp_path)
    assert copy.run(CHECK).strip() == "found everywhere"
    assert copy.edits == [
        "new file vantage/serve/studio/glossary/routes.py",
        "one line in vantage/serve/studio/pages.py",
        "new file web/src/pages/glossary.tsx",
        "one line in web/src/app.tsx",
    ]
    _compiles(tmp_path / "web")


def _compiles(web: Path) -> None:
    """The page with the types that were written for it."""
    modules = ROOT / "web/node_modules"
    if not modules.is_dir():
        pytest.skip("web/node_modules is not here: make web brings it")
    for name in ("package.json", "npm.sh", "vite.config.ts", "tsconfig.json"):
        shutil.copy(ROOT / "web" / name, web / name)
    shutil.copytree(ROOT / "web/test", web / "test")
    (web / "node_modules").symlink_to(modules)
    command = ["sh", str(web / "npm.sh"), os.fspath(Path(sys.executable).parents[1]), "--silent", "run", "check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
