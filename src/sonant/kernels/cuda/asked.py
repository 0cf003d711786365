"""Which implementation the environment asks for, of an op that exists in CUDA C++. It is read here, since kernels are
chosen before any config."""

from __future__ import annotations

import os

from sonant.errors import ConfigError

CHOICES = ("auto", "cuda", "triton", "torch")


def asked_for(variable: str) -> str:
    choice = os.environ.get(variable, "").strip().lower() or "auto"
    if choice not in CHOICES:
        raise ConfigError(f"{variable} must be one of {', '.join(CHOICES)}, not {choice!r}")
    return choice
