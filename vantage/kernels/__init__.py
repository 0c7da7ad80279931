"""Ways to compute attention: one is written out, the others are fast and equal to it."""

from vantage.kernels.select import KERNELS, chooser, explain, kernel_named

__all__ = ["KERNELS", "chooser", "explain", "kernel_named"]
