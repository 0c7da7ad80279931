"""Biases that are made of queries, and vectors that are added to values by distance, in attention over a cache: against
the formulas in float64, on a GPU where there is one, else interpreted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels.fused_calls import DEVICE, MISSING
from vantage.spec.forms import ValueTable

pytestmark = pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton")
H, G, D, E = 6, 2, 16, 24
SCALE = D**-0.5
TYPES = [torch.float32] if DEVICE == "cpu" else [torch.float32, torch.bfloat16]
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def normal(draw: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=draw).to(dtype)


def error(got: Tensor, want: Tensor) -> float:
    return float((got.cpu().double() - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("common", [False, True], ids=["vectors of heads", "common vectors"])
@pytest.mark.parametrize("rows", [1, 19])
def test_tables_of_queries(rows, common, dtype):
    """More rows than a tile has, rows of unequal length and one that is not in use."""
    from vantage.kernels.gpu.query_table import QueryTable, fill

    draw, width = torch.Generator().manual_seed(rows), 150
    qkv = normal(draw, rows, H * D + 7, dtype=dtype)
    vectors = normal(draw, 1 if common else H, width, D, dtype=dtype)
    offset = None if common else normal(draw, H, D)
    held = torch.randint(width + 40, (rows,), generator=draw, dtype=torch.int32)
    if rows > 1:
        held[3] = -1
    bounded = common and rows > 1
    tables = torch.full((rows, H, width), torch.nan, device=DEVICE)
    table = QueryTable(vectors.to(DEVICE), None if offset is None else offset.to(DEVICE), 0.3, bounded)
    fill(qkv.to(DEVICE), tables, table, held.to(DEVICE), heads=H, key_dim=D, some=32)
    q = qkv[:, : H * D].view(rows, H, D).double()
    want = 0.3 * torch.einsum("bhd,hwd->bhw", q if offset is None else q + offset, vectors.double().expand(H, -1, -1))
    for b in range(rows):
        made = width if bounded else min(int(held[b]) + 1, width)
        assert made <= 0 or error(tables[b, :, :made], want[b, :, :made]) < LIMIT[dtype]
    if not bounded and rows == 1:
        assert bool(tables[0, :, int(held[0]) + 1 :].isnan().all()), "no more than can be met"


def values_at(table: ValueTable, distances: Tensor) -> Tensor:
    return table.values.double()[(distances - table.first).clamp(0, len(table.values) - 1)]


def attended(q: Tensor, k: Tensor, v: Tensor, by_distance: Tensor, options: dict) -> Tensor:
    """(H, E) of one query (H, D) over its keys (G, S, D), the last of them its own. ``by_distance``: (H, width)"""
    back = torch.arange(k.shape[1]).flip(0)
    cap, window = options.get("softcap"), options.get("window")
    k, v = (x.double().repeat_interleave(H // G, 0) for x in (k, v))
    scores = (k @ q.double()[:, :, None])[..., 0] * SCALE
    scores = cap * torch.tanh(scores / cap) if cap else scores
    scores += by_distance.double()[:, back.clamp_max(by_distance.shape[-1] - 1)]
    if window:
        scores[:, back >= window] = -torch.inf
    sinks = options["sinks"].double()[:, None] if "sinks" in options else scores[:, :0]
    weights = torch.cat((scores, sinks), 1).softmax(1)[:, : len(back)]
    return (weights[:, :, None] * (v + (values_at(options["values"], back) if "values" in options else 0.0))).sum(1)


VALUES = ValueTable(normal(torch.Generator().manual_seed(9), 21, E), first=-7)
CASES = {
    "a row's table": {},
    "values": {"values": VALUES},
    "values alike from 0 on": {"values": ValueTable(VALUES.values[:3], first=-2)},
    "values that begin at 3": {"values": ValueTable(VALUES.values[:9], first=3)},
    "values, sinks, softcap": {"values": VALUES, "sinks": normal(torch.Generator().manual_seed(1), H), "softcap": 2.0},
    "values, window": {"values": VALUES, "window": 9},
    "values, window beyond them": {"values": VALUES, "window": 40},
}


def extras(options: dict, tables: Tensor) -> dict:
    from vantage.kernels.gpu.score_bias import DeviceBias
    from vantage.kernels.gpu.tiles import ROW_TABLE
    from vantage.kernels.gpu.value_bias import device_values

    on_device = tables.to(DEVICE)
    extra = {name: options[name] for name in ("softcap", "window") if name in options}
    extra["bias"] = DeviceBias(ROW_TABLE.value, on_device, on_device, tables.shape[-1])
    if "values" in options:
        extra["values"] = device_values(options["values"], torch.device(DEVICE))
    if "sinks" in options:
        extra["sinks"] = options["sinks"].to(DEVICE)
    return extra


def kept(k: Tensor, v: Tensor, int8: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Keys and values as they are read, and the tensors of their store."""
    if not int8:
        return k, v, [k.to(DEVICE), v.to(DEVICE)]
    scales = [x.abs().amax(-1, keepdim=True) / 127 for x in (k, v)]
    codes = [(x / scale).round().to(torch.int8) for x, scale in zip((k, v), scales, strict=True)]
    read = [code * scale for code, scale in zip(codes, scales, strict=True)]
    return read[0], read[1], [t.to(DEVICE) for pair in zip(codes, scales, strict=True) for t in pair]


def places(blocks: Tensor, tokens: int, block: int) -> Tensor:
    """Where the tokens of a row are."""
    at = torch.arange(tokens)
    return blocks.long()[at // block] * block + at % block


@pytest.mark.parametrize("int8", [False, True], ids=["", "8 bits"])
@pytest.mark.parametrize("case", CASES)
def test_a_new_token_with_a_table_of_its_own(case, int8):
    """Several shares of the keys, of which the near ones stand in two; a row with one share, and one with no keys."""
    from vantage.kernels.gpu import decode

    options, held, block, splits = CASES[case], (135, 20, 0), 16, 4
    draw, rows, blocks = torch.Generator().manual_seed(5), len(held), 9
    table = torch.randperm(rows * blocks, generator=draw).view(rows, blocks).int()
    k, v = (normal(draw, G, rows * blocks * block, width) for width in (D, E))
    k, v, stored = kept(k, v, int8)
    qkv, tables = normal(draw, rows, H * D + G * (D + E)), normal(draw, rows, H, 33)
    out = torch.empty(rows, H * E, device=DEVICE)
    lengths = torch.tensor(held, dtype=torch.int32, device=DEVICE)
    state = decode.RowState(lengths, lengths.clone(), torch.zeros_like(lengths), table.to(DEVICE), block)
    work = decode.Workspace.make(rows, splits, H, G, E, torch.device(DEVICE))
    stores = torch.tensor([decode.store_numbers(stored)], device=DEVICE)
    decode.decode(
        qkv.to(DEVICE), out, stores, 0, state, work, heads=H, kv_heads=G, key_dim=D, value_dim=E, scale=SCALE, keys=32,
        least=16, int8=int8, **extras(options, tables),
    )  # fmt: skip
    for b, n in enumerate(held):
        slots = places(table[b], n, block)
        q, new_k, new_v = (x.view(-1, w) for x, w in zip(qkv[b].split((H * D, G * D, G * E)), (D, D, E), strict=True))
        keys, values = torch.cat((k[:, slots], new_k[:, None]), 1), torch.cat((v[:, slots], new_v[:, None]), 1)
        want = attended(q, keys, values, tables[b], options)
        assert error(out[b].view(H, E), want) < (2e-2 if int8 else 1e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_chunk_whose_tokens_have_tables_of_their_own(case):
    from vantage.kernels.gpu.chunk import ChunkTile, ChunkWorkspace, attend_chunk
    from vantage.kernels.gpu.chunk_place import ChunkPlace
    from vantage.kernels.gpu.decode import store_numbers

    options, held, new, block = CASES[case], 70, 11, 4
    draw, blocks = torch.Generator().manual_seed(6), 21
    k, v = (normal(draw, G, (blocks + 1) * block, width) for width in (D, E))
    table = torch.randperm(blocks, generator=draw) + 1
    slots = places(table, held + new, block)
    qkv, tables = normal(draw, 16, H * D + G * (D + E)), normal(draw, 16, H, 33)
    q, new_k, new_v = qkv[:new].split((H * D, G * D, G * E), 1)
    keys, values = k[:, slots].clone(), v[:, slots].clone()
    keys[:, held:], values[:, held:] = new_k.view(new, G, D).transpose(0, 1), new_v.view(new, G, E).transpose(0, 1)
    tile = ChunkTile(16, 16, 4, 1, 3)
    work = ChunkWorkspace.make([(16, tile)], H, E, torch.device(DEVICE))
    numbers = (torch.tensor([n], dtype=torch.int32, device=DEVICE) for n in (held, new, held, 0))
    out = torch.empty(16, H * E, device=DEVICE)
    k, v = k.to(DEVICE), v.to(DEVICE)
    attend_chunk(
        qkv.to(DEVICE), torch.empty(16, H * D, device=DEVICE), out,
        torch.tensor([store_numbers([k, v])], device=DEVICE), 0,
        ChunkPlace(*numbers, table.to(DEVICE, torch.int32)[None], block), work, heads=H, kv_heads=G, key_dim=D,
        value_dim=E, scale=SCALE, tile=tile, least=16, **extras(options, tables),
    )  # fmt: skip
    for i in range(new):
        seen = slice(0, held + i + 1)
        want = attended(q[i].view(H, D), keys[:, seen], values[:, seen], tables[i], options)
        assert error(out[i].view(H, E), want) < 1e-5


COUNTED = {
    "counts": {},
    "counts that end soon": {"counts": 4},
    "counts beyond all keys": {"counts": 200},
    "norms": {"normed": True},
    "window, sinks, softcap": {"window": 50, "sinks": normal(torch.Generator().manual_seed(1), H), "softcap": 2.0},
    "8 bits": {"int8": True},
}


def counted(q: Tensor, raw: Tensor, k: Tensor, vectors: Tensor) -> Tensor:
    """(H, S): CoPE's bias of one query over its keys (G, S, D), the last of them its own."""
    k = k.double().repeat_interleave(H // G, 0)
    gates = torch.sigmoid((k @ q.double()[:, :, None])[..., 0] * SCALE)
    counts = gates.flip(1).cumsum(1).flip(1).clamp_max(len(vectors) - 1)
    by_count, below = raw.double() @ vectors.double().T, counts.floor().long()
    above = (below + 1).clamp_max(len(vectors) - 1)
    return torch.lerp(by_count.gather(1, below), by_count.gather(1, above), counts - below)


@pytest.mark.sampled
@pytest.mark.parametrize("recent", [16, 64, 256])
@pytest.mark.parametrize("case", COUNTED)
def test_a_new_token_that_counts_keys(case, recent):
    """Counts that end in the newest share and in the oldest, or never; rows of one share, and of no keys. The newest
    keys are less than a share, end within one, or are all there are: where they are not enough, programs tell each
    other what they counted, and leave the room for it as it was."""
    from vantage.kernels.gpu import count_bias, decode, head_vectors

    options, held, block, splits = COUNTED[case], (135, 20, 0), 16, 4
    int8, normed = options.get("int8", False), options.get("normed", False)
    draw, rows, blocks = torch.Generator().manual_seed(5), len(held), 9
    table = torch.randperm(rows * blocks, generator=draw).view(rows, blocks).int()
    k, v = (normal(draw, G, rows * blocks * block, width) for width in (D, E))
    k, v, stored = kept(k, v, int8)
    qkv, vectors = normal(draw, rows, H * D + G * (D + E)), normal(draw, options.get("counts", 48), D)
    gain = normal(draw, D)
    norm = head_vectors.HeadNorm(gain.to(DEVICE), 1e-6, 0.0) if normed else None
    lengths = torch.tensor(held, dtype=torch.int32, device=DEVICE)
    state = decode.RowState(lengths, lengths.clone(), torch.zeros_like(lengths), table.to(DEVICE), block)
    work = decode.Workspace.make(rows, splits, H, G, E, torch.device(DEVICE))
    bias = count_bias.CountBias.make(vectors.to(DEVICE), rows, splits, H, recent)
    bias.one.fill_(torch.nan)
    extra = {name: options[name] for name in ("softcap",) if name in options}
    extra |= {"sinks": options["sinks"].to(DEVICE)} if "sinks" in options else {}
    stores, out = torch.tensor([decode.store_numbers(stored)], device=DEVICE), torch.empty(rows, H * E, device=DEVICE)
    common = {"heads": H, "kv_heads": G, "key_dim": D, "scale": SCALE, "window": options.get("window", 0)}
    common |= {"q_norm": norm, "k_norm": norm, "keys": 32, "least": 16, "int8": int8}
    decode.decode(qkv.to(DEVICE), out, stores, 0, state, work, value_dim=E, bias=bias, **common, **extra)
    assert bool((bias.two == count_bias.NOT_SUMMED.value).all())

    def prepared(x: Tensor) -> Tensor:
        return x * torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-6) * gain if normed else x

    for b, n in enumerate(held):
        slots = places(table[b], n, block)
        raw, new_k, new_v = (x.view(-1, w) for x, w in zip(qkv[b].split((H * D, G * D, G * E)), (D, D, E), strict=True))
        q, new_k = prepared(raw), prepared(new_k)
        keys, values = torch.cat((k[:, slots], new_k[:, None]), 1), torch.cat((v[:, slots], new_v[:, None]), 1)
        by_distance = counted(q, raw, keys, vectors).flip(1)
        want = attended(q, keys, values, by_distance, options)
        assert error(out[b].view(H, E), want) < (5e-2 if int8 else 1e-4)


@pytest.mark.parametrize("paged", [True, False], ids=["paged", "own places"])
@pytest.mark.parametrize("case", [case for case in COUNTED if case != "norms"])  # keys are normed as they are kept
def test_tokens_of_a_row_that_count_keys(case, paged):
    """Each is a row of its own over the same keys, the new tokens' included: these are read from the cache alone, since
    another program may read them at once. One token of a row is none."""
    from vantage.kernels.gpu import count_bias, decode

    options, tokens, block, splits = COUNTED[case], 4, 16, 4
    int8, held, room = options.get("int8", False), (131, 17), 144
    draw, rows = torch.Generator().manual_seed(9), len(held)
    shape = (G, rows * room) if paged else (rows, G, room)
    k, v, stored = kept(*(normal(draw, *shape, width) for width in (D, E)), int8)
    table = torch.randperm(rows * room // block, generator=draw).view(rows, -1).int()
    qkv, vectors = normal(draw, rows * tokens, H * D + G * (D + E)), normal(draw, options.get("counts", 48), D)
    qkv[:, H * D :] = torch.nan  # not what is attended to
    before = torch.tensor([[n + i for i in range(tokens)] for n in held], dtype=torch.int32)
    before[1, -1] = -1
    lengths, gone = before.flatten().to(DEVICE), torch.zeros(rows, dtype=torch.int32, device=DEVICE)
    state = decode.RowState(lengths, lengths.clone(), gone, table.to(DEVICE), block if paged else 0, tokens)
    work = decode.Workspace.make(rows * tokens, splits, H, G, E, torch.device(DEVICE))
    bias = count_bias.CountBias.make(vectors.to(DEVICE), rows * tokens, splits, H, 16)
    extra = {name: options[name] for name in ("softcap", "window") if name in options}
    extra |= {"sinks": options["sinks"].to(DEVICE)} if "sinks" in options else {}
    stores, out = torch.tensor([decode.store_numbers(stored)]), torch.full((rows * tokens, H * E), torch.nan)
    out = out.to(DEVICE)
    decode.decode(
        qkv.to(DEVICE), out, stores.to(DEVICE), 0, state, work, heads=H, kv_heads=G, key_dim=D, value_dim=E,
        scale=SCALE, bias=bias, keys=32, least=16, int8=int8, **extra,
    )  # fmt: skip
    assert bool((bias.two == count_bias.NOT_SUMMED.value).all())
    for at, n in enumerate(before.flatten().tolist()):
        row, got = at // tokens, out[at].view(H, E)
        if n < 0:
            assert bool(got.isnan().all()), "what is no token is not written"
            continue
        slots = places(table[row], n + 1, block) if paged else torch.arange(n + 1)
        keys, values = ((x if paged else x[row])[:, slots] for x in (k, v))
        q = qkv[at, : H * D].view(H, D)
        want = attended(q, keys, values, counted(q, q, keys, vectors).flip(1), options)
        assert error(got, want) < (5e-2 if int8 else 1e-4)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("counts", [40, 300], ids=["the newest keys are enough", "sums of all shares are needed"])
def test_shares_that_wait_for_each_other(counts, dtype):
    """Many programs at once, several times: one that waited in vain would never end, and one that did not wait would
    count too little."""
    from vantage.kernels.gpu import count_bias, decode

    width, heads, kv_heads, held, splits = 64, 8, 2, 1500, 8
    draw = torch.Generator().manual_seed(counts)
    qkv = normal(draw, 1, (heads + 2 * kv_heads) * width, dtype=dtype)
    k, v = (normal(draw, 1, kv_heads, held + 1, width, dtype=dtype) for _ in range(2))
    vectors = (0.1 * normal(draw, counts, width)).to(dtype)
    n = torch.tensor([held], dtype=torch.int32, device=DEVICE)
    state = decode.RowState(n, n.clone(), torch.zeros_like(n), torch.zeros((1, 1), dtype=torch.int32, device=DEVICE), 0)
    work = decode.Workspace.make(1, splits, heads, kv_heads, width, torch.device(DEVICE))
    bias = count_bias.CountBias.make(vectors.to(DEVICE), 1, splits, heads)
    stored = [k.to(DEVICE), v.to(DEVICE)]
    stores, scale = torch.tensor([decode.store_numbers(stored)], device=DEVICE), width**-0.5
    outs = [torch.empty(1, heads * width, dtype=dtype, device=DEVICE) for _ in range(1 if DEVICE == "cpu" else 20)]
    for out in outs:
        decode.decode(qkv.to(DEVICE), out, stores, 0, state, work, heads=heads, kv_heads=kv_heads, key_dim=width,
                      value_dim=width, scale=scale, bias=bias)  # fmt: skip
    q, new_k, new_v = (x.view(-1, width).double() for x in qkv[0].split((heads * width, *[kv_heads * width] * 2)))
    keys, values = (torch.cat((x[0, :, :-1].double(), new[:, None]), 1) for x, new in ((k, new_k), (v, new_v)))
    keys, values = (x.repeat_interleave(heads // kv_heads, 0) for x in (keys, values))
    scores = (keys @ q[:, :, None])[..., 0] * scale
    places = scores.sigmoid().flip(1).cumsum(1).flip(1).clamp_max(counts - 1)
    table, below = q @ vectors.double().T, places.floor().long()
    rise = table.gather(1, (below + 1).clamp_max(counts - 1)) - table.gather(1, below)
    weights = (scores + table.gather(1, below) + rise * (places - below)).softmax(1)
    want = (weights[:, :, None] * values).sum(1)
    for out in outs:
        assert error(out.view(heads, width), want) < (1e-4 if dtype is torch.float32 else LIMIT[dtype])  # long sums
        assert torch.equal(out, outs[0])
