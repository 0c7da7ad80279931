"""What runs elsewhere runs here: every step of the workflows and of the image is a make target."""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
import sysconfig
import venv
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
COMMAND = re.compile(r"""(?:sudo )?make((?: [a-z-]+)+)((?: [A-Z_]+=(?:\S+|"[^"]*"))*)""")
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


def image_commands() -> list[str]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(r"^RUN (.*)$", text, re.MULTILINE)


def test_the_image_is_built_by_make_and_its_files_are_there() -> None:
    """Two lines are no targets: one brings make itself, one makes the user that the image runs as."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    stages = {name: source for source, name in re.findall(r"^FROM (\S+) AS ([\w-]+)$", text, re.MULTILINE)}
    assert stages["cpu"] == stages["cuda"] == "base"
    others = [line for line in image_commands() if not line.startswith("make ")]
    assert [line.split()[0] for line in others] == ["apt-get", "useradd"]
    assert [made(line)[0] for line in image_commands() if line not in others] == ["dist", "install", "install"]
    for source, target in re.findall(r"^COPY --from=(\S+) (\S+) ", text, re.MULTILINE):
        assert source in stages
        assert f"PREFIX={target}" in text
    for source in re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE):
        assert (ROOT / source).exists()
    assert "USER vantage" in text.partition(" AS base")[2].partition("FROM ")[0]  # not as root


# ---- the targets, run

RUNS_THIS_TEST = {"test", "test-all"}


def used_targets() -> set[str]:
    steps_of_workflows = [step["run"] for _, step in steps() if "run" in step]
    lines = [line for line in image_commands() if line.startswith("make ")]
    return {target for command in (*steps_of_workflows, *lines) for target in made(command)}


def make(*words: str) -> str:
    command = ["make", *words]
    environment = {**os.environ, "MAKEFLAGS": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def environment_of_make() -> None:
    if Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        pytest.skip("these tests do not run in the environment that make has made: run them by `make test-all`")


@pytest.mark.slow
@pytest.mark.usefixtures("environment_of_make")
@pytest.mark.parametrize("target", sorted(used_targets() - RUNS_THIS_TEST - {"dist", "install"}))
def test_a_target_that_a_workflow_uses_runs(target: str) -> None:
    make(target)


@pytest.mark.slow
@pytest.mark.usefixtures("environment_of_make")
def test_what_make_dist_builds_make_install_installs(tmp_path: Path) -> None:
    """Without an index: what the wheel needs is taken from this environment, which has the pinned versions."""
    make("cross", "dist")
    names = {path.name for path in (ROOT / "dist").iterdir()}
    assert {"sbom.json", "SHA256SUMS"} <= names
    assert len([name for name in names if name.endswith(".whl")]) == 3
    venv.create(tmp_path / "own", with_pip=True)
    packages = next((tmp_path / "own" / "lib").glob("python*/site-packages"))
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    make("install", f"PREFIX={tmp_path / 'own'}", "TORCH_FROM=--no-index")
    code = "import vantage; print(vantage.__file__)"
    run = [str(tmp_path / "own" / "bin" / "python"), "-c", code]
    assert str(packages) in subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    subprocess.run([str(tmp_path / "own" / "bin" / "vantage"), "--version"], cwd=tmp_path, check=True)


@pytest.mark.parametrize("target", sorted(RUNS_THIS_TEST))
def test_the_targets_that_run_this_test_run_the_checks_the_page_and_the_tests(target: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, env={**os.environ, "MAKEFLAGS": ""}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for command in ("ruff check", "basedpyright", "lint-imports", "--silent test", "pytest"):
        assert command in done.stdout
    assert ("-m tests.mutation" in done.stdout) == (target == "test-all")
    assert ('-m "not slow"' in done.stdout) == (target == "test")


def test_dependabot_looks_where_versions_are() -> None:
    updates = read(GITHUB / "dependabot.yml")["updates"]
    kinds = {update["package-ecosystem"] for update in updates}
    assert kinds == {"pip", "npm", "github-actions", "docker"}
    folders = {folder for update in updates for folder in update.get("directories", [update.get("directory")])}
    for folder in folders:
        assert (ROOT / folder.lstrip("/")).is_dir()
    tracked = subprocess.run(["git", "ls-files", "*.txt"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pinned = [name for name in tracked.split() if re.search(r"^[\w-]+==\d", (ROOT / name).read_text(), re.MULTILINE)]
    assert len(pinned) > 3
    assert {f"/{posixpath.dirname(name)}" for name in pinned} <= folders


def test_templates_and_policies_are_there() -> None:
    for template in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml"):
        content = read(template)
        assert template.stem == "config" or {"name", "description", "body"} <= content.keys()
    citation = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors", "version"} <= citation.keys()
    assert "docs/security.md" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")
