"""Fused versions of the ops for NVIDIA GPUs. Each file holds one op; reference.py says what it must compute."""
