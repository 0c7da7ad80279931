"""Kernels of ours for a GPU. They need Triton, which comes with torch for CUDA: import them only where one is."""
