"""The GPU's own figures, from the driver through NVML: memory, utilisation, power, temperature.

Without a GPU, or without nvidia-ml-py, there are none. A reading takes the driver about a millisecond, so it is kept
for a second.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from threading import Lock
from typing import Any

import torch

logger = logging.getLogger(__name__)

_KEPT_S = 1.0


class GpuReader:
    """Used in the engine's process, since only that knows its device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = Lock()
        self._kept: tuple[float, dict[str, float] | None] = (-_KEPT_S, None)
        self._nvml: Any = None
        self._absent = device.type != "cuda"

    def read(self) -> dict[str, float] | None:
        """The figures by name; None: there are none."""
        if self._absent:
            return None
        with self._lock:
            when_s, figures = self._kept
            if time.monotonic() - when_s >= _KEPT_S:
                figures = self._ask()
                self._kept = time.monotonic(), figures
            return figures

    def _ask(self) -> dict[str, float] | None:
        try:
            if self._nvml is None:
                import pynvml

                pynvml.nvmlInit()
                self._nvml = pynvml
            return _read(self._nvml, self.device)
        except Exception as e:  # Speech goes on without a driver that has NVML, or in a container without the device.
            self._absent = True
            logger.warning("no GPU figures in /metrics: %s: %s", type(e).__name__, e)
            return None


def _read(nvml: Any, device: torch.device) -> dict[str, float]:
    """The figures that the driver has of this device: not all devices measure their power, for one."""
    # The device is asked for by its UUID, since CUDA_VISIBLE_DEVICES renumbers devices for torch and not for NVML.
    handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    figures: dict[str, float] = {}
    with suppress(nvml.NVMLError):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        figures |= {"memory_used_bytes": float(memory.used), "memory_total_bytes": float(memory.total)}
    with suppress(nvml.NVMLError):
        figures["utilisation_ratio"] = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    with suppress(nvml.NVMLError):
        figures["power_watts"] = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
    with suppress(nvml.NVMLError):
        figures["temperature_celsius"] = float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    return figures
