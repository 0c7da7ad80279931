"""Libraries built ahead: which one a processor gets, and that older systems can load them."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vantage.errors import BadInput
from vantage.kernels.native import built_ahead
from vantage.kernels.native.built_ahead import (
    AVX2,
    AVX512,
    TARGETS,
    build,
    compiler_of,
    find_library,
    library_path,
    main,
)

# The newest that a system with glibc 2.28 has: that of GCC 8.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are built ahead for Linux")
@pytest.mark.parametrize(
    ("machine", "features", "name"),
    [
        ("x86_64", AVX512 | {"avx512_vnni", "sse2"}, "x86_64-avx512-vnni"),
        ("x86_64", AVX512, "x86_64-avx512"),
        ("x86_64", AVX512 - {"avx512bw"}, "x86_64-avx2"),
        ("x86_64", AVX2, "x86_64-avx2"),
        ("x86_64", AVX2 - {"f16c"}, "x86_64-plain"),
        ("x86_64", frozenset[str](), "x86_64-plain"),
        ("aarch64", frozenset(["asimd"]), "aarch64-neon"),
        ("riscv64", frozenset[str](), None),
    ],
)
def test_a_processor_gets_the_best_it_can_run(machine, features, name, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(built_ahead, "FOLDER", tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert find_library(features) is None  # nothing was built
    for target in TARGETS:
        library_path(target).touch()
    assert find_library(features) == (None if name is None else library_path(name))


def test_a_target_that_there_is_not_is_named():
    with pytest.raises(BadInput, match=r"'sparc' is no target: there are x86_64-avx512-vnni, "):
        main(["sparc"])


def versions(library: Path) -> dict[str, tuple[int, ...]]:
    """The newest version of each kind of symbol that the library needs."""
    shown = subprocess.run(["objdump", "-T", str(library)], capture_output=True, text=True, check=True).stdout
    newest: dict[str, tuple[int, ...]] = {}
    for kind, numbers in re.findall(r"\*UND\*.*?\(?([A-Z]+)_([0-9.]+)\)?", shown):
        version = tuple(map(int, numbers.split(".")))
        newest[kind] = max(newest.get(kind, ()), version)
    return newest


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump here")
@pytest.mark.parametrize("name", TARGETS)
def test_older_systems_can_load_them(name: str, tmp_path: Path, monkeypatch):
    if compiler_of(TARGETS[name]) is None:
        pytest.skip("no compiler for it here (make cross installs one on Debian)")
    monkeypatch.setattr(built_ahead, "FOLDER", tmp_path)
    older = tmp_path / f"{name}-{'0' * 12}.so"
    older.touch()
    path = build(name)
    assert path is not None
    assert sorted(tmp_path.iterdir()) == [path]  # in the place of the older one
    needed = versions(path)
    assert needed.keys() >= {"GLIBC", "GLIBCXX"}
    for kind, version in needed.items():
        assert version <= NEWEST[kind], (kind, version)
