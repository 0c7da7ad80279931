"""Several tokens of each row over a cache: what a plain softmax over all that they see makes of them."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cached_bias import bias_values, forms
from tests.kernels.fused_calls import DEVICE, MISSING

pytestmark = pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton")
H, G, D, E = 6, 2, 16, 24
CASES = {
    "plain": {},
    "softcap": {"softcap": 3.0},
    "window": {"window": 7},
    "sinks": {"sinks": [0.3, -0.2, 1.0, 0.0, 2.0, -1.0]},
    "table, softcap, window": {"bias": forms(H)["table"], "softcap": 3.0, "window": 9},
    **{name: {"bias": form} for name, form in forms(H).items()},
    "ratio, as a product": {"bias": forms(H)["ratio"]},  # without the pieces outside 0 to 1
}


def reference(q_THd, k_GSd, v_GSe, held, options):
    """In float64, token by token."""
    out = torch.zeros(*q_THd.shape[:2], E, dtype=torch.float64)
    scale, cap, window = D**-0.5, options.get("softcap"), options.get("window", 0)
    for i in range(len(q_THd)):
        last = held + i
        first = max(0, last + 1 - window) if window else 0
        for h in range(H):
            scores = k_GSd[h * G // H, first : last + 1].double() @ q_THd[i, h].double() * scale
            scores = cap * torch.tanh(scores / cap) if cap else scores
            if "bias" in options:
                scores = scores + bias_values(options["bias"], H, last + 1)[h, last, first:]
            sink = [options["sinks"][h]] if "sinks" in options else []
            weights = torch.cat((scores, torch.tensor(sink, dtype=torch.float64))).softmax(0)[: len(scores)]
            out[i, h] = weights @ v_GSe[h * G // H, first : last + 1].double()
    return out


def extras(options):
    """What the kernel is given of a case."""
    from vantage.kernels.gpu.score_bias import device_bias

    given = {name: options[name] for name in ("softcap", "window") if name in options}
    if "sinks" in options:
        given["sinks"] = torch.tensor(options["sinks"], device=DEVICE)
    if "bias" in options:
        given["bias"] = device_bias(options["bias"], torch.device(DEVICE))
    return given


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("held", "new", "bucket", "splits", "block"), [(0, 5, 8, 1, 4), (37, 7, 8, 4, 4), (21, 16, 16, 2, 0)]
)
def test_a_chunk_attends_as_a_softmax_does(case, held, new, bucket, splits, block, monkeypatch):
    """Less than a bucket and all of it, blocks in any order and a row that owns its places, with shares of the keys."""
    if not case.endswith("as a product"):
        monkeypatch.setattr("vantage.kernels.gpu.score_bias.MOST_BREAKS", 0)
    from vantage.kernels.gpu.chunk import ChunkTile, ChunkWorkspace, attend_chunk
    from vantage.kernels.gpu.chunk_place import ChunkPlace
    from vantage.kernels.gpu.decode import store_numbers

    options, draw = CASES[case], torch.Generator().manual_seed(held + new)
    size = block or 1
    blocks = -(-(held + new) // size)
    k, v = (torch.randn(G, (blocks + 1) * size, width, generator=draw) for width in (D, E))
    table = torch.randperm(blocks, generator=draw) + 1 if block else torch.zeros(1)
    slots = [int(table[i // size]) * size + i % size if block else i for i in range(held + new)]
    qkv = torch.randn(bucket, H * D + G * (D + E), generator=draw)
    q, new_k, new_v = qkv[:new].split((H * D, G * D, G * E), 1)
    keys, values = k[:, slots].clone(), v[:, slots].clone()
    keys[:, held:] = new_k.view(new, G, D).transpose(0, 1)
    values[:, held:] = new_v.view(new, G, E).transpose(0, 1)

    k, v, qkv = k.to(DEVICE), v.to(DEVICE), qkv.to(DEVICE)
    held_, count, pos, gone = (torch.tensor([n], dtype=torch.int32, device=DEVICE) for n in (held, new, held, 0))
    at = ChunkPlace(held_, count, pos, gone, table.to(DEVICE, torch.int32)[None], block)
    tile = ChunkTile(16, 16, 4, 1, splits)
    work = ChunkWorkspace.make([(bucket, tile)], H, E, torch.device(DEVICE))
    out = torch.full((bucket, H * E), torch.nan, device=DEVICE)
    stores = torch.tensor([store_numbers([k, v])], device=DEVICE)
    attend_chunk(
        qkv, torch.empty(bucket, H * D, device=DEVICE), out, stores, 0, at, work, heads=H, kv_heads=G, key_dim=D,
        value_dim=E, scale=D**-0.5, tile=tile, least=16, **extras(options),
    )  # fmt: skip
    want = reference(q.view(new, H, D), keys, values, held, options)
    torch.testing.assert_close(out[:new].cpu().double().view(new, H, E), want, rtol=1e-4, atol=1e-5)
    assert bool(out[new:].isnan().all()), "what is no token is not written"
    assert not work.arrived.any(), "left as the next pass wants it"
    torch.testing.assert_close(k[:, slots].cpu(), keys)
    torch.testing.assert_close(v[:, slots].cpu(), values)


@pytest.mark.parametrize("block", [4, 0], ids=["paged", "own places"])
@pytest.mark.parametrize("case", ["plain", "table, softcap, window", "sinks"])
def test_chunks_of_several_rows(case, block):
    """Rows of unequal length with more and fewer new tokens, the fullest in several tiles and shares; one has none."""
    from vantage.kernels.gpu.chunk import ChunkTile, ChunkWorkspace, attend_chunk
    from vantage.kernels.gpu.chunk_place import ChunkPlace
    from vantage.kernels.gpu.decode import store_numbers

    options, draw, bucket, room = CASES[case], torch.Generator().manual_seed(3), 8, 48
    held, new = (37, 0, 21, 5), (8, 3, 0, 6)
    rows = len(held)
    k, v = (torch.randn(rows, G, room, width, generator=draw).to(DEVICE) for width in (D, E))
    table = torch.zeros(rows, 1)
    if block:  # one pool, whose blocks rows have in any order
        k, v = (x.transpose(0, 1).reshape(G, rows * room, -1).contiguous() for x in (k, v))
        table = torch.randperm(rows * room // block, generator=draw).view(rows, -1)
    qkv = torch.randn(rows * bucket, H * D + G * (D + E), generator=draw)
    numbers = (torch.tensor(n, dtype=torch.int32, device=DEVICE) for n in (held, new, held, (0,) * rows))
    at = ChunkPlace(*numbers, table.to(DEVICE, torch.int32), block)
    tile = ChunkTile(16, 16, 4, 1, 2)
    work = ChunkWorkspace.make([(rows * bucket, tile)], H, E, torch.device(DEVICE))
    out = torch.full((rows * bucket, H * E), torch.nan, device=DEVICE)
    before = k.cpu().clone(), v.cpu().clone()
    attend_chunk(
        qkv.to(DEVICE), torch.empty(rows * bucket, H * D, device=DEVICE), out,
        torch.tensor([store_numbers([k, v])], device=DEVICE), 0, at, work, heads=H, kv_heads=G, key_dim=D, value_dim=E,
        scale=D**-0.5, tile=tile, least=16, **extras(options),
    )  # fmt: skip
    assert not work.arrived.any(), "left as the next pass wants it"
    for b, (n, count) in enumerate(zip(held, new, strict=True)):
        here = torch.arange(n + count)
        slots = table[b, here // block] * block + here % block if block else here
        q, *own = qkv.view(rows, bucket, -1)[b, :count].split((H * D, G * D, G * E), 1)
        seen = []
        for store, added in zip(before, own, strict=True):
            line = (store if block else store[b])[:, slots].clone()
            line[:, n:] = added.view(count, G, line.shape[-1]).transpose(0, 1)
            seen.append(line)
        for store, line in zip((k, v), seen, strict=True):
            torch.testing.assert_close((store if block else store[b]).cpu()[:, slots], line)
        got = out.view(rows, bucket, H, E)[b].cpu().double()
        torch.testing.assert_close(got[:count], reference(q.view(count, H, D), *seen, n, options), rtol=1e-4, atol=1e-5)
        assert bool(got[count:].isnan().all()), "what is no token is not written"
