"""From a model's modules to a program. What has no native form is refused by name, and the model runs as it is."""

from __future__ import annotations

from torch import nn

from vantage.model.lowered.program import NativeProgram


def lower(blocks: nn.ModuleList, norm: nn.Module, width: int) -> NativeProgram:
    """Buffer 0 is the input, (rows, width); the last step leaves its result in the buffer ``out``."""
    program = NativeProgram()
    x = program.buffer("x", width)
    for block in blocks:
        x = program.lower(block, x)
        program.layer_ends.append(len(program.ops))
    program.out = program.lower(norm, x)
    program.mark_private()
    return program


def lower_head(head: nn.Module, width: int) -> NativeProgram:
    program = NativeProgram()
    x = program.buffer("x", width)
    program.out = program.lower(head, x)
    program.mark_private()
    return program
