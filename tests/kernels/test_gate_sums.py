"""Running sums of gates beside keys and values: what a softmax with their differences makes of a step and a chunk."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels.fused_calls import DEVICE, MISSING

pytestmark = pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton")
H, G, D, BLOCK = 6, 2, 16, 4


def reference(q_HTd: Tensor, k_GSd: Tensor, v_GSe: Tensor, sums_HS: Tensor, held: int, window: int) -> Tensor:
    """(T, H, e) in float64: queries at ``held`` and after."""
    wide = [x.cpu().double().repeat_interleave(H // G, 0) for x in (k_GSd, v_GSe)]
    scores = q_HTd.cpu().double() @ wide[0].mT * D**-0.5
    sums, tokens = sums_HS.cpu().double(), torch.arange(k_GSd.shape[1])
    scores = scores + sums[:, held:, None] - sums[:, None]
    distance = tokens[held:, None] - tokens
    scores = scores.masked_fill((distance < 0) | (distance >= (window or len(tokens))), float("-inf"))
    return (scores.softmax(-1) @ wide[1]).transpose(0, 1)


class Kept:
    """Keys, values and sums of two rows, each in blocks of its own or in places of its own; what is unused is NaN."""

    def __init__(self, held: list[int], new: int, *, paged: bool):
        draw, most = torch.Generator().manual_seed(sum(held)), max(held) + new
        blocks = -(-most // BLOCK)
        self.paged, self.table = paged, torch.randperm(2 * blocks, generator=draw).view(2, -1) + 1
        shape = (G, (2 * blocks + 1) * BLOCK) if paged else (2, G, blocks * BLOCK)
        self.buffers = [torch.full((*shape, width), torch.nan) for width in (D, D, H // G)]
        for b, n in enumerate(held):
            for buffer in self.buffers:
                buffer[self.at(b, n)] = torch.randn(G, n, buffer.shape[-1], generator=draw)
            sums = self.buffers[2]
            sums[self.at(b, n)] = -torch.rand(G, n, H // G, generator=draw).cumsum(1)
        self.buffers = [buffer.to(DEVICE) for buffer in self.buffers]

    def at(self, b: int, tokens: int) -> tuple:
        n = torch.arange(tokens)
        slots = self.table[b][n // BLOCK] * BLOCK + n % BLOCK
        return (slice(None), slots) if self.paged else (b, slice(None), n)

    def read(self, b: int, tokens: int) -> list[Tensor]:
        return [buffer[self.at(b, tokens)] for buffer in self.buffers]

    def numbers(self) -> tuple[Tensor, Tensor]:
        from vantage.kernels.gpu import decode, gate_sums

        stores, stream = decode.store_numbers(self.buffers[:2]), gate_sums.stream_numbers(self.buffers[2])
        return torch.tensor([stores], device=DEVICE), torch.tensor(stream, device=DEVICE)


def expected_sums(kept: Tensor, gates_TH: Tensor) -> Tensor:
    """(G, S + T, H / G): the sums of a row with those of new tokens behind."""
    logs = torch.nn.functional.logsigmoid(gates_TH.cpu().double())
    last = kept[:, -1:].cpu().double() if kept.shape[1] else torch.zeros(G, 1, H // G, dtype=torch.float64)
    new = logs.view(-1, G, H // G).transpose(0, 1).cumsum(1) + last
    return torch.cat([kept.cpu().double(), new], 1)


def by_head(sums_GSw: Tensor) -> Tensor:
    return sums_GSw.transpose(1, 2).flatten(0, 1)


@pytest.mark.parametrize("window", [0, 3, 1])
@pytest.mark.parametrize("paged", [False, True], ids=["own places", "paged"])
@pytest.mark.parametrize("held", [[70, 37], [1, 0]])
def test_a_step_sums_up_its_gate_and_sees_the_sums_of_others(held, paged, window):
    from vantage.kernels.gpu import decode, gate_sums

    cache = Kept(held, 1, paged=paged)
    before = [cache.read(b, n) for b, n in enumerate(held)]
    torch.manual_seed(1)
    qkv, gates = torch.randn(2, (H + 2 * G) * D, device=DEVICE), 4 * torch.randn(2, H, device=DEVICE)
    stores, stream = cache.numbers()
    lengths = torch.tensor(held, dtype=torch.int32, device=DEVICE)
    table = cache.table.to(DEVICE, torch.int32)
    rows = decode.RowState(lengths, lengths.clone(), torch.zeros_like(lengths), table, BLOCK if paged else 0)
    work = decode.Workspace.make(2, 4, H, G, D, torch.device(DEVICE))
    out = torch.empty(2, H * D, device=DEVICE)
    decode.decode(
        qkv, out, stores, 0, rows, work, heads=H, kv_heads=G, key_dim=D, value_dim=D, scale=D**-0.5, window=window,
        bias=gate_sums.gate_bias(gates, stream), keys=32, least=32,
    )  # fmt: skip
    for b, n in enumerate(held):
        q, k, v = qkv[b].view(-1, 1, D).split((H, G, G))
        k, v = (torch.cat([old, new], 1) for old, new in zip(before[b][:2], (k, v), strict=True))
        sums = expected_sums(before[b][2], gates[b : b + 1])
        torch.testing.assert_close(cache.read(b, n + 1)[2].cpu().double(), sums, rtol=1e-6, atol=1e-6)
        want = reference(q, k, v, by_head(sums), n, window)
        torch.testing.assert_close(out[b].cpu().double().view(1, H, D), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("paged", [False, True], ids=["own places", "paged"])
@pytest.mark.parametrize(("held", "new", "splits"), [(37, 13, 2), (0, 16, 1)])
def test_a_chunk_sums_up_its_gates(held, new, splits, paged, window, monkeypatch):
    """In several pieces, behind what the row holds."""
    from vantage.kernels.gpu import chunk, chunk_place, gate_sums

    monkeypatch.setattr(gate_sums, "SUMMED", 4)
    cache = Kept([held, 0], new, paged=paged)
    if not paged:  # a chunk is of one row
        cache.buffers = [buffer[:1].contiguous() for buffer in cache.buffers]
    before = cache.read(0, held)
    torch.manual_seed(2)
    qkv, gates = torch.randn(16, (H + 2 * G) * D, device=DEVICE), 4 * torch.randn(16, H, device=DEVICE)
    stores, stream = cache.numbers()
    at = chunk_place.ChunkPlace(
        *(torch.tensor([n], dtype=torch.int32, device=DEVICE) for n in (held, new, held, 0)),
        cache.table[:1].to(DEVICE, torch.int32),
        BLOCK if paged else 0,
    )
    tile = chunk.ChunkTile(16, 16, 4, 1, splits)
    work = chunk.ChunkWorkspace.make([(16, tile)], H, D, torch.device(DEVICE))
    out = torch.full((16, H * D), torch.nan, device=DEVICE)
    chunk.attend_chunk(
        qkv, torch.empty(16, H * D, device=DEVICE), out, stores, 0, at, work, heads=H, kv_heads=G, key_dim=D,
        value_dim=D, scale=D**-0.5, window=window, bias=gate_sums.gate_bias(gates, stream), tile=tile, least=16,
    )  # fmt: skip
    q, k, v = (x.transpose(0, 1) for x in qkv[:new].view(new, -1, D).split((H, G, G), 1))
    k, v = (torch.cat([old, fresh], 1) for old, fresh in zip(before[:2], (k, v), strict=True))
    sums = expected_sums(before[2], gates[:new])
    torch.testing.assert_close(cache.read(0, held + new)[2].cpu().double(), sums, rtol=1e-6, atol=1e-6)
    want = reference(q, k, v, by_head(sums), held, window)
    torch.testing.assert_close(out[:new].cpu().double().view(new, H, D), want, rtol=1e-4, atol=1e-5)
    assert bool(out[new:].isnan().all()), "what is no token is not written"


def test_a_gate_that_is_nearly_open_keeps_its_digits():
    """ln σ of a large number is small, and is summed up over a long text."""
    from vantage.kernels.gpu import chunk_place, gate_sums

    gates = torch.tensor([[20.0, 10.0, 4.0, 0.0, -10.0, -90.0]], device=DEVICE)
    sums = torch.zeros(G, 2, H // G, device=DEVICE)
    one, two = (torch.tensor([n], dtype=torch.int32, device=DEVICE) for n in (0, 1))
    at = chunk_place.ChunkPlace(one, two, one, one, one[None], 0)
    stream = torch.tensor(gate_sums.stream_numbers(sums), device=DEVICE)
    gate_sums.keep_chunk(gate_sums.gate_bias(gates, stream), at, 1, H, G)
    want = torch.nn.functional.logsigmoid(gates.double())[0]
    torch.testing.assert_close(sums[:, 0].flatten().double(), want, rtol=1e-6, atol=0.0)
