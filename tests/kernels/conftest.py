"""The two stand-ins for a GPU that run our CUDA sources on a CPU, with a folder of compiled kernels for each module."""

from __future__ import annotations

import pytest

from kernels.cpu_machine import OnCpu
from kernels.hopper_on_cpu import HopperOnCpu


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> OnCpu:
    return OnCpu(tmp_path_factory.mktemp("cuda_on_cpu"))


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> HopperOnCpu:
    return HopperOnCpu(tmp_path_factory.mktemp("hopper_on_cpu"))
