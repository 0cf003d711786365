"""Fused versions of the ops for NVIDIA GPUs. Each file holds one op; the reference says what it must compute."""
