"""A wheel on a machine without compiler, Node and network does what it should: a chroot in a network of its own."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.processes import ROOT
from tests.release.test_dist import INSTALLED_MEGABYTES, WHEEL_MEGABYTES
from tools import dist, sbom
from vantage.checkpoints.pull import place

PATIENCE = 1800.0
UNSHARE = ["unshare", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--kill-child"]
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")


def can_unshare() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_unshare(), reason="this system gives no namespaces: no chroot can be made"),
    pytest.mark.skipif(platform.machine() not in dist.MACHINES, reason="there are no kernels built ahead for it"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one for this machine."""
    try:
        dist.check_inputs((platform.machine(),))
    except dist.DistError as error:
        pytest.skip(str(error))
    return dist.build_wheel(tmp_path_factory.mktemp("wheel"), platform.machine())


def test_its_sizes_are_those_that_are_stated(wheel: Path) -> None:
    assert wheel.stat().st_size < WHEEL_MEGABYTES * 1e6
    assert sum(one.file_size for one in zipfile.ZipFile(wheel).infolist()) < INSTALLED_MEGABYTES * 1e6
    assert "manylinux_2_28" in wheel.name


def mount_lines(root: Path) -> list[str]:
    """What the shell does in the new namespace: the system's libraries and Python, read-only, and no programs."""
    python = Path(sys.executable).resolve()
    folders = [Path(name) for name in LIBRARIES if Path(name).is_dir()]
    folders += [Path(path) for path in (sysconfig.get_path("stdlib"), sysconfig.get_config_var("LIBDIR")) if path]
    lines: list[str] = []
    for folder in dict.fromkeys(folders):
        inside = root / folder.relative_to("/")
        if folder.is_symlink():
            inside.symlink_to(folder.readlink())
        elif not inside.exists() and not any(other in folder.parents for other in folders):
            inside.mkdir(parents=True)
            lines += [f"mount --rbind {folder} {inside}", f"mount -o remount,ro,bind {inside}"]
    inside = root / python.relative_to("/")
    inside.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(python, inside)
    (root / "dev" / "shm").mkdir(parents=True)  # for the semaphores of Python's processes
    lines.append(f"mount -t tmpfs tmpfs {root}/dev/shm")
    for name in ("null", "urandom"):
        (root / "dev" / name).touch()
        lines.append(f"mount --bind /dev/{name} {root}/dev/{name}")
    (root / "proc").mkdir()
    return [*lines, f"mount -t proc proc {root}/proc"]


def dependencies(root: Path) -> list[str]:
    """Only what the wheel declares, with its extra `serve`, out of this environment; and pip, which installs it."""
    declared = sbom.project()
    wanted = [*declared["dependencies"], *declared["optional-dependencies"]["serve"], "pip"]
    (root / "deps").mkdir()
    (root / "all").mkdir()
    for distribution in sbom.closure(wanted).values():
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (root / "deps" / name).is_symlink():
                (root / "deps" / name).symlink_to(f"/all/{name}")
    return [f"mount --rbind {sysconfig.get_path('purelib')} {root}/all", f"mount -o remount,ro,bind {root}/all"]


def test_it_works_without_compiler_node_and_network(wheel: Path, tmp_path: Path) -> None:
    model = place("smollm2")
    if not model.is_dir():
        pytest.skip("smollm2 is not on this machine: `vantage pull smollm2`")
    root = tmp_path / "root"
    for name in ("tmp", "home", "models", "wheels"):
        (root / name).mkdir(parents=True)
    shutil.copy(wheel, root / "wheels")
    shutil.copy(ROOT / "tests" / "release" / "inside.py", root / "inside.py")
    lines = [*mount_lines(root), *dependencies(root), f"mount --bind {model} {root}/models"]
    python = Path(sys.executable).resolve()
    script = "\n".join(["set -e", *lines, f"exec chroot {root} {python} -I /inside.py"])
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", script],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report == dict.fromkeys(("chat", "compare", "native", "serve", "studio", "study"), True)
