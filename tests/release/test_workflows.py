"""What runs elsewhere runs here: every step of the workflows and of the image is a make target."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.processes import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE))
COMMAND = re.compile(r"(?:sudo )?make((?: [a-z-]+)+)((?: [A-Z_]+=\S+)*)")
ACTIONS = {"actions/checkout", "actions/setup-python", "actions/upload-artifact"}


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{path.stem}: {name}", step)
        for path in WORKFLOWS
        for name, job in read(path)["jobs"].items()
        for step in job["steps"]
    ]


def made(command: str) -> list[str]:
    """The targets that a command makes, if it is one of make and gives it what the Makefile knows."""
    plain = re.sub(r"\$\{\{.*?\}\}", "x", command).strip()
    match = COMMAND.fullmatch(plain)
    assert match is not None, f"{command!r} is no make target"
    assert set(re.findall(r"([A-Z_]+)=", match[2])) <= VARIABLES
    assert set(match[1].split()) <= TARGETS, command
    return match[1].split()


@pytest.mark.parametrize(("where", "step"), steps(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_step_is_a_make_target_or_a_known_action(where: str, step: dict[str, Any]) -> None:
    if "run" in step:
        assert made(step["run"])
    else:
        assert step["uses"].partition("@")[0] in ACTIONS
        assert step["uses"].partition("@")[2]


def test_the_workflows_lint_test_document_and_build() -> None:
    run = {target for _, step in steps() if "run" in step for target in made(step["run"])}
    assert {"check", "test", "docs", "dist", "test-all"} <= run
    nightly = read(GITHUB / "workflows" / "nightly.yml")
    assert True in nightly or "on" in nightly  # YAML reads the word as a truth value
    assert nightly["jobs"]["test-all"]


def test_what_was_never_run_says_so() -> None:
    rows = read(GITHUB / "workflows" / "checks.yml")["jobs"]["tests"]["strategy"]["matrix"]["include"]
    tested = re.search(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert tested is not None
    proven = [(row["os"], row["python"], row["torch"]) for row in rows if not row["unproven"]]
    assert proven == [("ubuntu-latest", "3.11", tested[1]), ("ubuntu-latest", "3.12", "2.11.0")]


def test_make_knows_another_torch() -> None:
    command = ["make", "--dry-run", "--always-make", "env", "TORCH=2.11.0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "torch==2.11.0" in done.stdout


def test_the_image_is_built_by_make_and_its_files_are_there() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    stages = re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE)
    assert {"cpu", "cuda"} <= set(stages)
    build = text.split("FROM ")[1]
    runs = [line for line in re.findall(r"^RUN (.*)$", build, re.MULTILINE) if not line.startswith("apt-get")]
    assert runs
    for line in runs:
        assert set(re.findall(r"make ([a-z-]+)", line)) <= TARGETS
        assert line.startswith("make ")
    for source in re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE):
        assert (ROOT / source).exists()
    assert text.rstrip().endswith("USER vantage")  # not as root


def test_dependabot_looks_where_versions_are() -> None:
    updates = read(GITHUB / "dependabot.yml")["updates"]
    kinds = {update["package-ecosystem"] for update in updates}
    assert kinds == {"pip", "npm", "github-actions", "docker"}
    for update in updates:
        for folder in update.get("directories", [update.get("directory")]):
            assert (ROOT / folder.lstrip("/")).is_dir()


def test_templates_and_policies_are_there() -> None:
    for template in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml"):
        content = read(template)
        assert template.stem == "config" or {"name", "description", "body"} <= content.keys()
    citation = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors", "version"} <= citation.keys()
    assert "docs/security.md" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")
