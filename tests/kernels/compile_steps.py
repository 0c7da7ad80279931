"""Compiles the kernels of a decoding step, RoPE, GELU and the loss for GPUs that are not here.

python -m tests.kernels.compile_steps [CAPABILITY …]
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.kernels.compile_targets import SHARED
from vantage.kernels.gpu import (
    choose,
    chunk,
    chunk_place,
    decode,
    gate_sums,
    head_vectors,
    latent,
    packed,
    packed_product,
    packed_rows,
    product,
    query_table,
)
from vantage.kernels.gpu.packed import DeviceBlocks
from vantage.kernels.gpu.score_bias import COUNTS, PIECES_AS_PRODUCT
from vantage.kernels.gpu.tiles import LOG, NONE, PIECES, POWER, QUERY_AND_KEY, ROW_TABLE, SLOPE, TABLE
from vantage.kernels.native import Format
from vantage.model.gpu import gelu
from vantage.position.gpu import rope
from vantage.training import cross_entropy

IN_PIECES = (PIECES.value, PIECES_AS_PRODUCT.value)
DISTANCE_FORMS = [*(form.value for form in (NONE, SLOPE, LOG, POWER, TABLE)), *IN_PIECES]  # of biases over a cache
CAPABILITIES = (80, 89, 90, 100, 120)
POINTERS = {
    "x": "T", "w": "T", "bias": "T", "gain": "T", "out": "T", "qkv": "T", "stores": "i64", "held": "i32", "pos": "i32",
    "gone": "i32", "table": "i32", "cos": "fp32", "sin": "fp32", "q_gain": "T", "k_gain": "T", "bias_one": "fp32",
    "bias_two": "fp32", "sinks": "T", "sums": "fp32", "highest": "fp32", "totals": "fp32", "arrived": "i32",
    "begun": "i32", "logits": "fp32", "best": "fp32", "at": "i32", "total": "fp32", "settings": "fp64",
    "weights": "i64", "top_k": "i32", "uniforms": "fp64", "tokens": "i32", "taken": "i32", "out_tokens": "i32",
    "out_logprobs": "fp32", "out_status": "i32", "masses": "i64", "floor_masses": "i64", "floor_keys": "i64",
    "prefixes": "i64", "here": "i64", "above": "i64", "masses_above": "i64", "goals": "fp64", "fronts": "i64",
    "kept": "i32", "ties": "i32", "masses_of_fronts": "i64", "numbers": "i64", "scales": "fp32", "squares": "fp32",
    "words": "i32", "halves": "fp16", "queries": "T", "count": "i32", "vectors": "T", "shifts": "fp32",
    "tables": "fp32", "values": "fp32", "gates": "fp32", "factors": "i8", "ids": "i64", "partial": "fp32", "q": "T",
    "k": "T", "q_out": "T", "k_out": "T", "grad": "T", "targets": "i64", "losses": "fp32", "grads": "T",
}  # fmt: skip
FLOATS = {"eps", "offset", "factor", "scale", "cap", "q_eps", "q_offset", "k_eps", "k_offset", "unit"}
TYPES = {"bf16": tl.bfloat16, "fp16": tl.float16, "fp32": tl.float32}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def compile_one(kernel: Any, constants: dict[str, Any], dtype: str, capability: int, *, aligned: bool = False) -> Any:
    """``aligned``: as tensors of a graph are, so that loads may go ahead."""
    names = kernel.arg_names
    kinds = {}
    for name in names:
        if name in constants:
            kinds[name] = "constexpr"
        elif name == "tokens" and "table_width" in names:  # how many
            kinds[name] = "i32"
        elif name in POINTERS:
            kinds[name] = "*" + POINTERS[name].replace("T", dtype)
            if name == "sums" and "prefixes" in names:
                kinds[name] = "*i64"
            if name == "gates" and "numbers" in names:  # as they are projected
                kinds[name] = "*" + dtype
            if name.startswith("bias_") and constants.get("BIAS") == QUERY_AND_KEY.value:  # gates, and where sums are
                kinds[name] = "*" + dtype if name == "bias_one" else "*i64"
        elif name == "scale" and "grads" in names:  # a number on the device
            kinds[name] = "*fp32"
        else:
            kinds[name] = "fp32" if name in FLOATS else "i32"
    values = {(names.index(name),): value for name, value in constants.items()}
    pointers = [i for i, name in enumerate(names) if kinds[name].startswith("*")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in pointers if aligned}
    source = ASTSource(kernel, kinds, values, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})


def compile_all(capability: int, dtype: str) -> list[str]:
    """The names of the kernels that were compiled."""
    dependent = capability >= 90
    precision = "ieee" if dtype == "fp32" else "tf32"
    one = {"NORM": True, "BIAS": True, "ADD": True, "FUNCTION": 3, "GATED": True, "BLOCK_N": 4, "BLOCK_K": 512}
    one["DEPENDENT"] = dependent
    heads = {
        "H": 8,
        "G": 2,
        "D": 64,
        "E": 64,
        "GROUP_TILE": 16,
        "D_TILE": 64,
        "E_TILE": 64,
        "SPLITS": 8,
        "HEADS": 4,
        "AT_ONCE": 8,
        "KEYS": 64,
        "LEAST": 128,
        "STAGES": 3,
        "RECENT": 256,
        "KEPT": False,
    }
    plain = dict.fromkeys(("Q_NORM", "K_NORM", "Q_GAIN", "K_GAIN", "SOFTCAP", "SINKS", "WINDOW", "VALUES"), False)
    full = dict.fromkeys(plain, True)
    biases = [{"BIAS": form, "BREAKS": 64 * (form in IN_PIECES)} for form in DISTANCE_FORMS]
    of_queries = [{"BIAS": form.value, "BREAKS": 0} for form in (ROW_TABLE, COUNTS)]
    gated = {"BIAS": QUERY_AND_KEY.value, "BREAKS": 0}
    how = {"PRECISION": precision, "TYPE": TYPES[dtype], "DEPENDENT": dependent, "INT8": False}
    chunks = {"CHUNK": 1024, "CHUNKS": 128}
    digits = {"BITS": 11, "BINS": 2048}
    cases = [
        (product.product, one),
        (product.product, one | {"NORM": False, "GATED": False, "FUNCTION": 1, "BLOCK_K": 1024}),
        (product._norm_kernel, {"BIAS": True, "GAIN": True, "CENTRED": True, "WIDTH": 512, "DEPENDENT": dependent}),
        (product._activate_kernel, {"FUNCTION": 2, "GATED": True, "BLOCK": 1024, "DEPENDENT": dependent}),
        (decode.attend, heads | plain | how | {"PAGED": False, "TURN": 1} | biases[0]),
        *((decode.attend, heads | full | how | {"PAGED": True, "TURN": 2} | bias) for bias in (*biases, *of_queries)),
        (decode.attend, heads | plain | how | {"PAGED": True, "TURN": 1, "INT8": True} | biases[0]),
        (decode.attend, heads | plain | how | {"PAGED": True, "TURN": head_vectors.KEYS_APART + 2} | biases[0]),
        *((decode.attend, heads | norms | how | {"PAGED": True, "TURN": 0} | gated) for norms in (plain, full)),
        *(
            (decode.attend, heads | plain | how | {"PAGED": True, "TURN": 0, "DEPENDENT": False, "KEPT": True} | kind)
            for kind in (of_queries[1], of_queries[1] | {"INT8": True})
        ),
        *((gate_sums.keep, {"H": 8, "GROUP": 4, "TILE": gate_sums.SUMMED, "BLOCK": block}) for block in (0, 16)),
        *chunks_of_a_prompt(how, [*biases, of_queries[0], gated]),
        *tables_of_queries(how),
        *latents(how, biases),
        (choose.scan, {"CHUNK": 1024}),
        (choose.weigh, chunks),
        *((choose.settle, {"SEARCH": search, "CHUNKS": 128}) for search in range(3)),
        *((choose.descend, {"SEARCH": search, "SHIFT": 10, "CHUNK": 1024} | digits) for search in range(3)),
        *((choose.narrow, {"SEARCH": search} | digits) for search in range(3)),
        (choose.gather_mass, {"SEARCH": 0, "CHUNK": 1024}),
        (choose.count_ties, {"CHUNK": 1024}),
        *((choose.choose, {"DRAWS": draws} | chunks) for draws in (False, True)),
    ]
    for format in (Format.Q8_0, Format.Q4_K, Format.Q5_1, Format.Q6_K, Format.Q3_K, Format.IQ4_XS):
        form = DeviceBlocks(torch.empty(0, dtype=torch.uint8), format, 64, 1024).constants
        signed = form["LOW"] == 8 or form["TABLE"]
        rows = {"BIAS": True, "ADD": True, "TILE": 32, "SPLITS": 2, "ROWS": 16, "LANES": 64, "PRECISION": precision}
        row = {"NORM": True, "BIAS": True, "ADD": True, "TILE": 64, "PARTS_OF_ROW": 4, "ASM": True, "SIGNED": signed}
        row["DEPENDENT"] = dependent
        cases += [
            (packed_product.product, form | row | {"STAGES": 2, "SPLITS": 1}),
            (packed_product.product, form | row | {"STAGES": 1, "SPLITS": 3}),
            (packed_rows.product, form | rows),
            (packed.unpack, form | {"GATHER": True, "ROWS": 1, "TILE": 1024}),
        ]
    cases.append(
        (packed_product.arrange, {"NORM": True, "FUNCTION": 3, "GATED": True, "OPERANDS": 2, "DEPENDENT": dependent})
    )
    cases += passes_over_a_sequence()
    check_shared_memory(capability, dtype, heads | plain | how | {"PAGED": False, "TURN": 0, "VALUES": True})
    return [compile_one(kernel, constants, dtype, capability).metadata.name for kernel, constants in cases]


def check_shared_memory(capability: int, dtype: str, constants: dict[str, Any]) -> None:
    """Vectors that are added to values go through what a block may share, beside keys and values, which are loaded
    ahead where a row owns its places."""
    for width in (64, 128):
        keys = decode.keys_at_once(128, DTYPES[dtype], width, width)
        sizes = {"D": width, "E": width, "D_TILE": width, "E_TILE": width, "KEYS": keys}
        bias = {"BIAS": ROW_TABLE.value, "BREAKS": 0}
        made = compile_one(decode.attend, constants | sizes | bias, dtype, capability, aligned=True)
        shared = made.metadata.shared
        assert shared <= SHARED[capability], (capability, dtype, width, keys, shared)


def chunks_of_a_prompt(how: dict[str, Any], biases: list[dict[str, int]]) -> list[tuple[Any, dict[str, Any]]]:
    sizes = {
        "H": 8,
        "G": 2,
        "D": 64,
        "E": 64,
        "D_TILE": 64,
        "E_TILE": 64,
        "BLOCK": 16,
        "TYPE": how["TYPE"],
        "INT8": False,
    }
    norms = dict.fromkeys(("Q_NORM", "K_NORM", "Q_GAIN", "K_GAIN"), True)
    tile = {"HEADS": 4, "ROWS": 64, "KEYS": 64, "LEAST": 512, "STAGES": 3, "PRECISION": how["PRECISION"]}
    masks = {"SOFTCAP": False, "SINKS": False, "WINDOW": False, "VALUES": False}
    return [
        *((chunk_place.place, sizes | norms | {"TOKENS": 16, "TURN": 1, "INT8": int8}) for int8 in (False, True)),
        (chunk.attend, sizes | tile | masks | biases[0] | {"INT8": True}),
        *(
            (chunk.attend, sizes | tile | dict.fromkeys(masks, some) | bias)
            for bias in biases
            for some in (False, True)
        ),
    ]


def tables_of_queries(how: dict[str, Any]) -> list[tuple[Any, dict[str, Any]]]:
    how = {name: how[name] for name in ("PRECISION", "TYPE", "DEPENDENT")}
    sizes = {"H": 8, "D": 64, "D_TILE": 64, "QUERIES": 16, "SOME": 64, "SHARES": 8}
    kinds = [{"COMMON": common, "BOUNDED": common, "OFFSET": not common} for common in (False, True)]
    return [(query_table.by_distance, sizes | how | kind) for kind in kinds]


def latents(how: dict[str, Any], biases: list[dict[str, int]]) -> list[tuple[Any, dict[str, Any]]]:
    keys = 16 if how["PRECISION"] == "ieee" else 32
    sizes = {"H": 16, "R": 512, "ROPE": 64, "R_TILE": 512, "ROPE_TILE": 64, "PAGED": True}
    how = {name: how[name] for name in ("PRECISION", "TYPE")}
    tile = {"HEADS": 16, "HEADS_TILE": 16, "SPLITS": 8, "KEYS": keys, "STAGES": 1, "SOFTCAP": True, "WINDOW": True}
    return [(latent.attend, sizes | tile | how | bias) for bias in biases]


def passes_over_a_sequence() -> list[tuple[Any, dict[str, Any]]]:
    turns = {"ROWS": 1, "HEADS": 16, "HALF": 64, "EVICT": rope.EVICT}
    pairings = [(back, adjacent) for back in (False, True) for adjacent in (False, True)]
    return [
        *((rope.turn, turns | {"BACK": back, "ADJACENT": on, "REST": 32 * on}) for back, on in pairings),
        (gelu._forward_kernel, {"BLOCK": gelu.BLOCK}),
        (gelu._backward_kernel, {"BLOCK": gelu.BLOCK}),
        (cross_entropy._forward, {"BLOCK": 4096}),
        (cross_entropy._backward, {"BLOCK": 2048}),
    ]


def main() -> int:
    for capability in [int(x) for x in sys.argv[1:]] or CAPABILITIES:
        for dtype in TYPES if capability == 90 else ("bf16",):
            print(capability, dtype, *compile_all(capability, dtype), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
