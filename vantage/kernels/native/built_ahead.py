"""The native kernels built ahead, for machines without a compiler.

    python -m vantage.kernels.native.built_ahead            all targets whose compiler is here
    python -m vantage.kernels.native.built_ahead x86_64-avx2

The libraries lie in ``built/`` beside this file, where a wheel carries them. They are for Linux with glibc 2.28 or
later, and need no symbol newer than that. Their names carry a digest of the sources: what was built from others is
never loaded.
"""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from vantage.errors import BadInput
from vantage.kernels.native.build import (
    HERE,
    MATRIX_UNITS,
    WITH_MATRIX_UNITS,
    compile_to,
    matrix_units_wanted,
    source_digest,
)

FOLDER = HERE / "built"
AVX2 = frozenset(["avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"])
AVX512 = AVX2 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
VNNI = AVX512 | frozenset(["avx512_vnni"])
DOT = frozenset(["asimddp"])


class KernelTarget(NamedTuple):
    """A kind of processor."""

    machine: str  # as platform.machine() calls it
    compiler: str
    flags: tuple[str, ...]
    features: frozenset[str] = frozenset()  # that the processor must have

    @property
    def has_matrix_unit(self) -> bool:
        return set(WITH_MATRIX_UNITS) <= set(self.flags)


TARGETS = {  # the best first
    "x86_64-amx": KernelTarget(
        "x86_64",
        "g++",
        ("-march=x86-64-v4", "-mavx512vnni", "-mamx-tile", "-mamx-int8", *WITH_MATRIX_UNITS),
        VNNI | MATRIX_UNITS["AMX"],
    ),
    "x86_64-avx512-vnni": KernelTarget("x86_64", "g++", ("-march=x86-64-v4", "-mavx512vnni"), VNNI),
    "x86_64-avx512": KernelTarget("x86_64", "g++", ("-march=x86-64-v4",), AVX512),
    "x86_64-avx2": KernelTarget("x86_64", "g++", ("-march=x86-64-v3",), AVX2),
    "x86_64-plain": KernelTarget("x86_64", "g++", ("-march=x86-64",)),
    "aarch64-neon-i8mm": KernelTarget(
        "aarch64",
        "aarch64-linux-gnu-g++",
        ("-march=armv8.2-a+dotprod+i8mm", *WITH_MATRIX_UNITS),
        DOT | MATRIX_UNITS["i8mm"],
    ),
    "aarch64-neon-dot": KernelTarget("aarch64", "aarch64-linux-gnu-g++", ("-march=armv8.2-a+dotprod",), DOT),
    "aarch64-neon": KernelTarget("aarch64", "aarch64-linux-gnu-g++", ("-march=armv8-a",)),
}


def compiler_of(target: KernelTarget) -> str | None:
    """The machine's own where it is that machine, otherwise one for it."""
    names = [target.compiler, "g++"] if platform.machine() == target.machine else [f"{target.machine}-linux-gnu-g++"]
    return next((path for name in names if (path := shutil.which(name))), None)


def library_path(name: str) -> Path:
    return FOLDER / f"{name}-{source_digest()[:12]}.so"


def build(name: str) -> Path | None:
    """Build one target in the place of an older one; ``None``: there is no compiler for it here."""
    target = TARGETS[name]
    if (compiler := compiler_of(target)) is None:
        return None
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = library_path(name)
    if not path.exists():
        compile_to(path, (compiler,), target.flags)
    for older in FOLDER.glob(f"{name}-{'?' * 12}.so"):
        if older != path:
            older.unlink()
    return path


def find_library(features: frozenset[str]) -> Path | None:
    """The best that was built for a processor of this machine with these features."""
    if sys.platform != "linux":
        return None
    here = [name for name, target in TARGETS.items() if target.machine == platform.machine()]
    wanted = [name for name in here if matrix_units_wanted() or not TARGETS[name].has_matrix_unit]
    fitting = [library_path(name) for name in wanted if TARGETS[name].features <= features]
    return next((path for path in fitting if path.exists()), None)


def main(names: list[str]) -> int:
    if unknown := sorted(set(names) - TARGETS.keys()):
        raise BadInput(f"{unknown[0]!r} is no target: there are {', '.join(TARGETS)}")
    for name in names or TARGETS:
        path = build(name)
        what = "no compiler for it here" if path is None else f"{path} ({path.stat().st_size >> 10} KiB)"
        sys.stdout.write(f"{name}: {what}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
