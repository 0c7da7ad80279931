"""Rows of a tile turned by their number, between the registers of a warp: PTX for Hopper's accumulators.

Triton's own gather goes through shared memory twice and takes so many registers that kernels spill; so do conditions
that it works out once and keeps. The product of a warp group lies so that a rotation needs one shuffle for each number:
of row 16·warp + 8·half + lane / 4 a thread has the columns 8·group + 2·(lane % 4) + parity, in the order (group, half,
parity). So a row is in four lanes; the low three bits of its number say from which of them and of which parity a number
comes, and the others only how many groups on it goes. A tile has 64 columns, and 64 rows or twice as many.

Whether a compiled kernel holds its tiles so is read off its own text (``lies_as_expected``): where it does not, the
gather runs.
"""

from __future__ import annotations

import re

SIDE, WARPS = 64, 4
GROUPS = SIDE // 8
VALUES = SIDE * SIDE // (32 * WARPS)  # of each thread
PLACES = [(group, half, parity) for group in range(GROUPS) for half in range(2) for parity in range(2)]
WHERE = [
    ".reg .b32 thread, lane, warp, quad, low;",
    "mov.u32 thread, %tid.x;",
    "and.b32 lane, thread, 31;",
    "shr.u32 warp, thread, 5;",
    "and.b32 quad, lane, 3;",
    "shr.u32 low, lane, 2;",
]


def index(group: int, half: int, parity: int) -> int:
    return group % GROUPS * 4 + half * 2 + parity


def registers(results: int, arguments: int) -> str:
    """What a text says of its operands."""
    return ",".join(["=f"] * (VALUES * results) + ["f"] * (VALUES * arguments))


def block(*lines: list[str]) -> str:
    return "{\n" + "\n".join(line for part in lines for line in part) + "\n}"


def sums() -> list[str]:
    """``sum``: row and column, less what the place of a value adds to them, to know which block a value belongs to."""
    return [
        ".reg .b32 sum, band;",
        ".reg .pred of_far;",
        "and.b32 band, warp, 3;",
        "shl.b32 band, band, 4;",
        "add.s32 sum, band, low;",
        "add.s32 sum, sum, quad;",
        "add.s32 sum, sum, quad;",
    ]


def is_far(group: int, half: int, parity: int) -> str:
    """Whether row and column come to SIDE or more."""
    return f"setp.ge.s32 of_far, sum, {SIDE - 8 * (group + half) - parity};"


def rotation(to_right: bool, source: str, target: str) -> list[str]:
    """Column c of row a from column c - a (to the right) or c + a, around the end."""
    lines = [
        ".reg .b32 rest, pair, odd, l0, l1, s0, s1;",
        ".reg .pred is_odd, wraps0, wraps1, by2, by4;",
        f".reg .b32 u<{VALUES}>, v<{VALUES}>;",
        "shr.u32 pair, low, 1;",  # the low bits of the row's number: an even part of pairs, and an odd one
        "and.b32 odd, low, 1;",
        "setp.eq.s32 is_odd, odd, 1;",
        "and.b32 rest, lane, 28;",
    ]
    if to_right:
        lines += ["sub.s32 l1, quad, pair;", "sub.s32 l0, l1, odd;"]
        wraps = "setp.lt.s32 wraps{}, l{}, 0;"
    else:
        lines += ["add.s32 l0, quad, pair;", "add.s32 l1, l0, odd;"]
        wraps = "setp.gt.s32 wraps{}, l{}, 3;"
    for parity in range(2):
        lines += [
            wraps.format(parity, parity),
            f"and.b32 s{parity}, l{parity}, 3;",
            f"or.b32 s{parity}, s{parity}, rest;",
        ]
    lines += [
        "and.b32 rest, warp, 1;",
        "setp.eq.s32 by2, rest, 1;",
        "and.b32 rest, warp, 2;",
        "setp.eq.s32 by4, rest, 2;",
    ]
    for group, half, parity in PLACES:
        mine, other = index(group, half, parity), index(group, half, 1 - parity)
        lines += [
            f"selp.b32 u{mine}, {source}{other}, {source}{mine}, is_odd;",
            f"shfl.sync.idx.b32 v{mine}, u{mine}, s{parity}, 31, -1;",
        ]
    step = -1 if to_right else 1
    for group, half, parity in PLACES:  # the lower half of a warp's rows goes one group further, which costs nothing
        came = group + step * half
        mine, ahead = index(came, half, parity), index(came + step, half, parity)
        lines.append(f"selp.b32 u{index(group, half, parity)}, v{ahead}, v{mine}, wraps{parity};")
    for groups, before, after in ((2, "u", "v"), (4, "v", target)):
        for group, half, parity in PLACES:
            mine, ahead = index(group, half, parity), index(group + step * groups, half, parity)
            lines.append(f"selp.b32 {after}{mine}, {before}{ahead}, {before}{mine}, by{groups};")
    return lines


def to_keys(wide: bool) -> str:
    """Two blocks of distances as keys: near, far and, where rows are twice as many, farther."""
    lines = [f".reg .b32 x<{VALUES}>;"]
    if wide:
        lines += [".reg .pred upper;", ".reg .b32 n, f;", "setp.ge.s32 upper, warp, 4;"]
    for place in PLACES:
        i = index(*place)
        near, far, farther = (f"${VALUES * n + i}" for n in (1, 2, 3))
        if wide:
            lines += [f"selp.b32 n, {far}, {near}, upper;", f"selp.b32 f, {farther}, {far}, upper;"]
            near, far = "n", "f"
        lines += [is_far(*place), f"selp.b32 x{i}, {far}, {near}, of_far;"]
    return block(WHERE, sums(), lines, rotation(True, "x", "$"))


def to_distances(whole: bool) -> str:
    """A tile by key as what its near block gets of it, and what its far block gets; ``whole``: as one."""
    results = 1 if whole else 2
    lines = [f".reg .b32 x<{VALUES}>, y<{VALUES}>;"]
    lines += [f"mov.b32 x{i}, ${results * VALUES + i};" for i in range(VALUES)]
    if whole:
        return block(WHERE, lines, rotation(False, "x", "$"))
    ends = []
    for place in PLACES:
        i = index(*place)
        ends += [
            is_far(*place),
            f"selp.b32 ${i}, 0, y{i}, of_far;",
            f"selp.b32 ${VALUES + i}, y{i}, 0, of_far;",
        ]
    return block(WHERE, sums(), lines, rotation(False, "x", "y"), ends)


def on_one_diagonal() -> str:
    """Of two tiles of keys, one behind the other, what stands at the distances of one block."""
    lines = [".reg .b32 less;", "sub.s32 less, sum, quad;", "sub.s32 less, less, quad;"]
    lines += ["sub.s32 less, less, quad;", "sub.s32 less, less, quad;"]
    for group, half, parity in PLACES:
        i = index(group, half, parity)
        lines += [
            f"setp.le.s32 of_far, less, {8 * (group - half) + parity};",
            f"selp.b32 ${i}, ${VALUES + i}, ${2 * VALUES + i}, of_far;",
        ]
    return block(WHERE, sums(), lines)


def lies_as_expected(ttgir: str) -> bool:
    """Whether every tile that is turned is a product of one warp group, or two, whole rows in each warp."""
    layouts = dict(re.findall(r"^(#\w+) = (#ttg\.\S.*)$", ttgir, re.MULTILINE))
    text = re.sub(r" loc\(.*", "", ttgir)
    used = re.findall(r"elementwise_inline_asm .*tensor<(\d+)x64xf32, (#\w+)>$", text, re.MULTILINE)

    def right(rows: int, name: str) -> bool:
        wanted = f"versionMajor = 3, versionMinor = 0, warpsPerCTA = [{rows // 16}, 1], instrShape = [16, 64,"
        return wanted in layouts.get(name, "")

    return bool(used) and all(right(int(rows), name) for rows, name in used)
