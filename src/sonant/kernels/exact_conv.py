"""Convolutions whose float32 is float32: by default cuDNN would round their inputs to TF32, which has ten bits.

The switch for that in torch.backends is the whole process's, which is not ours, and two threads that flip it and set it
back can leave it wrong. The operator below torch's convolutions takes it as an argument of the call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import cudnn


def exact_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: Sequence[int], dilation: Sequence[int],
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """x [B, C, T] or [B, C, H, W], as many strides and dilations as it has of the last, no padding.

    A trainer's convolutions stay as it set them: only the ones above the operator have gradients and autocast.
    """
    dims = len(stride)
    if x.dtype != torch.float32 or torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type):
        convolution = F.conv1d if dims == 1 else F.conv2d
        return convolution(x, weight, bias, stride, 0, dilation, groups)
    none = [0] * dims
    deterministic = cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    return torch._convolution(
        x, weight, bias, stride, none, dilation, False, none, groups, cudnn.benchmark, deterministic, cudnn.enabled,
        allow_tf32=False,
    )  # fmt: skip
