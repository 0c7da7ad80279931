"""Compiles the fused kernels for GPUs that are not here: ``python -m tests.kernels.compile_targets [CAPABILITY …]``.

Triton needs no device for that, only its own assembler. A process of its own: elsewhere in the tests the same kernels
are interpreted.
"""

from __future__ import annotations

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from vantage.kernels.fused_operator import BY_KEY, COUNTS, DISTANCE_KEYS, SLOPE, FusedPlan
from vantage.kernels.gpu import (
    backward,
    causal_operators,
    causal_rows,
    count_backward,
    count_forward,
    count_operators,
    distance_backward,
    distance_forward,
    distance_gradients,
    distance_operators,
    document_rows,
    forward,
    hopper,
    hopper_rows,
    hopper_rows_backward,
    operators,
    table_gradient,
    values,
)
from vantage.kernels.gpu.row_rotation import lies_as_expected

SHARED = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}  # bytes a block may share
INTEGERS = {"QP", "KP", "BOUNDS", "RANGES", "COUNTED", "ENDS", "BLOCKS", "COUNTER", "POS"}
IN_GLUON = (hopper.attend, hopper_rows.attend, hopper_rows_backward.attend_back)
NUMBERS = {"SLOPES", "LSE", "LINE", "MASS", "DELTA", "P0", "P1", "SINKS", "G0", "G1", "C", "DC"}
NUMBERS |= {"A0", "A1", "SUMS", "LINES", "TOTALS", "OFFSET", "BY_QUERY", "TABLE", "NUMBERS", "TABLE_LINES"}
FLOATS = {"scale", "cap", "factor", "weight", "share", "gate", "ratio", "cool", "eps"}
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def plan(form: int, *, run: bool = True, learned: bool = True) -> FusedPlan:
    return FusedPlan(
        form,
        form in (1, 4, 5),
        learned,
        run,
        0,
        0,
        0,
        0,
        129,
        5 * (form == 4),
        int(not run),
        1,
        0,
        0,
        0,
        int(not run),
        64,
    )


def compile_one(kernel, constants: dict, dtype: torch.dtype, capability: int, warps: int, stages: int):
    names = kernel.arg_names
    missing = [x.name for x in kernel.params if x.is_constexpr and x.name not in constants]
    assert not missing, f"{kernel.__name__} needs {missing}"
    kinds = {}
    for name in names:
        if name in constants:
            kinds[name] = "constexpr"
        elif name in INTEGERS:
            kinds[name] = "*i32"
        elif name in NUMBERS:
            kinds[name] = "*fp32"
        elif name.isupper() and name not in ("T", "S", "W", "P"):
            kinds[name] = f"*{NAMES[dtype]}"
        else:
            kinds[name] = "fp32" if name in FLOATS else "i32"
    values = {(names.index(name),): value for name, value in constants.items()}
    strides = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if (name[-1] == "t" and len(name) == 2) or name in NUMBERS | INTEGERS
    }
    language = GluonASTSource if kernel in IN_GLUON else ASTSource
    source = language(kernel, kinds, values, strides)
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def pretend(capability: int) -> None:
    """That the device is one of this kind."""
    operators.shared_memory = lambda device: SHARED[capability]
    operators.turns_tiles_in_memory = lambda device: capability == 100


def compile_all(capability: int, p: FusedPlan, dtype: torch.dtype, width: int, softcap: float = 0.0) -> dict[str, int]:
    """Bytes that each kernel shares."""
    q = torch.empty(1, 2, 64, width, dtype=dtype, device="meta")
    pretend(capability)
    p = p._replace(block=operators.block_for(q, q))
    how = operators.constants(q, q[:, :1], q, p, [1.0, softcap, 1.0]) | {"APPROXIMATE": dtype != torch.float32}
    warps, used = operators.warps(q, q), {}
    added = [(values.add_values, 1, {"HAS_SINKS": True, "W_TILE": 32})] if operators.has_values(p) else []
    by_tiles = table_gradient.shares_tiles(p)
    if by_tiles:
        added += [(table_gradient.tile_sums, 2, {"KEYS_END": True}), (table_gradient.diagonal_sums, 2, {"ROWS": 32})]
    for kernel, held, more in (
        *added,
        (forward.attend, 1, {"HAS_SINKS": True, "MERGED": operators.merged(p)}),
        (backward.query_gradients, 2, {"LEARNED": bool(p.learned) and p.form < BY_KEY and not by_tiles}),
        (backward.key_gradients, 2, {"LEARNED": bool(p.learned) and p.form == BY_KEY}),
    ):
        known = {name: x for name, x in how.items() if name in kernel.arg_names}
        made = compile_one(kernel, known | more, dtype, capability, warps, operators.stages(q, q, p, held))
        used[made.metadata.name] = made.metadata.shared
        assert made.metadata.shared <= SHARED[capability], (made.metadata.name, capability, made.metadata.shared)
    return used


def compile_hopper(form: int, dtype: torch.dtype, width: int, softcap: float = 0.0) -> int:
    """Bytes that the forward pass for compute capability 9.0 shares."""
    masks = {"CAUSAL": True, "WINDOW": True, "CHUNK": True, "SOFTCAP": softcap > 0, "HAS_SINKS": True}
    sizes = {"H": 2, "GROUP": 2, "D": width, "E": width, "BLOCK": hopper.BLOCK, "STAGES": hopper.STAGES, "FORM": form}
    shared = compile_one(hopper.attend, sizes | masks, dtype, 90, warps=4, stages=1).metadata.shared
    assert shared <= SHARED[90], (form, width, shared)
    return shared


def compile_rows(dtype: torch.dtype, width: int, *, slope: bool, gathered: bool) -> int:
    """The same of its pass over rows and documents."""
    sizes = {"H": 4, "GROUP": 2, "D": width, "BLOCK": hopper_rows.BLOCK, "STAGES": hopper_rows.STAGES}
    how = sizes | {"SLOPE": slope, "GATHERED": gathered}
    made = compile_one(hopper_rows.attend, how, dtype, 90, warps=4, stages=1)
    assert made.metadata.shared <= SHARED[90], (width, made.metadata.shared)
    return made.metadata.shared


def compile_row_gradients(
    dtype: torch.dtype, width: int, group: int, form: int = 0, *, gathered: bool = False, softcap: bool = False,
    window: bool = False,
) -> dict[str, int]:  # fmt: skip
    """The same of the backward pass over them."""
    rows = {"D": width, "ROWS": hopper.ROWS.value}
    whole = rows | {"BLOCK": hopper_rows.BLOCK}
    bias = {"FORM": form, "GATHERED": gathered, "SOFTCAP": softcap, "WINDOW": window}
    kernels = (
        (document_rows.prepare, whole | {"H": 4, "HAS_DELTA": form > 0}, 8),
        (hopper_rows_backward.attend_back, rows | {"H": 4, "GROUP": group, "STAGES": 2} | bias, 4),
        (document_rows.finish, whole, 8),
    )
    used = {}
    for kernel, sizes, warps in kernels:
        made = compile_one(kernel, sizes, dtype, 90, warps=warps, stages=1)
        used[made.metadata.name] = made.metadata.shared
        assert made.metadata.shared <= SHARED[90], (made.metadata.name, width, made.metadata.shared)
    return used


def compile_causal_rows(capability: int, form: int, dtype: torch.dtype, width: int) -> dict[str, int]:
    """The same of the kernels of whole causal rows; nothing where they do not fit."""
    q = torch.empty(1, 2, 64, width, dtype=dtype, device="meta")
    pretend(capability)
    p = plan(form, learned=form != SLOPE)._replace(one_sided=1)
    if not causal_operators.passes(q, q[:, :1], q, None, None, p):
        return {}
    how = causal_operators.constants(q, q[:, :1], p) | {"PTX": True, "SPLIT": form == 2, "LEARNED": form == 2}
    how |= {"NUMBERS": causal_operators.NUMBERS, "HAS_GRAD_LSE": True}
    warps, stages, used = how.pop("num_warps"), how.pop("num_stages"), {}
    for kernel in (causal_rows.table_lines, causal_rows.attend, causal_rows.query_gradients, causal_rows.key_gradients):
        known = {name: x for name, x in how.items() if name in kernel.arg_names}
        made = compile_one(kernel, known, dtype, capability, warps, stages)
        used[made.metadata.name] = made.metadata.shared
        assert made.metadata.shared <= SHARED[capability], (made.metadata.name, capability, made.metadata.shared)
    return used


def compile_products(capability: int, dtype: torch.dtype, width: int, own: bool) -> dict[str, int]:
    """The same of the kernels of distance keys; on Hopper as they run there, rows turned between registers."""
    q = torch.empty(1, 2, 64, width, dtype=dtype, device="meta")
    pretend(capability)
    p = plan(DISTANCE_KEYS)._replace(block=operators.block_for(q, q), own_queries=int(own))
    how = distance_operators._constants(q, q[:, :1], q, q, [q] * 7, p, [1.0, 0.0, 1.0, 1.0])
    how |= {"APPROXIMATE": dtype != torch.float32, "TOGETHER": 2}
    used = {}
    for kernel, name in (
        (distance_forward.attend_by_distance, "attend"),
        (distance_backward.query_gradients, "queries"),
        (distance_backward.key_gradients, "keys"),
        (distance_gradients.distance_gradients, "distances"),
        (distance_gradients.kept_distance_gradients, "kept"),
    ):
        shape = distance_operators._shape(q, q, p, forward=name == "attend")
        warps, stages = shape["num_warps"], shape["num_stages"]
        shuffled = capability == 90 and dtype != torch.float32 and p.block == 64 and warps == 4
        more: dict = {"SHUFFLED": shuffled}
        if name == "attend":
            rows = 2 if shuffled else 1
            more |= {"HAS_SINKS": True, "ROWS": rows * p.block}
            warps *= rows
        known = {n: x for n, x in (how | more | {"KEEPS": True, "BOUNDED": True}).items() if n in kernel.arg_names}
        made = compile_one(kernel, known, dtype, capability, warps, 3 if name == "kept" else stages)
        shuffled = shuffled and name != "kept"
        assert not shuffled or lies_as_expected(made.asm["ttgir"]), name
        used[made.metadata.name] = made.metadata.shared
        assert made.metadata.shared <= SHARED[capability], (made.metadata.name, capability, made.metadata.shared)
    return used


def compile_counts(capability: int, dtype: torch.dtype, width: int) -> dict[str, int]:
    """The same of the kernels of counts."""
    q = torch.empty(1, 2, 64, width, dtype=dtype, device="meta")
    operators.shared_memory = lambda device: SHARED[capability]
    operators.turns_tiles_in_memory = lambda device: capability == 100
    p = plan(COUNTS)._replace(block=operators.block_for(q, q, counts=True))
    how = count_operators._constants(q, q[:, :1], q, p, [1.0, 0.0, 1.0, 1.0]) | {"APPROXIMATE": dtype != torch.float32}
    how |= {"KEPT": count_operators.KEPT_TILES, "P_TILE": 64, "ROWS": 32, "LEARNED": True, "HAS_SINKS": True}
    how |= {"TOGETHER": 2}
    warps, used = operators.warps(q, q), {}
    for kernel, stages in (
        (count_forward.attend_by_count, operators.stages(q, q, p, 1)),
        (count_backward.count_tiles, 1),
        (count_backward.sum_counts, 1),
        (count_backward.gradients_by_count, 2),
        (count_backward.query_gradients, count_operators._stages_back(q, q, p)),
        (count_backward.key_gradients, count_operators._stages_back(q, q, p)),
    ):
        known = {name: x for name, x in how.items() if name in kernel.arg_names}
        made = compile_one(kernel, known, dtype, capability, warps, stages)
        used[made.metadata.name] = made.metadata.shared
        assert made.metadata.shared <= SHARED[capability], (made.metadata.name, capability, made.metadata.shared)
    return used


def main() -> int:
    for capability in [int(x) for x in sys.argv[1:]] or sorted(SHARED):
        for p, dtype, width, softcap in (
            (plan(0), torch.bfloat16, 128, 0.0),
            (plan(0, run=False), torch.bfloat16, 128, 0.0),  # documents
            (plan(1)._replace(window=9, chunk=7, prefix=3), torch.bfloat16, 64, 0.0),
            (plan(3), torch.float16, 128, 0.0),
            (plan(4), torch.bfloat16, 128, 0.0),
            (plan(5, run=False), torch.float16, 64, 20.0),
            (plan(2), torch.float32, 128, 0.0),
            (plan(6), torch.bfloat16, 256, 0.0),
            (plan(7)._replace(one_sided=1, banks=8, width=37), torch.bfloat16, 128, 0.0),
            (plan(5)._replace(banks=1, width=17), torch.bfloat16, 128, 0.0),
        ):
            print(capability, p.form, dtype, width, compile_all(capability, p, dtype, width, softcap), flush=True)
        for form, dtype, width in ((2, torch.bfloat16, 64), (4, torch.float16, 128), (4, torch.bfloat16, 64)):
            print(capability, "causal rows", form, compile_causal_rows(capability, form, dtype, width), flush=True)
        if capability == 90:
            for form, dtype, width, softcap in (
                (0, torch.bfloat16, 128, 0.0),
                (1, torch.bfloat16, 128, 0.0),
                (4, torch.float16, 64, 20.0),
            ):
                print(capability, "hopper", form, dtype, width, compile_hopper(form, dtype, width, softcap), flush=True)
            for dtype, width, slope, gathered in (
                (torch.bfloat16, 128, False, False),
                (torch.float16, 64, True, False),
                (torch.bfloat16, 128, True, True),
            ):
                shared = compile_rows(dtype, width, slope=slope, gathered=gathered)
                print(capability, "rows", dtype, width, slope, gathered, shared, flush=True)
            for dtype, width, group, form, more in (
                (torch.bfloat16, 128, 1, 0, {}),
                (torch.float16, 64, 2, 1, {}),
                (torch.bfloat16, 128, 2, 1, {"gathered": True}),
                (torch.bfloat16, 128, 1, 4, {"softcap": True}),
                (torch.bfloat16, 128, 1, 0, {"window": True}),
            ):
                used = compile_row_gradients(dtype, width, group, form, **more)
                print(capability, "rows' gradients", dtype, width, group, form, more, used, flush=True)
        for dtype, width, own in ((torch.bfloat16, 128, True), (torch.float16, 64, False), (torch.float32, 128, True)):
            used = compile_products(capability, dtype, width, own)
            print(capability, DISTANCE_KEYS, dtype, width, used, flush=True)
        for dtype, width in ((torch.bfloat16, 128), (torch.float32, 64), (torch.float16, 256)):
            print(capability, COUNTS, dtype, width, compile_counts(capability, dtype, width), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
