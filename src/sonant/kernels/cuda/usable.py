"""Whether a kernel in CUDA C++ for Hopper can run for tensors of a device, or of the GPU that somebody plans for."""

from __future__ import annotations

import torch

from sonant.kernels.cuda.compiler import find, find_compiler, refused
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.gpu import gpu_of

_HOPPER = (9, 0)  # and no other: products of warpgroups are not on later ones


def is_usable(kernel: CudaKernel, device: torch.device) -> bool:
    """On a planned GPU: whether it will be there."""
    gpu = gpu_of(device)
    if gpu is None or gpu.capability != _HOPPER:
        return False
    if device.type == "cuda":
        return kernel.is_ready(device)
    if find(kernel.program, gpu.arch) is not None:
        return True
    return find_compiler() is not None and refused(kernel.program, gpu.arch) is None
