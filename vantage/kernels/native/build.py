"""Compiles the native kernels on first use and keeps the result.

They are plain C++ without torch's headers: a few seconds once for each machine and version. The library is
built for the processor it runs on, so its name carries what the processor can do.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from vantage.files import replacing

HERE = Path(__file__).parent
SOURCES = ("native.cpp", "attend.h", "linear.h", "threads.h", "top.h", "vectors.h")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC", "-pthread")
VERSION = 1  # what vantage_version() answers


class CannotBuild(Exception):
    """Why there is no native library here."""


def load() -> ctypes.CDLL:
    """The library, compiled if need be. Raises ``CannotBuild``."""
    if os.environ.get("VANTAGE_NATIVE") == "0":
        raise CannotBuild("VANTAGE_NATIVE=0 turns the native kernels off")
    if os.name != "posix":
        raise CannotBuild("the native kernels are written for Linux and macOS")
    compiler = find_compiler()
    home = Path(os.environ.get("VANTAGE_HOME") or Path.home() / ".cache" / "vantage") / "native"
    path = home / f"{_name(compiler)}.so"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _alone(home / "lock"):
            if not path.exists():
                compile_to(path, compiler)
        return _open(path)
    except OSError as error:
        raise CannotBuild(f"the native kernels could not be kept in {home} ({error})") from error


def find_compiler() -> tuple[str, ...]:
    """$CXX, g++, clang++ or c++."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (path := shutil.which(name)):
            return (path,)
    raise CannotBuild("no C++ compiler was found (install g++ or clang++, or say CXX=)")


def compile_to(path: Path, compiler: tuple[str, ...]) -> None:
    """Whoever looks finds a whole library or none."""
    sys.stderr.write("vantage: compiling the native CPU kernels, once for this machine ...\n")
    with replacing(path) as part:
        command = [*compiler, *FLAGS, "-o", str(part), str(HERE / SOURCES[0])]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired as error:
            raise CannotBuild(f"{compiler[-1]} took over {error.timeout:.0f} s for the native kernels") from error
        if result.returncode:
            last = (result.stderr.strip() or "no message").splitlines()[-1]
            raise CannotBuild(f"{compiler[-1]} could not compile the native kernels ({last})")


def _open(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    if library.vantage_version() != VERSION:
        raise CannotBuild(f"{path} is of another version: remove it")
    return library


def _name(compiler: tuple[str, ...]) -> str:
    """A hash of all that decides what comes out."""
    digest = hashlib.sha256(" ".join((*compiler, *FLAGS, platform.machine(), _processor())).encode())
    for source in SOURCES:
        digest.update((HERE / source).read_bytes())
    return f"native-{digest.hexdigest()[:20]}"


def _processor() -> str:
    """What this processor can do, in the kernel's words."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return platform.processor()


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process compiles, the others wait for it."""
    import fcntl

    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
