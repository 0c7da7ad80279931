"""The software bill of materials, as CycloneDX 1.6 in JSON: ``python tools/sbom.py [--out FILE]``.

What a base install brings and, with the extras' names as a property, what each extra adds: every package that is
reached from ``pyproject.toml`` with its version in this environment and its licence; and the npm packages that the
studio's page is built from. It states no time, so that the same environment gives the same file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
INTERNAL = ("test", "dev")  # extras for those who work on Vantage


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def version() -> str:
    text = (ROOT / "vantage" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def closure(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """Everything that these need, by name, as far as it is installed here."""
    reached: dict[str, metadata.Distribution] = {}
    followed: set[tuple[str, str]] = set()  # a package and an extra of it
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        reached[name] = distribution
        for extra in {"", *requirement.extras} - {extra for one, extra in followed if one == name}:
            followed.add((name, extra))
            waiting += [(Requirement(text), extra) for text in distribution.requires or ()]
    return reached


def licence(distribution: metadata.Distribution) -> list[dict[str, Any]]:
    about = distribution.metadata
    if expression := about.get("License-Expression"):
        return [{"expression": expression}]
    classifiers = [text for text in about.get_all("Classifier") or () if text.startswith("License :: ")]
    names = [text.rpartition(" :: ")[2] for text in classifiers] or [(about.get("License") or "").split("\n")[0]]
    return [{"license": {"name": name[:100]}} for name in names if name]


def python_components() -> list[dict[str, Any]]:
    declared = project()
    groups = {"base": declared["dependencies"]} | {
        name: wanted for name, wanted in declared["optional-dependencies"].items() if name not in INTERNAL
    }
    by_name: dict[str, tuple[metadata.Distribution, list[str]]] = {}
    for group, wanted in groups.items():
        for name, distribution in closure(wanted).items():
            by_name.setdefault(name, (distribution, []))[1].append(group)
    return [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{distribution.version}",
            "name": name,
            "version": distribution.version,
            "purl": f"pkg:pypi/{name}@{distribution.version}",
            "licenses": licence(distribution),
            "properties": [{"name": "vantage:install", "value": "base" if "base" in groups else ", ".join(groups)}],
        }
        for name, (distribution, groups) in sorted(by_name.items())
    ]


def page_components() -> list[dict[str, Any]]:
    """What ends up in the page: the lock file's packages that are not for building it."""
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text(encoding="utf-8"))
    packages = {
        path.rpartition("node_modules/")[2]: about
        for path, about in lock["packages"].items()
        if path and not about.get("dev") and not about.get("devOptional")
    }
    return [
        {
            "type": "library",
            "bom-ref": (purl := f"pkg:npm/{name.replace('@', '%40')}@{about['version']}"),
            "name": name,
            "version": about["version"],
            "purl": purl,
            "licenses": [{"expression": about["license"]}] if "license" in about else [],
            "properties": [{"name": "vantage:install", "value": "the studio's page"}],
        }
        for name, about in sorted(packages.items())
    ]


def bill() -> dict[str, Any]:
    root = {"type": "library", "bom-ref": f"pkg:pypi/vantage@{version()}", "name": "vantage", "version": version()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**root, "licenses": [{"expression": project()["license"]}]}},
        "components": [*python_components(), *page_components()],
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="write it there instead of printing it")
    args = parser.parse_args(argv)
    text = json.dumps(bill(), indent=1, ensure_ascii=False) + "\n"
    if args.out is None:
        print(text, end="")
    else:
        args.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
