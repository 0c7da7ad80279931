"""Make a release of this commit: ``python tools/release.py`` (`make release`).

It refuses a tree with changes, a commit that is not on main, a version that is no semantic version or was released
before, and a changelog without it; then it runs `make test-all` and `make dist`, and refuses what fails. What passes
gets the tag ``vVERSION``. Nothing is uploaded: it ends with the commands that do it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

SEMANTIC = r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?"


class Refused(Exception):
    """A release that must not be made. The message says why."""


def git(root: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"`git {' '.join(args)}` failed: {done.stderr.strip()}")
    return done.stdout.strip()


def version_of(root: Path) -> str:
    text = (root / "vantage" / "__init__.py").read_text(encoding="utf-8")
    line = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    if line is None or not re.fullmatch(SEMANTIC, line[1]):
        raise Refused("`__version__` in vantage/__init__.py is no semantic version, such as 1.2.3")
    return line[1]


def check_tree(root: Path) -> None:
    if changed := git(root, "status", "--porcelain"):
        raise Refused(f"the tree has changes that are in no commit:\n{changed}")
    if (branch := git(root, "rev-parse", "--abbrev-ref", "HEAD")) != "main":
        raise Refused(f"this is the branch {branch}: releases are made of main")


def check_version(root: Path, version: str) -> None:
    if git(root, "tag", "--list", f"v{version}"):
        raise Refused(f"{version} was released before: raise `__version__` in vantage/__init__.py")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        raise Refused(f"CHANGELOG.md has no heading `## [{version}] - YEAR-MONTH-DAY`")


def make(root: Path, target: str) -> None:
    if subprocess.run(["make", target], cwd=root, check=False).returncode:
        raise Refused(f"`make {target}` failed")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="of the tree to release")
    root = parser.parse_args(argv).root
    try:
        check_tree(root)
        version = version_of(root)
        check_version(root, version)
        make(root, "test-all")
        check_tree(root)  # no test has changed it
        make(root, "dist")
        git(root, "tag", "--annotate", f"v{version}", "--message", f"Vantage {version}")
    except Refused as refusal:
        print(f"release: {refusal}", file=sys.stderr)
        return 1
    print(f"Tagged v{version}. To publish it, push the tag (git push origin v{version}) and attach the files in dist/.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
