"""What `make dist` makes, how large it is, what a base install brings, and what a release refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import torch

from tests.processes import ROOT
from tools import dist, release, sbom

WHEEL_MEGABYTES = 5.0  # what docs/install.md says of the largest wheel
INSTALLED_MEGABYTES = 11.0  # and of what it unpacks to
# The base install without torch and what torch brings, which everybody here has.
BASE = {
    *("anyio", "certifi", "charset-normalizer", "click", "filelock", "fsspec", "gguf", "h11", "hf-xet", "httpcore2"),
    *("httpx2", "huggingface-hub", "idna", "jinja2", "llguidance", "markdown-it-py", "markupsafe", "mdurl", "numpy"),
    *("packaging", "pygments", "pyyaml", "requests", "rich", "safetensors", "tokenizers", "tqdm", "truststore"),
    *("typing-extensions", "urllib3"),
}
LIGHT = "import sys, vantage; print(len(sys.modules), *(n for n in ('torch', 'numpy', 'rich') if n in sys.modules))"


def test_the_base_install_brings_what_it_says_and_no_extra() -> None:
    declared = sbom.project()
    base = set(sbom.closure(declared["dependencies"]))
    torch = set(sbom.closure(["torch"])) - BASE
    assert base - torch - {"exceptiongroup", "hf-transfer"} <= BASE, sorted(base - torch - BASE)
    for extra in ("fastapi", "uvicorn", "matplotlib", "ray", "transformers", "triton-nightly"):
        assert extra not in base


def test_importing_vantage_imports_neither_torch_nor_numpy() -> None:
    """So it takes no longer than Python's own start; nothing is timed here."""
    done = subprocess.run([sys.executable, "-c", LIGHT], cwd=ROOT, capture_output=True, text=True, check=True)
    count, *heavy = done.stdout.split()
    assert heavy == []
    assert int(count) < 120


def test_the_version_is_semantic_and_the_same_everywhere() -> None:
    version = sbom.version()
    assert re.fullmatch(release.SEMANTIC, version)
    assert f'version: "{version}"' in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_sizes_are_those_of_the_page() -> None:
    page = install_page()
    assert f"under {WHEEL_MEGABYTES:.0f} MB" in page
    assert f"under {INSTALLED_MEGABYTES:.0f} MB" in page


def install_page() -> str:
    return " ".join((ROOT / "docs" / "install.md").read_text(encoding="utf-8").split())


def megabytes(distribution: metadata.Distribution) -> float:
    files = [Path(str(file.locate())) for file in distribution.files or () if file.suffix != ".pyc"]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


@pytest.mark.skipif(sys.platform != "linux" or torch.version.cuda is not None, reason="the page has a CPU's on Linux")
def test_a_base_install_is_as_large_as_the_page_says() -> None:
    stated = re.search(r"torch \((\d+) MB for a CPU.*?the base install adds (\d+) MB", install_page())
    assert stated is not None
    sizes = {name: megabytes(one) for name, one in sbom.closure(sbom.project()["dependencies"]).items()}
    assert sizes.pop("torch") == pytest.approx(float(stated[1]), rel=0.05)
    assert sum(sizes.values()) == pytest.approx(float(stated[2]), rel=0.05)


def test_the_page_has_every_extra() -> None:
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = "".join(re.findall(r"^\| (`.*?`) \|", text.partition("| extra |")[2].partition("## ")[0], re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", rows)) == sbom.project()["optional-dependencies"].keys() - set(sbom.INTERNAL)


def test_a_bill_of_materials_names_everything_with_its_version() -> None:
    bill = sbom.bill()
    components = {one["name"]: one for one in bill["components"]}
    assert bill["bomFormat"] == "CycloneDX"
    assert components["torch"]["version"] == metadata.version("torch")
    assert components["preact"]["purl"].startswith("pkg:npm/preact@")
    assert components["safetensors"]["properties"][0]["value"] == "base"
    assert "serve" in components["fastapi"]["properties"][0]["value"]
    refs = [one["bom-ref"] for one in bill["components"]]
    assert len(set(refs)) == len(refs)
    assert not {"pytest", "ruff", "vite"} & components.keys()  # for those who work on Vantage
    assert json.dumps(bill) == json.dumps(sbom.bill())


def empty_wheel(folder: Path, *names: str) -> Path:
    path = folder / "vantage-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name in names:
            wheel.writestr(name, "")
    return path


def test_a_wheel_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    whole = (dist.PAGE, *dist.TYPES)
    dist.check_wheel(empty_wheel(tmp_path, *whole), "none")
    dist.check_wheel(empty_wheel(tmp_path, *whole, *dist.kernels("x86_64")), "x86_64")
    with pytest.raises(dist.DistError, match=r"lacks vantage/__init__\.pyi, vantage/py\.typed"):
        dist.check_wheel(empty_wheel(tmp_path, dist.PAGE), "none")
    with pytest.raises(dist.DistError, match="lacks vantage/kernels/native/built/aarch64-neon"):
        dist.check_wheel(empty_wheel(tmp_path, *whole), "aarch64")
    older = "vantage/kernels/native/built/x86_64-plain-000000000000.so"
    with pytest.raises(dist.DistError, match="which is not for it"):
        dist.check_wheel(empty_wheel(tmp_path, *whole, older), "none")


# ---- a release


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with all that a release looks at, whose tests pass."""
    (tmp_path / "vantage").mkdir()
    (tmp_path / "vantage" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [1.2.3] - 2026-11-16\n")
    (tmp_path / "Makefile").write_text("test-all:\n\ttrue\ndist:\n\ttrue\n")
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *args: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, *args], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "x")


def test_a_release_is_tagged(tree: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "A")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.org")
    assert release.main(["--root", str(tree)]) == 0
    assert release.git(tree, "tag", "--list") == "v1.2.3"
    assert release.main(["--root", str(tree)]) == 1
    assert "was released before" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("file", "text", "committed", "reason"),
    [
        ("new.txt", "x", False, "the tree has changes"),
        ("CHANGELOG.md", "## [Unreleased]\n", False, "the tree has changes"),
        ("CHANGELOG.md", "## [Unreleased]\n", True, "CHANGELOG.md has no heading"),
        ("vantage/__init__.py", '__version__ = "1.2"\n', True, "no semantic version"),
        ("Makefile", "test-all:\n\tfalse\ndist:\n\ttrue\n", True, "`make test-all` failed"),
        ("Makefile", "test-all:\n\ttouch left\ndist:\n\ttrue\n", True, "the tree has changes"),
        ("Makefile", "test-all:\n\ttrue\ndist:\n\tfalse\n", True, "`make dist` failed"),
    ],
)
def test_a_release_is_refused(
    tree: Path, file: str, text: str, committed: bool, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tree / file).write_text(text)
    if committed:
        commit(tree)
    assert release.main(["--root", str(tree)]) == 1
    assert reason in capfd.readouterr().err
    assert release.git(tree, "tag", "--list") == ""
