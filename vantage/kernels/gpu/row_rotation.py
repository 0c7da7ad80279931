"""Rows of a tile of 64 by 64 turned by their number, between the registers of a warp: PTX for Hopper's accumulators.

Triton's own gather goes through shared memory twice and takes so many registers that kernels spill. The product of
a warp group lies so that this needs one shuffle for each number: of row 16·warp + 8·half + lane / 4 a thread has the columns
8·group + 2·(lane % 4) + parity, in the order (group, half, parity). So a row is in four lanes; the low three bits of its number
say from which of them and of which parity a number comes, and the others only how many groups on it goes.

Whether a compiled kernel holds its tiles so is read off its own text (``lies_as_expected``): where it does not, the gather runs.
"""

from __future__ import annotations

import re

SIDE, WARPS = 64, 4
GROUPS = SIDE // 8
VALUES = SIDE * SIDE // (32 * WARPS)  # of each thread
CONSTRAINTS = ",".join(["=f"] * VALUES + ["f"] * VALUES)


def index(group: int, half: int, parity: int) -> int:
    return group % GROUPS * 4 + half * 2 + parity


def rotation(to_right: bool) -> str:
    """Column c of row a from column c - a (to the right) or c + a, around the end."""
    lines = [
        ".reg .b32 t, lane, quad, warp, low, back, pair, odd, l0, l1, s0, s1;",
        ".reg .pred is_odd, wraps0, wraps1, by2, by4;",
        f".reg .b32 u<{VALUES}>, v<{VALUES}>;",
        "mov.u32 t, %tid.x;",
        "and.b32 lane, t, 31;",
        "shr.u32 warp, t, 5;",
        "and.b32 quad, lane, 3;",
        "shr.u32 low, lane, 2;",  # the low bits of the row's number: an even part of pairs, and an odd one
        "shr.u32 pair, low, 1;",
        "and.b32 odd, low, 1;",
        "setp.eq.u32 is_odd, odd, 1;",
        "and.b32 back, lane, 28;",
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
            f"or.b32 s{parity}, s{parity}, back;",
        ]
    lines += ["and.b32 t, warp, 1;", "setp.eq.u32 by2, t, 1;", "and.b32 t, warp, 2;", "setp.eq.u32 by4, t, 2;"]
    places = [(group, half, parity) for group in range(GROUPS) for half in range(2) for parity in range(2)]
    for group, half, parity in places:
        mine, other = index(group, half, parity), index(group, half, 1 - parity)
        lines += [
            f"selp.b32 u{mine}, ${VALUES + other}, ${VALUES + mine}, is_odd;",
            f"shfl.sync.idx.b32 v{mine}, u{mine}, s{parity}, 31, -1;",
        ]
    step = -1 if to_right else 1
    for group, half, parity in places:  # the lower half of a warp's rows goes one group further, which costs nothing
        came = group + step * half
        mine, ahead = index(came, half, parity), index(came + step, half, parity)
        lines.append(f"selp.b32 u{index(group, half, parity)}, v{ahead}, v{mine}, wraps{parity};")
    for groups, source, target in ((2, "u", "v"), (4, "v", "$")):
        for group, half, parity in places:
            mine, ahead = index(group, half, parity), index(group + step * groups, half, parity)
            lines.append(f"selp.b32 {target}{mine}, {source}{ahead}, {source}{mine}, by{groups};")
    return "{\n" + "\n".join(lines) + "\n}"


TO_RIGHT, TO_LEFT = rotation(True), rotation(False)


def lies_as_expected(ttgir: str) -> bool:
    """Whether every tile that is turned is a product of one warp group, whole rows in each warp."""
    layouts = dict(re.findall(r"^(#\w+) = (#ttg\.\S.*)$", ttgir, re.MULTILINE))
    text = re.sub(r" loc\(.*", "", ttgir)
    used = re.findall(r"elementwise_inline_asm .*tensor<(\d+)x64xf32, (#\w+)>$", text, re.MULTILINE)

    def right(rows: int, name: str) -> bool:
        wanted = f"versionMajor = 3, versionMinor = 0, warpsPerCTA = [{rows // 16}, 1], instrShape = [16, 64,"
        return wanted in layouts.get(name, "")

    return bool(used) and all(right(int(rows), name) for rows, name in used)
