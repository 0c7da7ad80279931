"""The files of a release, in ``dist/``: ``python tools/dist.py`` (`make dist` builds first what they carry).

A source archive, a wheel for every machine, and one each for Linux on x86-64 and on aarch64 with the kernels built
ahead. All wheels carry the studio's page. Beside them a bill of materials (``tools/sbom.py``) and ``SHA256SUMS``.
What should be in a file and is not is an error.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PAGE = "vantage/serve/studio/page/index.html"
TYPES = ("vantage/py.typed", "vantage/__init__.pyi")
MACHINES = ("x86_64", "aarch64")


class DistError(Exception):
    """A release that would not be whole. The message says what to do."""


def kernels(machine: str) -> list[str]:
    """The libraries that a wheel for this machine carries, by their paths in it."""
    from vantage.kernels.native.built_ahead import TARGETS, library_path

    paths = [library_path(name) for name, target in TARGETS.items() if target.machine == machine]
    return [str(path.relative_to(ROOT)) for path in paths]


def check_inputs(machines: tuple[str, ...]) -> None:
    if not (ROOT / PAGE).is_file():
        raise DistError("the studio's page is not built: run `make web`")
    for path in (path for machine in machines for path in kernels(machine)):
        if not (ROOT / path).is_file():
            raise DistError(f"{path} is not built from these sources: run `make cross kernels`")


def check_wheel(wheel: Path, machine: str) -> None:
    """It has what it should have, and no kernel of other sources or of another machine."""
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = set(kernels(machine))
    if missing := sorted(({PAGE, *TYPES} | wanted) - names):
        raise DistError(f"{wheel.name} lacks {', '.join(missing)}")
    libraries = {name for name in names if name.endswith(".so")}
    if more := sorted(libraries - wanted):
        raise DistError(f"{wheel.name} carries {', '.join(more)}, which is not for it: remove that file")


def build(folder: Path, target: str, machine: str = "none") -> Path:
    """One file, by hatchling, without a network."""
    environment = {**os.environ, "VANTAGE_WHEEL": machine}
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    before = set(folder.glob("*"))
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DistError(f"hatchling could not build the {target}:\n{done.stdout}{done.stderr}")
    (path,) = set(folder.glob("*")) - before
    return path


def build_wheel(folder: Path, machine: str) -> Path:
    wheel = build(folder, "wheel", machine)
    check_wheel(wheel, machine)
    return wheel


def main() -> int:
    sys.path.insert(0, str(ROOT))
    try:
        check_inputs(MACHINES)
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        files = [build(DIST, "sdist"), *(build_wheel(DIST, machine) for machine in ("none", *MACHINES))]
    except DistError as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    bill = DIST / "sbom.json"
    subprocess.run([sys.executable, str(ROOT / "tools" / "sbom.py"), "--out", str(bill)], check=True)
    files.append(bill)
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    (DIST / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    for file in files:
        print(f"{file.relative_to(ROOT)}  {file.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
