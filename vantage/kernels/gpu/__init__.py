"""Kernels in Triton. Imported where a GPU is, or Triton's interpreter, and nowhere else."""
