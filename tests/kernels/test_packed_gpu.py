"""Weights in blocks on a GPU, or in Triton's interpreter: the numbers that the file says, and products with them."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.fused_calls import DEVICE, MISSING
from tests.kernels.test_native import SIXTEEN, inputs_of, needs_compiler, rows
from vantage.model.packed import PACKED_TYPES, Packed

pytestmark = [pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton"), needs_compiler]
KINDS = sorted(PACKED_TYPES - SIXTEEN.keys())


def blocks_of(kind: str, outputs: int, inputs: int):
    from vantage.kernels.gpu.packed import DeviceBlocks

    packed = Packed.of_blocks(rows(kind, outputs, inputs), kind)
    assert packed is not None
    return packed.unpack().to(DEVICE), DeviceBlocks(packed.data.to(DEVICE), packed.format, outputs, inputs)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs", [40, 150])
def test_unpacked_weights_are_what_the_file_says(kind: str, outputs: int):
    from vantage.kernels.gpu.packed import unpacked

    want, blocks = blocks_of(kind, outputs, inputs_of(kind, 2))
    torch.testing.assert_close(unpacked(blocks, torch.float32), want, rtol=1e-6, atol=1e-7)
    ids = torch.tensor([outputs - 1, 0, 17, 17], device=DEVICE)
    torch.testing.assert_close(unpacked(blocks, torch.float32, ids), want[ids], rtol=1e-6, atol=1e-7)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("outputs", "count", "tile", "splits"),
    [(40, 2, 4, 1), (70, 3, 16, 1), (16, 1, 64, 1), (40, 5, 2, 3), (70, 1, 64, 4)],
)
def test_a_product_with_blocks(kind: str, outputs: int, count: int, tile: int, splits: int):
    """Whole tiles, a part of one, and more than there is; inputs that programs share, and more programs than inputs."""
    from vantage.kernels.gpu.packed_product import PackedTile, SplitSums, arranged, multiply

    inputs = inputs_of(kind, count)
    weight, blocks = blocks_of(kind, outputs, inputs)
    draw = torch.Generator().manual_seed(inputs)
    x, gain, bias = (torch.randn(n, generator=draw).to(DEVICE) for n in (inputs, inputs, outputs))
    before = torch.randn(outputs, generator=draw).to(DEVICE)
    out = before.clone()
    row = arranged(x, blocks.format, gain=gain, offset=1.0)
    sums = SplitSums(
        torch.full((blocks.groups * splits * 16,), torch.nan, device=DEVICE),
        torch.zeros(blocks.groups, dtype=torch.int32, device=DEVICE),
    )
    multiply(row, blocks, out, bias=bias, eps=1e-5, add=True, split_sums=sums, tile=PackedTile(tile, 4, splits=splits))
    assert not sums.arrived.any(), "left as the next product wants it"
    wide = x.double() * torch.rsqrt((x.double() ** 2).mean() + 1e-5) * (1 + gain.double())
    want = weight.double() @ wide + bias.double() + before.double()
    assert float((out - want).abs().max()) < 2e-5 * float((weight.double().abs() @ wide.abs()).max())


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "count", "rows_", "splits"), [(40, 2, 2, 1), (150, 3, 5, 1), (70, 5, 16, 3)])
def test_a_product_of_several_rows_with_blocks(kind: str, outputs: int, count: int, rows_: int, splits: int):
    from vantage.kernels.gpu.packed_rows import OUTPUTS, RowsTile, RowSums, multiply, takes

    inputs = inputs_of(kind, count)
    weight, blocks = blocks_of(kind, outputs, inputs)
    assert takes(blocks, rows_)
    draw = torch.Generator().manual_seed(inputs)
    x, bias = torch.randn(rows_, inputs, generator=draw).to(DEVICE), torch.randn(outputs, generator=draw).to(DEVICE)
    before = torch.randn(rows_, outputs + 8, generator=draw).to(DEVICE)  # its outputs lie within wider rows
    wide = before.clone()
    programs = -(-outputs // OUTPUTS)
    sums = RowSums(
        torch.full((programs * splits * OUTPUTS * 16,), torch.nan, device=DEVICE),
        torch.zeros(programs, dtype=torch.int32, device=DEVICE),
    )
    tile = RowsTile(16, 4, splits)
    multiply(x, blocks, wide[:, :outputs], bias=bias, add=True, sums=sums if splits > 1 else None, tile=tile)
    assert not sums.arrived.any(), "left as the next product wants it"
    torch.testing.assert_close(wide[:, outputs:], before[:, outputs:], rtol=0, atol=0)
    want = x.double() @ weight.double().T + bias.double() + before[:, :outputs].double()
    most = float((x.double().abs() @ weight.double().abs().T).max())
    assert float((wide[:, :outputs] - want).abs().max()) < 2e-6 * most
