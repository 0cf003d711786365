"""Fused versions of the ops for NVIDIA GPUs. A file holds one op or a few; the reference says what they compute."""
