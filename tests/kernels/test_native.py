"""The native kernels by themselves: products with packed weights, and how the library comes to be."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vantage.errors import BadInput
from vantage.kernels.native import MAX_ROWS_AS_ONE, Format, Native, WeightMemory, build, built_ahead, matrix, native
from vantage.kernels.native.build import CannotBuild, compile_to, find_compiler
from vantage.model.packed import PACKED_TYPES, Packed, PackedLinear, PackedTable, PackedWeight

backend = native()
needs_compiler = pytest.mark.skipif(backend is None, reason="no C++ compiler here")


HALVES = {  # where the half-precision numbers of a GGUF block stand: first byte, and how many
    "Q8_0": (0, 1), "Q4_0": (0, 1), "Q4_1": (0, 2), "Q5_0": (0, 1), "Q5_1": (0, 2), "IQ4_NL": (0, 1), "IQ4_XS": (0, 1),
    "Q2_K": (80, 2), "Q3_K": (108, 1), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208, 1),
}  # fmt: skip
KINDS = sorted(PACKED_TYPES)
SIXTEEN = {"F16": torch.float16, "BF16": torch.bfloat16}


def rows(kind: str, outputs: int, inputs: int, seed: int = 0) -> Tensor:
    """Rows of random GGUF blocks: any bytes for the numbers, finite scales."""
    if kind in SIXTEEN:
        return (
            torch.randn((outputs, inputs), generator=torch.Generator().manual_seed(seed))
            .to(SIXTEEN[kind])
            .view(torch.uint8)
        )
    size, width = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    draw = torch.Generator().manual_seed(seed)
    shape = (outputs, inputs // size)
    raw = torch.randint(0, 256, (*shape, width), generator=draw, dtype=torch.uint8)
    if kind == "MXFP4":
        raw[..., 0] = torch.randint(115, 130, shape, generator=draw, dtype=torch.uint8)
    else:
        first, count = HALVES[kind]
        scales = torch.randn((*shape, count), generator=draw).half() * 0.01
        raw[..., first : first + 2 * count] = scales.view(torch.uint8)
    return raw.flatten(1)


def packed(kind: str, outputs: int, inputs: int) -> Packed:
    result = Packed.of_blocks(rows(kind, outputs, inputs), kind)
    assert result is not None
    return result


def inputs_of(kind: str, blocks: int) -> int:
    return blocks * max(32, GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0])


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs", [1, 16, 40, 64, 100])
def test_packed_blocks_are_what_gguf_says(kind: str, outputs: int):
    inputs = inputs_of(kind, 3)
    want = torch.from_numpy(dequantize(rows(kind, outputs, inputs).numpy(), GGMLQuantizationType[kind]))
    got = packed(kind, outputs, inputs)
    torch.testing.assert_close(got.unpack(), want, rtol=0, atol=0)
    assert backend is not None
    torch.testing.assert_close(backend.rows(got.matrix(), torch.arange(outputs)), want, rtol=0, atol=0)


@needs_compiler
@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"MXFP4"}))
def test_a_number_that_is_not_finite_is_noticed(kind: str):
    raw, (first, _) = rows(kind, 20, inputs_of(kind, 2)), HALVES.get(kind, (0, 1))
    infinity = torch.tensor(float("inf"), dtype=SIXTEEN.get(kind, torch.float16))
    raw[19, first : first + 2] = infinity.view(1).view(torch.uint8)
    assert Packed.of_blocks(raw, kind) is None


def repacked(raws: list[Tensor], kinds: list[str], orders: list[Tensor]) -> tuple[int | None, list[Packed]]:
    assert backend is not None
    repacking, memory, results = backend.repacking(), WeightMemory(), []
    try:
        for raw, kind, order in zip(raws, kinds, orders, strict=True):
            inputs = inputs_of(kind, 3)
            results.append(Packed.empty(Format[kind], len(order), inputs, memory))
            addresses = raw.data_ptr() + raw.stride(0) * order
            repacking.add(results[-1].data, results[-1].matrix(), addresses, [], raw)
        return repacking.finish(), results
    finally:
        repacking.close()


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_many_matrices_are_repacked_at_once_from_rows_in_any_order(threads: int):
    raws = [rows(kind, 100, inputs_of(kind, 3), seed) for seed, kind in enumerate(KINDS)]
    orders = [torch.randperm(100, generator=torch.Generator().manual_seed(i))[: 100 - 7 * i] for i in range(len(KINDS))]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        failed, results = repacked(raws, KINDS, orders)
    finally:
        torch.set_num_threads(before)
    assert failed is None
    for raw, kind, order, got in zip(raws, KINDS, orders, results, strict=True):
        want = Packed.of_blocks(raw[order], kind)
        assert want is not None
        assert torch.equal(got.data, want.data)


@needs_compiler
def test_the_first_matrix_with_a_number_that_is_not_finite_is_named():
    kinds = ["Q8_0", "Q4_K", "Q6_K", "Q4_0"]
    raws = [rows(kind, 20, inputs_of(kind, 3)) for kind in kinds]
    for raw, kind in zip(raws[1:3], kinds[1:3], strict=True):
        first = HALVES[kind][0]
        raw[19, first : first + 2] = torch.tensor(float("nan")).half().view(1).view(torch.uint8)
    assert repacked(raws, kinds, [torch.arange(20)] * 4)[0] == 1
    assert repacked(raws, kinds, [torch.arange(19)] * 4)[0] is None  # that row is left out


@needs_compiler
def test_repacking_that_is_given_up_writes_nothing_afterwards():
    assert backend is not None
    raw = rows("Q4_K", 640, inputs_of("Q4_K", 3))
    repacking, memory = backend.repacking(), WeightMemory()
    parts = [Packed.empty(Format.Q4_K, 640, inputs_of("Q4_K", 3), memory) for _ in range(20)]
    for part in parts:
        repacking.add(part.data, part.matrix(), raw.data_ptr() + raw.stride(0) * torch.arange(640), [], raw)
    repacking.close()
    for part in parts:
        part.data.fill_(7)
    assert all(bool((part.data == 7).all()) for part in parts)


@pytest.mark.parametrize("bits", [8, 4])
def test_quantising_errs_by_half_a_step(bits: int):
    weight = torch.randn(37, 96) * torch.logspace(-3, 2, 37)[:, None]
    got = Packed.quantise(weight, bits).unpack()
    of = weight.reshape(37, 3, 32)
    span = of.abs().amax(2) * 2 / 254 if bits == 8 else (of.amax(2) - of.amin(2)) / 15
    # half a step, and what rounding the scale and the minimum to half precision adds
    allowed = span * (0.5 + 0.01) + of.abs().amax(2) * 2**-10
    assert ((got - weight).reshape(37, 3, 32).abs().amax(2) <= allowed).all()


def test_a_block_of_zeros_stays_zero():
    for bits in (4, 8):
        assert not Packed.quantise(torch.zeros(5, 64), bits).unpack().any()


@pytest.mark.parametrize(("bits", "inputs"), [(3, 64), (4, 33), (8, 16)])
def test_what_cannot_be_quantised_is_refused(bits: int, inputs: int):
    with pytest.raises(BadInput, match="blocks of 32"):
        Packed.quantise(torch.zeros(4, inputs), bits)


@needs_compiler
@given(
    st.sampled_from([*KINDS, "dense"]),
    st.integers(1, 150),
    st.integers(1, 3),
    st.integers(1, 40),
    st.booleans(),
    st.integers(1, 3),
)
def test_products_equal_the_unpacked_weights(kind: str, outputs: int, count: int, m: int, biased: bool, threads: int):
    assert backend is not None
    bias = torch.randn(outputs) if biased else None
    if kind == "dense":
        data = weight = torch.randn(outputs, count * 32 - 7)  # any number of inputs
        format = Format.DENSE
    else:
        quantised = packed(kind, outputs, inputs_of(kind, count))
        weight, data, format = quantised.unpack(), quantised.data, quantised.format
    x = torch.randn(m, weight.shape[1])
    what, before = matrix(data, bias, format, weight.shape), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        got = backend.linear(what, x)
    finally:
        torch.set_num_threads(before)
    want = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    allowed = 1e-5 * (1 + want.abs()) + (0 if kind in ("dense", *SIXTEEN) else rounding(x, weight))
    assert ((got - want).abs() <= allowed).all()


@needs_compiler
@pytest.mark.parametrize("kind", ["Q4_1", "F16"])
def test_a_product_of_no_rows_is_empty(kind: str):
    """A long prompt's earlier chunks ask for no logits. The native code divided by the number of rows."""
    weight = packed(kind, 40, inputs_of(kind, 2))
    got = PackedLinear(PackedWeight(weight))(torch.randn(1, 0, inputs_of(kind, 2)))
    assert got.shape == (1, 0, 40)


def rounding(x: Tensor, weight: Tensor) -> Tensor:
    """The most that 16 bits for each block of 32 activations can change, (m, outputs): half a step of every one."""
    steps = x.double().unflatten(1, (-1, 32)).abs().amax(2) / 32767
    return 0.5 * steps @ weight.double().unflatten(1, (-1, 32)).abs().sum(2).T


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [12, 13, 50])
def test_fast_products_of_many_rows_err_by_8_bits(kind: str, m: int):
    assert backend is not None
    weight = packed(kind, 100, inputs_of(kind, 3))
    x, dense = torch.randn(m, weight.inputs), weight.unpack()
    exact, fast = backend.linear(weight.matrix(), x), backend.linear(weight.matrix(), x, fast=True)
    differs = m > MAX_ROWS_AS_ONE and backend.has_fast(weight.matrix())
    assert torch.equal(fast, exact) != differs
    off = (fast - x.double() @ dense.double().T).abs()
    assert (off <= 1e-5 * (1 + exact.abs()) + rounding(x, dense) * (32767 / 127 if differs else 1)).all()


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_its_batch(kind: str):
    assert backend is not None
    inputs = inputs_of(kind, 3)
    weight, x = packed(kind, 200, inputs), torch.randn(150, inputs)
    what = weight.matrix()
    alone = torch.cat([backend.linear(what, row[None]) for row in x])
    for m in (2, 3, 5, 8, 12, 13, 20, 50, 150):
        assert torch.equal(backend.linear(what, x[:m].contiguous()), alone[:m])


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs", [64, 200])
def test_a_processor_with_a_larger_first_cache_gets_the_same(kind: str, outputs: int):
    assert backend is not None
    weight, x = packed(kind, outputs, inputs_of(kind, 5)), torch.randn(1, inputs_of(kind, 5))
    what = weight.matrix()
    ask_near = backend._library.vantage_ask_near
    before = ask_near(0)
    try:
        small = backend.linear(what, x)
        ask_near(1)
        large = backend.linear(what, x)
    finally:
        ask_near(before)
    assert torch.equal(small, large)


@needs_compiler
def test_an_embedding_is_the_rows():
    table = packed("Q8_0", 70, 64)
    ids = torch.tensor([[0, 69], [16, 33]])
    torch.testing.assert_close(PackedTable(PackedWeight(table))(ids), table.unpack()[ids], rtol=0, atol=0)


@needs_compiler
def test_a_weight_of_several_kinds_is_one_map():
    parts = [packed("Q4_K", 40, 512), packed("Q6_K", 24, 512)]
    both, x, bias = PackedWeight(*parts), torch.randn(5, 512), torch.randn(64)
    got = PackedLinear(both, bias)(x)
    each = [PackedLinear(PackedWeight(part), some)(x) for part, some in zip(parts, bias.split((40, 24)), strict=True)]
    assert torch.equal(got, torch.cat(each, -1))
    assert torch.equal(both.unpack(torch.float32), torch.cat([part.unpack() for part in parts]))


def test_gradients_pass_through_packed_weights():
    weight = Packed.quantise(torch.randn(24, 64), 4)
    x = torch.randn(3, 64, requires_grad=True)
    PackedLinear(PackedWeight(weight), torch.zeros(24))(x).sum().backward()
    torch.testing.assert_close(x.grad, weight.unpack().sum(0).expand(3, 64))


PROGRAM = """
import pathlib, sys, torch, warnings, vantage as vt
from vantage.kernels.native import built_ahead
built_ahead.FOLDER = pathlib.Path(sys.argv[1])
warnings.simplefilter("always")
m = vt.build(vt.decoder(vocab=64, width=64, layers=2, heads=4)).eval()
tokens = torch.arange(10)[None]
with warnings.catch_warnings(record=True) as said, torch.inference_mode():
    cache = m.new_cache()
    y = torch.cat([m(tokens[:, i:i + 1], cache=cache) for i in range(10)], 1)
    assert (y - m(tokens)).abs().max() < 1e-5
    from vantage.model.packed import quantise
    quantise(m, 8)
    m(tokens)
print(len([w for w in said if "torch's own operators" in str(w.message)]), str(said[0].message) if said else "")
"""


def run(built: Path = Path("nothing"), **environment: str) -> str:
    """``built``: the folder of libraries that were built ahead."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(built)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def ranks_as_torch(library: Native, scores: Tensor, k: int, scale: float) -> None:
    """The weights are softmax's largest, and each lies where it says; of equal ones the earlier comes first."""
    values, where = library.top(scores, k, scale)
    weights = torch.softmax(scores.double() * scale, -1)
    torch.testing.assert_close(values.double(), weights.topk(k, -1).values, rtol=1e-5, atol=1e-30)
    torch.testing.assert_close(values.double(), weights.gather(-1, where.long()), rtol=1e-5, atol=1e-30)
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    assert where.tolist() == order.tolist()


KINDS_OF_ROWS = ("random", "rising", "falling", "equal", "few levels", "mostly hidden")


def rows_of(kind: str, n: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    x = 5 * torch.randn(3, n, generator=draw)
    if kind in ("rising", "falling"):
        x = x.sort(dim=-1, descending=kind == "falling").values
    elif kind == "equal":
        x = torch.full_like(x, 2.5)
    elif kind == "few levels":
        x = x.round().clamp(-2, 2)
    elif kind == "mostly hidden":
        x[torch.rand(x.shape, generator=draw) < 0.9] = float("-inf")
        x[:, n // 2] = 0.0
    return x


@needs_compiler
@given(
    st.sampled_from(KINDS_OF_ROWS), st.integers(1, 600), st.integers(1, 70), st.floats(0.01, 2), st.integers(0, 10**6)
)
def test_the_largest_weights_from_scores(kind: str, n: int, k: int, scale: float, seed: int):
    assert backend is not None
    ranks_as_torch(backend, rows_of(kind, n, seed), min(k, n), scale)


@needs_compiler
def test_a_score_that_is_no_number_is_not_hidden():
    assert backend is not None
    x = torch.randn(1, 100)
    x[0, 50] = float("nan")
    assert backend.top(x, 4, 1.0)[0].isnan().all()


@pytest.mark.sampled
def test_without_a_compiler_all_works_and_is_said_once(tmp_path: Path):
    said = run(PATH=str(tmp_path), CXX="", VANTAGE_HOME=str(tmp_path))
    assert said.startswith("1 no C++ compiler was found")


@pytest.mark.sampled
@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="libraries are built ahead for Linux")
def test_without_a_compiler_a_library_that_was_built_ahead_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The one that runs here, under the name of the plainest target of this machine."""
    monkeypatch.setattr(built_ahead, "FOLDER", tmp_path)
    name = [name for name, target in built_ahead.TARGETS.items() if target.machine == platform.machine()][-1]
    library = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/native-" in line)
    shutil.copy(library, built_ahead.library_path(name))
    assert run(tmp_path, PATH=str(tmp_path), CXX="", VANTAGE_HOME=str(tmp_path)).split() == ["0"]
    built_ahead.library_path(name).rename(tmp_path / f"{name}-{'0' * 12}.so")  # built from other sources
    assert run(tmp_path, PATH=str(tmp_path), CXX="", VANTAGE_HOME=str(tmp_path)).startswith("1 no C++ compiler")


@pytest.mark.sampled
def test_it_can_be_turned_off():
    assert run(VANTAGE_NATIVE="0").startswith("1 VANTAGE_NATIVE=0")


def test_a_compiler_that_fails_is_named(tmp_path: Path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no such option >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(CannotBuild, match=r"could not compile the native kernels \(no such option\)"):
        compile_to(tmp_path / "x.so", (str(broken),))
    assert list(tmp_path.glob("*.so")) == []


@pytest.mark.sampled
@needs_compiler
@pytest.mark.parametrize("machine", ["x86-64", "x86-64-v3"])
def test_older_processors_get_the_same(machine: str, tmp_path: Path):
    """SSE2 alone, and AVX2: compiled for them and run here."""
    if "x86" not in os.uname().machine:
        pytest.skip("these are x86 processors")
    import ctypes

    out = tmp_path / "old.so"
    compile_to(out, find_compiler(), (f"-march={machine}", "-O0", "-Wno-psabi"))
    old = Native(ctypes.CDLL(str(out)))
    for kind in KINDS:
        inputs = inputs_of(kind, 2)
        raw = rows(kind, 40, inputs)
        if kind in HALVES:
            at = HALVES[kind][0]
            raw[0, at : at + 2] = torch.tensor([3, 0])  # a subnormal scale
        weight = Packed.of_blocks(raw, kind)
        assert weight is not None
        again = Packed(torch.empty_like(weight.data), weight.format, 40, inputs)
        assert old.repack(again.matrix(), raw)
        assert torch.equal(again.data, weight.data)
        x, dense = torch.randn(33, inputs), weight.unpack()
        want = x.double() @ dense.double().T
        assert torch.equal(old.rows(weight.matrix(), torch.arange(40)), dense)
        for m in (1, 3, 33):
            off = (old.linear(weight.matrix(), x[:m].contiguous()) - want[:m]).abs()
            assert (off <= 1e-5 * (1 + want[:m].abs()) + rounding(x[:m], dense)).all()
    for kind in KINDS_OF_ROWS:
        ranks_as_torch(old, rows_of(kind, 333, 0), 32, 0.5)


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_on_arm_it_must_be_asked_for(machine, monkeypatch):
    """It has run in an emulator only."""
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.delenv("VANTAGE_NATIVE", raising=False)
    monkeypatch.setattr(build, "_compiled", lambda: "compiled")
    with pytest.raises(build.CannotBuild, match="VANTAGE_NATIVE=1 turns them on"):
        build.load()
    monkeypatch.setenv("VANTAGE_NATIVE", "1")
    assert build.load() == "compiled"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems give pages as they are written to")
def test_prefaulted_memory_keeps_what_it_holds_and_more_can_be_taken_than_was_reserved():
    backend = native()
    assert backend is not None
    memory = torch.arange(3_000_001, dtype=torch.int32)
    backend.prefault(memory.view(torch.uint8)[3:])
    assert torch.equal(memory, torch.arange(3_000_001, dtype=torch.int32))
    weights = WeightMemory()
    weights.reserve(10_000_000)
    first, second, third = (weights.take(n) for n in (6_000_000, 3_000_000, 6_000_000))
    assert second.data_ptr() - first.data_ptr() == 6_000_000
    assert len(third) == 6_000_000
    assert third.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
