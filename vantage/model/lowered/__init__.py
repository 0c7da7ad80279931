"""A model's blocks lowered to one program for the native CPU kernels: the same parts, without Python in between."""

from vantage.model.lowered.steps import NATIVE, WholeSteps

__all__ = ["NATIVE", "WholeSteps"]
