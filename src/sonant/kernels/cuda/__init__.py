"""Kernels of our own in CUDA C++, for what Triton does not reach: compiled when first needed, or ahead of that."""
