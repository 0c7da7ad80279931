"""A copy of the package to which a recipe of CONTRIBUTING.md is applied, step by step, and counted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEMPLATES = Path(__file__).parent / "templates"
LEFT_OUT = shutil.ignore_patterns(".venv", "node_modules", "*.so", "*.pyc.*")


@dataclass
class PackageCopy:
    """``vantage/`` in a folder of its own. Every change to it is one edit."""

    folder: Path
    edits: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> PackageCopy:
        # with its bytecode, which stays good: times of files are copied along; not what another process is writing
        shutil.copytree(ROOT / "vantage", folder / "vantage", ignore=LEFT_OUT)
        return cls(folder)

    def add_file(self, template: str, path: str) -> None:
        """A file of ``templates/`` becomes a new file of the package."""
        target = self.folder / path
        assert not target.exists(), f"{path} is there already: a recipe adds a file"
        target.parent.mkdir(exist_ok=True)
        target.write_text((TEMPLATES / template).read_text(encoding="utf-8"), encoding="utf-8")
        self.edits.append(f"new file {path}")

    def add_line(self, path: str, after: str, line: str) -> None:
        """A line behind the only one that holds ``after``, with the same indentation."""
        target = self.folder / path
        lines = target.read_text(encoding="utf-8").splitlines()
        places = [i for i, text in enumerate(lines) if after in text]
        assert len(places) == 1, f"{path} has {len(places)} lines with {after!r}: one was expected"
        indent = lines[places[0]][: len(lines[places[0]]) - len(lines[places[0]].lstrip())]
        lines.insert(places[0] + 1, indent + line)
        target.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.edits.append(f"one line in {path}")

    def append(self, template: str, path: str) -> None:
        """A file of ``templates/`` is put at the end of one of the package."""
        with (self.folder / path).open("a", encoding="utf-8") as target:
            target.write("\n" + (TEMPLATES / template).read_text(encoding="utf-8"))
        self.edits.append(f"one entry in {path}")

    def run(self, script: str, *, timeout: float = 300) -> str:
        """What a Python script prints that imports the copy; a script that fails fails the test with its words."""
        env = {**os.environ, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
