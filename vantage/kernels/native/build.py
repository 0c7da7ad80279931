"""Compiles the native kernels on first use and keeps the result.

They are plain C++ without torch's headers: half a minute of processor time, once for each machine and
version. The library is built for the processor it runs on, so its name carries what the processor can do. Where there
is no compiler, one that was built ahead is taken (built_ahead.py).
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
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vantage.files import replacing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

HERE = Path(__file__).parent
HEADERS = (
    "amx.h",
    "attend.h",
    "bytes.h",
    "choose.h",
    "formats.h",
    "linear.h",
    "matrix_units.h",
    "repack.h",
    "repacking.h",
    "scores.h",
    "sixteen.h",
    "team_size.h",
    "threads.h",
    "tiles.h",
    "top.h",
    "vectors.h",
)
# What is compiled apart, at the same time: a file, and what tells its parts apart.
UNITS = (("native.cpp", ()), *(("format.cpp", (f"-DVANTAGE_PART={i}",)) for i in (1, 2, 3, 4)))
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=off", "-fPIC", "-pthread", "-fno-semantic-interposition")
THIS_PROCESSOR = ("-march=native",)  # for the processor that compiles
# GCC for Windows lets vectors of 32 bytes lie on a stack that is aligned to 16 (its bug 54412), so no move may need
# more. Its own libraries are linked in.
WINDOWS = ("-static", "-Wa,-muse-unaligned-vector-move")
VERSION = 7  # what vantage_version() answers
# Matrix units of processors, in Linux's words.
MATRIX_UNITS = {"AMX": frozenset(["amx_tile", "amx_int8"]), "i8mm": frozenset(["i8mm"])}
EMULATED = ("aarch64", "arm64")  # machines on whose processors the kernels have not run
WITH_MATRIX_UNITS = ("-DVANTAGE_MATRIX_UNITS",)


class CannotBuild(Exception):
    """Why there is no native library here."""


def enabled() -> bool:
    """Whether whole steps are wanted at all."""
    return os.environ.get("VANTAGE_NATIVE") != "0"


def matrix_units_wanted() -> bool:
    """AMX is used unless it is turned off; i8mm has run under an emulator only, so somebody has to ask for it."""
    setting = os.environ.get("VANTAGE_MATRIX_UNITS")
    return setting == "1" or (setting != "0" and platform.machine() not in EMULATED)


def unused_matrix_units(features: frozenset[str]) -> dict[str, str]:
    """Those that a processor with these features has and the kernels leave alone: why, by name."""
    if matrix_units_wanted():
        return {}
    why = {
        "AMX": "VANTAGE_MATRIX_UNITS=0 turns it off",
        "i8mm": "off, as it ran in an emulator only: VANTAGE_MATRIX_UNITS=1 turns it on, for prompts with fast=True",
    }
    return {name: why[name] for name, needed in MATRIX_UNITS.items() if needed <= features}


def load() -> ctypes.CDLL:
    """The library, compiled if need be, or built ahead. Raises ``CannotBuild``."""
    if not enabled():
        raise CannotBuild("VANTAGE_NATIVE=0 turns the native kernels off")
    if os.environ.get("VANTAGE_NATIVE") != "1":
        if os.name != "posix":
            raise CannotBuild(
                "the native kernels for Windows have run under Wine only, without Python: VANTAGE_NATIVE=1 turns them "
                "on, compiled by g++ of MinGW-w64"
            )
        if platform.machine() in EMULATED:
            raise CannotBuild("the native kernels for ARM have run in an emulator only: VANTAGE_NATIVE=1 turns them on")
    try:
        return _compiled()
    except CannotBuild:
        from vantage.kernels.native.built_ahead import find_library  # which needs this module

        if (ahead := find_library(processor_features())) is None:
            raise
        return _open(ahead)


def _compiled() -> ctypes.CDLL:
    compiler = find_compiler()
    home = Path(os.environ.get("VANTAGE_HOME") or Path.home() / ".cache" / "vantage") / "native"
    path = home / f"{_name(compiler)}{'.so' if os.name == 'posix' else '.dll'}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _alone(home / "lock"):
            if not path.exists():
                sys.stderr.write("vantage: compiling the native CPU kernels, once for this machine ...\n")
                compile_to(path, compiler, _this_processor())
        return _open(path)
    except OSError as error:
        raise CannotBuild(f"the native kernels could not be kept in {home} ({error})") from error


def find_compiler() -> tuple[str, ...]:
    """$CXX, g++, clang++ or c++."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (path := shutil.which(name)):
            return (path,)
    raise CannotBuild("no C++ compiler was found (install g++ or clang++, or set CXX)")


def compile_to(path: Path, compiler: tuple[str, ...], machine: tuple[str, ...] = THIS_PROCESSOR) -> None:
    """Whoever looks finds a whole library or none."""
    with tempfile.TemporaryDirectory() as folder, replacing(path) as part:
        objects = [Path(folder) / f"{i}.o" for i in range(len(UNITS))]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            waiting = [
                pool.submit(_call, [*compiler, *FLAGS, *machine, *flags, "-c", "-o", str(out), str(HERE / source)])
                for (source, flags), out in zip(UNITS, objects, strict=True)
            ]
            for one in waiting:
                one.result()
        _call([*compiler, *machine, "-shared", "-pthread", "-o", str(part), *map(str, objects)])


def _call(command: list[str]) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except subprocess.TimeoutExpired as error:
        raise CannotBuild(f"{command[0]} took over {error.timeout:.0f} s for the native kernels") from error
    if result.returncode:
        last = (result.stderr.strip() or "no message").splitlines()[-1]
        raise CannotBuild(f"{command[0]} could not compile the native kernels ({last})")


def _open(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    if library.vantage_version() != VERSION:
        raise CannotBuild(f"{path} is of another version: remove it")
    return library


def _this_processor() -> tuple[str, ...]:
    system = () if os.name == "posix" else WINDOWS
    return (*THIS_PROCESSOR, *system, *(WITH_MATRIX_UNITS if matrix_units_wanted() else ()))


def _name(compiler: tuple[str, ...]) -> str:
    """A hash of all that decides what comes out."""
    what = " ".join((*compiler, *FLAGS, *_this_processor(), platform.machine(), _processor()))
    return f"native-{source_digest(what)[:20]}"


def source_digest(beside: str = "") -> str:
    """Of the sources, and of what else decides what comes out."""
    digest = hashlib.sha256(beside.encode())
    for source in ("native.cpp", "format.cpp", *HEADERS):
        digest.update((HERE / source).read_bytes())
    return digest.hexdigest()


def processor_features() -> frozenset[str]:
    """What this processor can do, in Linux's words."""
    return frozenset(_processor().partition(":")[2].split())


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return platform.processor()


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process compiles, the others wait for it; where files cannot be locked so, each compiles for itself."""
    with lock.open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
