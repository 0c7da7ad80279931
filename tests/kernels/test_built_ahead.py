"""Libraries built ahead: which one a processor gets, and that older systems can load them."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels.test_native import KINDS, backend, inputs_of, packed
from tests.kernels.test_processors import MINGW
from vantage.errors import BadInput
from vantage.kernels.native import MatrixUnit, Native, built_ahead, native
from vantage.kernels.native.build import HERE as SOURCES
from vantage.kernels.native.build import MATRIX_UNITS, WINDOWS, compile_to, processor_features
from vantage.kernels.native.built_ahead import (
    AVX2,
    AVX512,
    DOT,
    TARGETS,
    VNNI,
    build,
    compiler_of,
    find_library,
    library_path,
    main,
)

# What only this target has.
INSTRUCTIONS = {"x86_64-amx": "tdpbssd", "aarch64-neon-i8mm": "smmla"}
# The newest that a system with glibc 2.28 has: that of GCC 8.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are built ahead for Linux")
@pytest.mark.parametrize(
    ("machine", "features", "name", "units"),
    [
        ("x86_64", VNNI | MATRIX_UNITS["AMX"], "x86_64-amx", None),
        ("x86_64", VNNI | MATRIX_UNITS["AMX"], "x86_64-avx512-vnni", "0"),
        ("x86_64", VNNI | {"sse2"}, "x86_64-avx512-vnni", "1"),
        ("x86_64", AVX512, "x86_64-avx512", None),
        ("x86_64", AVX512 - {"avx512bw"}, "x86_64-avx2", None),
        ("x86_64", AVX2, "x86_64-avx2", None),
        ("x86_64", AVX2 - {"f16c"}, "x86_64-plain", None),
        ("x86_64", frozenset[str](), "x86_64-plain", None),
        ("aarch64", frozenset(["asimd"]), "aarch64-neon", None),
        ("aarch64", DOT | MATRIX_UNITS["i8mm"], "aarch64-neon-i8mm", "1"),
        ("aarch64", DOT | MATRIX_UNITS["i8mm"], "aarch64-neon-dot", None),
        ("riscv64", frozenset[str](), None, None),
    ],
)
def test_a_processor_gets_the_best_it_can_run(machine, features, name, units, tmp_path: Path, monkeypatch):
    if units is None:
        monkeypatch.delenv("VANTAGE_MATRIX_UNITS", raising=False)
    else:
        monkeypatch.setenv("VANTAGE_MATRIX_UNITS", units)
    monkeypatch.setattr(built_ahead, "FOLDER", tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert find_library(features) is None  # nothing was built
    for target in TARGETS:
        library_path(target).touch()
    assert find_library(features) == (None if name is None else library_path(name))


def test_a_target_that_there_is_not_is_named():
    with pytest.raises(BadInput, match=r"'sparc' is no target: there are x86_64-amx, "):
        main(["sparc"])


@pytest.fixture(scope="module")
def built_once(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("built")


@pytest.fixture
def folder(built_once: Path, monkeypatch) -> Path:
    """Where libraries are built, each once for all tests."""
    monkeypatch.setattr(built_ahead, "FOLDER", built_once)
    return built_once


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
def test_older_systems_can_load_them(name: str, folder: Path):
    if (compiler := compiler_of(TARGETS[name])) is None:
        pytest.skip("no compiler for it here (make cross installs one on Debian)")
    older = folder / f"{name}-{'0' * 12}.so"
    older.touch()
    path = build(name)
    assert path is not None
    assert sorted(folder.glob(f"{name}-{'?' * 12}.so")) == [path]  # in the place of the older one
    needed = versions(path)
    assert needed.keys() >= {"GLIBC", "GLIBCXX"}
    for kind, version in needed.items():
        assert version <= NEWEST[kind], (kind, version)
    code = disassembled(path, compiler)
    assert [target for target, instruction in INSTRUCTIONS.items() if instruction in code] == (
        [name] if name in INSTRUCTIONS else []
    )


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which(MINGW) is None, reason="no compiler for Windows here (make cross installs one on Debian)"
)
@pytest.mark.parametrize("name", ["x86_64-avx512-vnni", "x86_64-avx2", "x86_64-plain"])
def test_windows_gets_a_library_that_needs_nothing_else(name: str, tmp_path: Path):
    path = tmp_path / "native.dll"
    compile_to(path, (MINGW,), (*TARGETS[name].flags, *WINDOWS))
    tool = MINGW.replace("g++-posix", "objdump")
    shown = subprocess.run([tool, "-p", str(path)], capture_output=True, text=True, check=True).stdout
    functions = set(re.findall(r"^\w[\w ]*[ *](vantage_\w+)\(", (SOURCES / "native.cpp").read_text(), re.MULTILINE))
    assert len(functions) > 10
    assert functions <= set(re.findall(r"\b(vantage_\w+)$", shown, re.MULTILINE))
    assert set(re.findall(r"DLL Name: (\S+)", shown)) <= {"KERNEL32.dll", "msvcrt.dll"}  # which every Windows has


def disassembled(library: Path, compiler: str) -> str:
    tool = shutil.which(compiler.removesuffix("g++") + "objdump") or "objdump"
    return subprocess.run([tool, "-d", str(library)], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(not processor_features() >= VNNI, reason="the rest of that library needs AVX-512 with VNNI")
def test_tiles_have_the_bits_of_dot_products_that_run_where_the_system_lends_none(folder: Path):
    path = build("x86_64-amx")
    if path is None or backend is None:
        pytest.skip("no compiler here")
    tiles = Native(ctypes.CDLL(str(path)))
    dots_path = build("x86_64-avx512-vnni")
    assert dots_path is not None
    dots = Native(ctypes.CDLL(str(dots_path)))
    has_tiles = processor_features() >= MATRIX_UNITS["AMX"]
    assert tiles.matrix_unit == (MatrixUnit.AMX if has_tiles else MatrixUnit.NONE)
    assert dots.matrix_unit is MatrixUnit.NONE
    for kind in KINDS:
        inputs = inputs_of(kind, 2)
        weight, x = packed(kind, 70, inputs), torch.randn(47, inputs)
        exact, fast = (tiles.linear(weight.matrix(), x, fast=fast) for fast in (False, True))
        assert torch.equal(exact, dots.linear(weight.matrix(), x))
        assert torch.equal(fast, dots.linear(weight.matrix(), x, fast=True))
        if kind == "Q4_K":
            assert not torch.equal(fast, exact)


@pytest.mark.slow
def test_a_matrix_unit_that_there_is_not_is_told(monkeypatch):
    monkeypatch.setenv("VANTAGE_MATRIX_UNITS", "1")
    if backend is None:
        pytest.skip("no compiler here")
    if any(processor_features() >= needed for needed in MATRIX_UNITS.values()):
        pytest.skip("this processor has one")
    with pytest.warns(UserWarning, match="neither i8mm nor AMX .*; dot products run in their place"):
        compiled = native.__wrapped__()
    assert compiled is not None
    weight, x = packed("Q4_1", 70, 64), torch.randn(47, 64)
    assert torch.equal(compiled.linear(weight.matrix(), x, fast=True), backend.linear(weight.matrix(), x, fast=True))
