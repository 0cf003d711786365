"""Sends host values to the device without waiting for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Send host values without waiting."""
    host = _pinned(array, device)
    return host if device.type == "cpu" else host.to(device, non_blocking=True)


def send_into(array: npt.NDArray[Any], place: Tensor) -> None:
    """The same, into memory that the device has already."""
    place.copy_(_pinned(array, place.device), non_blocking=True)


def _pinned(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """The array in memory that a GPU can read by itself; torch keeps it until copies from it are done."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    return host.pin_memory() if device.type == "cuda" else host


def reserve_pinned(device: torch.device) -> None:
    """Fill torch's cache of pinned memory with as much as `to_device` has on its way at a time.

    The cache keeps blocks by powers of two. A block that it lacks comes from the driver, which holds up a step.
    """
    if device.type == "cuda":
        sizes = (1 << power for power in range(3, 18))
        held = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in sizes for _ in range(16)]
        del held
