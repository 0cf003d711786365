"""A stand-in for an H200's driver: answers what Triton asks before anything is launched."""

from __future__ import annotations

from typing import Any

from sonant.kernels.gpu import Gpu
from sonant.kernels.triton_setup import target_of

GPU = Gpu("NVIDIA H200", (9, 0))


class NoDriver:
    def get_current_target(self) -> Any:
        return target_of(GPU)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0
