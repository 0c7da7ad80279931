"""The native kernels elsewhere: NEON under an emulator, AVX-512 and AMX in plain code, Windows under Wine.

They are compiled as a program without Python (program.cpp), which answers one request for each run. What a processor
computes is compared with float64; bits are promised within one kind of processor, not across kinds.
"""

from __future__ import annotations

import functools
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from tests.kernels.test_native import KINDS, inputs_of, rounding, rows
from vantage.kernels import kernel_named
from vantage.kernels.mask_flags import mask_flags
from vantage.kernels.native import Format, Kept, MatrixUnit, native
from vantage.kernels.native.build import HERE as SOURCES
from vantage.kernels.native.build import UNITS, WINDOWS, processor_features
from vantage.kernels.native.built_ahead import AVX2, TARGETS, VNNI
from vantage.kernels.packed_layout import size
from vantage.kernels.tiles import bias_numbers, tile_places
from vantage.model.packed import Packed
from vantage.spec.forms import Slope, form_of
from vantage.spec.masks import Causal, Window
from vantage.spec.parts import Need, View
from vantage.spec.positions import Positions

HERE = Path(__file__).parent
PLAIN_AVX512 = (f"-I{HERE}", '-DVANTAGE_INTRINSICS="plain_avx512.h"')
PLAIN_AMX = (f"-I{HERE}", '-DVANTAGE_INTRINSICS="plain_amx.h"', "-DVANTAGE_VNNI", "-DVANTAGE_MATRIX_UNITS")
I8MM = ("-march=armv8.2-a+dotprod+i8mm", "-DVANTAGE_MATRIX_UNITS", "-static")
MINGW = "x86_64-w64-mingw32-g++-posix"
VNNI_FLAGS = TARGETS["x86_64-avx512-vnni"].flags
PRODUCT, ATTENTION, TOP, TILES, UNIT = range(5)


class Processor(NamedTuple):
    compiler: str
    flags: tuple[str, ...]
    emulator: tuple[str, ...] = ()  # which must be there as well
    unit: MatrixUnit = MatrixUnit.NONE
    needs: frozenset[str] = frozenset()  # of this processor, where nothing else runs the instructions

    def missing(self) -> str | None:
        absent = [tool for tool in (self.compiler, *self.emulator[:1]) if shutil.which(tool) is None]
        if not absent and f"-I{HERE}" in self.flags and not Path("/usr/include/simde").is_dir():
            absent = ["libsimde-dev"]
        if absent:
            return f"not here: {', '.join(absent)} (make cross installs it on Debian)"
        lacking = sorted(self.needs - processor_features())
        return f"this processor has no {', '.join(lacking)}" if lacking else None


PROCESSORS = {
    "neon": Processor("aarch64-linux-gnu-g++", ("-march=armv8-a", "-static"), ("qemu-aarch64",)),
    "neon-dot": Processor("aarch64-linux-gnu-g++", ("-march=armv8.2-a+dotprod", "-static"), ("qemu-aarch64",)),
    "neon-i8mm": Processor("aarch64-linux-gnu-g++", I8MM, ("qemu-aarch64", "-cpu", "max"), MatrixUnit.I8MM),
    "avx512": Processor("g++", PLAIN_AVX512),
    "avx512-vnni": Processor("g++", (*PLAIN_AVX512, "-DVANTAGE_VNNI")),
    "amx": Processor("g++", PLAIN_AMX, (), MatrixUnit.AMX),
    "plain": Processor("g++", ("-DVANTAGE_NO_VECTORS",)),
    "windows-plain": Processor(MINGW, ("-DVANTAGE_NO_VECTORS", *WINDOWS), ("wine",)),
    "windows-avx2": Processor(MINGW, ("-march=x86-64-v3", *WINDOWS), ("wine",), needs=AVX2),
    "windows-avx512-vnni": Processor(MINGW, (*VNNI_FLAGS, *WINDOWS), ("wine",), needs=VNNI),
}
# What has a matrix unit, and the same processor without it.
WITHOUT_UNIT = {"neon-i8mm": "neon-dot", "amx": "avx512-vnni"}
BYTE_KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


@pytest.fixture(scope="module", autouse=True)
def wine_folder(tmp_path_factory) -> Iterator[None]:
    """Wine keeps a Windows of its own in a folder, and says much on stderr. Its server stays between two programs: a
    new one starts the services of Windows, which takes seconds. The services are started here, since they would keep
    the pipes of the program that starts them, and who reads to their end would wait for ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINEPREFIX", str(tmp_path_factory.mktemp("wine")))
        patch.setenv("WINEDEBUG", "-all")
        server = shutil.which("wineserver")
        if server is None:
            yield
            return
        subprocess.run([server, "--persistent"], check=True, timeout=60)
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(["wine", "wineboot", "--init"], check=True, timeout=300, **quiet)
        yield
        subprocess.run([server, "--kill"], check=False, timeout=60)  # it may not have started


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Callable[[str], list[str]]:
    """The command that runs the kernels of a processor, by its name. Each is compiled once."""

    @functools.cache
    def command(name: str) -> list[str]:
        processor = PROCESSORS[name]
        if (missing := processor.missing()) is not None:
            pytest.skip(missing)
        if not processor.emulator and platform.machine() != "x86_64":
            pytest.skip("written for x86-64")
        return [*processor.emulator, str(compile_program(processor, tmp_path_factory.mktemp(name)))]

    return command


@pytest.fixture(params=list(PROCESSORS))
def program(request, programs: Callable[[str], list[str]]) -> list[str]:
    return programs(request.param)


def compile_program(processor: Processor, folder: Path) -> Path:
    common = (
        processor.compiler,
        "-O1",
        "-std=c++17",
        "-ffp-contract=off",
        "-pthread",
        f"-I{SOURCES}",
        *processor.flags,
    )
    units = [("program.cpp", ()), *((name, flags) for name, flags in UNITS if name != "native.cpp")]

    def compile_unit(unit: tuple[int, tuple[str, tuple[str, ...]]]) -> str:
        i, (name, flags) = unit
        source = HERE / name if name == "program.cpp" else SOURCES / name
        out = str(folder / f"{i}.o")
        subprocess.run([*common, *flags, "-c", "-o", out, str(source)], check=True, timeout=600)
        return out

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_unit, enumerate(units)))
    program = folder / "program.exe"  # Windows wants such a name
    subprocess.run([*common, "-o", str(program), *objects], check=True, timeout=600)
    return program


def ask(program: list[str], what: int, numbers: list[int], *tensors: Tensor, threads: int = 2) -> bytes:
    request = np.array([what, threads, *numbers], np.int32).tobytes() + b"".join(t.numpy().tobytes() for t in tensors)
    return subprocess.run(program, input=request, capture_output=True, check=True, timeout=300).stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_products(program: list[str], kind: str):
    outputs, inputs = 70, inputs_of(kind, 2)
    raw, format = rows(kind, outputs, inputs), Format[kind]
    dense = torch.from_numpy(dequantize(raw.numpy(), GGMLQuantizationType[kind]))
    packed_bytes = size(format, outputs, inputs)
    alone: Tensor | None = None
    for m in (33, 1, 2, 4, 7):
        x = torch.randn(33, inputs, generator=torch.Generator().manual_seed(1))[:m]
        answer = ask(program, PRODUCT, [int(format), outputs, inputs, m, packed_bytes, raw.numel(), 0], raw, x)
        y = torch.frombuffer(bytearray(answer[packed_bytes : packed_bytes + 4 * m * outputs]), dtype=torch.float32)
        y = y.view(m, outputs)
        unpacked = torch.frombuffer(bytearray(answer[packed_bytes + 4 * m * outputs :]), dtype=torch.float32)
        assert torch.equal(unpacked.view(outputs, inputs), dense)
        if native() is not None:  # the layout is the same on every processor
            here = Packed.of_blocks(raw, kind)
            assert here is not None
            assert here.data.numpy().tobytes() == answer[:packed_bytes]
        want = x.double() @ dense.double().T
        assert ((y - want).abs() <= 1e-5 * (1 + want.abs()) + rounding(x, dense)).all()
        if m == 33:  # with 8 bits, where the processor has such instructions
            answer = ask(program, PRODUCT, [int(format), outputs, inputs, m, packed_bytes, raw.numel(), 1], raw, x)
            product = bytearray(answer[packed_bytes : packed_bytes + 4 * m * outputs])
            off = (torch.frombuffer(product, dtype=torch.float32).view(m, outputs) - want).abs()
            assert (off <= 1e-5 * (1 + want.abs()) + rounding(x, dense) * 32767 / 127).all()
        if alone is None:
            alone = y
        assert torch.equal(y, alone[:m])  # a row's result is that of the row alone


def product(program: list[str], kind: str, m: int, inputs: int, *, fast: bool) -> bytes:
    outputs = 70  # a last panel that is not full
    raw, format = rows(kind, outputs, inputs), Format[kind]
    x = torch.randn(m, inputs, generator=torch.Generator().manual_seed(m))
    numbers = [int(format), outputs, inputs, m, size(format, outputs, inputs), raw.numel(), int(fast)]
    return ask(program, PRODUCT, numbers, raw, x)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_UNIT)
def test_matrix_units_have_the_bits_of_dot_products(programs, name: str):
    unit, dots = programs(name), programs(WITHOUT_UNIT[name])
    assert np.frombuffer(ask(unit, UNIT, []), np.int32).tolist() == [PROCESSORS[name].unit]
    assert np.frombuffer(ask(dots, UNIT, []), np.int32).tolist() == [MatrixUnit.NONE]
    for kind in KINDS:  # registers full of rows, and some rows more
        of = kind, 47, inputs_of(kind, 2)
        for fast in (False, True):
            assert product(unit, *of, fast=fast) == product(dots, *of, fast=fast)
        assert (product(unit, *of, fast=True) != product(unit, *of, fast=False)) == (kind in BYTE_KINDS)
    # rows for no register; for one; in two pieces; and a second panel, of few inputs
    for kind, m, inputs in (
        ("Q4_1", 13, 64),
        ("Q4_0", 16, 64),
        ("Q4_1", 98, 576),
        ("Q6_K", 34, 768),
        ("Q8_0", 300, 64),
    ):
        for fast in (False, True):
            assert product(unit, kind, m, inputs, fast=fast) == product(dots, kind, m, inputs, fast=fast)


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "allowed"), [(Kept.FLOATS, 1e-5), (Kept.HALVES, 4e-3), (Kept.BYTES, 5e-2)])
@pytest.mark.parametrize(("heads", "kv", "dim", "held", "tokens"), [(6, 2, 32, 150, 40), (5, 1, 112, 0, 69)])
def test_attention(
    program: list[str], heads: int, kv: int, dim: int, held: int, tokens: int, kept: Kept, allowed: float
):
    draw = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, kv, held + tokens, dim, generator=draw)
    qkv = torch.randn(tokens, (heads + 2 * kv) * dim, generator=draw)
    q, new_k, new_v = qkv.split((heads * dim, kv * dim, kv * dim), 1)
    for old, new in ((k, new_k), (v, new_v)):
        old[:, held:] = new.view(tokens, kv, dim).transpose(0, 1)
    answer = ask(program, ATTENTION, [heads, kv, dim, held, tokens, kept, tokens], k, v, qkv)
    got = torch.frombuffer(bytearray(answer), dtype=torch.float32).view(tokens, heads, dim)
    scores = torch.einsum(
        "thd,hsd->hts", q.view(tokens, heads, dim).double(), k.repeat_interleave(heads // kv, 0).double()
    )
    hidden = torch.ones(tokens, held + tokens).triu(held + 1).bool()
    weights = (scores * 0.125).masked_fill(hidden, float("-inf")).softmax(-1)
    want = torch.einsum("hts,hsd->thd", weights, v.repeat_interleave(heads // kv, 0).double())
    assert (got - want).abs().max() < allowed
    for few in (1, 3):  # few queries at a time: the same bits
        assert ask(program, ATTENTION, [heads, kv, dim, held, tokens, kept, few], k, v, qkv) == answer


@pytest.mark.slow
def test_the_largest_weights(program: list[str]):
    scores = 5 * torch.randn(3, 333, generator=torch.Generator().manual_seed(0))
    answer = ask(program, TOP, [3, 333, 20], scores)
    values = torch.frombuffer(bytearray(answer[:240]), dtype=torch.float32).view(3, 20)
    where = torch.frombuffer(bytearray(answer[240:]), dtype=torch.int32).view(3, 20)
    want = torch.softmax(scores.double() * 0.5, -1).topk(20, -1)
    torch.testing.assert_close(values.double(), want.values, rtol=1e-5, atol=1e-30)
    assert where.tolist() == want.indices.tolist()


@pytest.mark.slow
def test_attention_in_tiles(program: list[str]):
    heads, kv, d, e, queries, keys = 4, 2, 24, 20, 100, 150
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, *shape, generator=draw) for shape in ((heads, queries, d), (kv, keys, d), (kv, keys, e)))
    pair = Positions.arange(1, queries, keys - queries).against(Positions.arange(1, keys))
    need = Need(Causal() & Window(70), 0.25, bias=Slope(torch.rand(heads, generator=draw)))
    flags = mask_flags(need.mask)
    assert flags is not None
    bias, places = bias_numbers(form_of(need.bias), pair, heads), tile_places(pair, flags)
    assert bias is not None
    numbers = [heads, kv, d, e, queries, keys, flags.window, bias.first, bias.length]
    answer = ask(program, TILES, numbers, q, k, v, bias.values, places.queries, places.keys, places.ranges)
    got = torch.frombuffer(bytearray(answer), dtype=torch.float32).view(1, heads, queries, e)
    want = kernel_named("reference")(q.double(), View(k.double(), v.double(), pair.k), pair, need).out
    assert (got - want).abs().max() < 1e-5
