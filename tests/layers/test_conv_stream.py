"""A causal convolution gives the same results in one piece, in many pieces, and in torch's own with silence before."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sonant.layers.conv_stream import DepthwiseConv1d, StreamState, assign_slots, channels_last


@pytest.mark.parametrize("dilation", [1, 3, 9])
@pytest.mark.parametrize("pieces", [[60], [1] * 60, [5, 40, 2, 13], [54, 6]], ids=str)
def test_depthwise_in_pieces_is_depthwise_as_a_whole(pieces: list[int], dilation: int) -> None:
    torch.manual_seed(dilation)
    channels, kernel = 6, 7
    layer = DepthwiseConv1d(channels, kernel, dilation=dilation)
    channels_last(layer)
    x = torch.randn(2, 60, channels)
    history = (kernel - 1) * dilation
    silence_first = F.pad(x.mT, (history, 0))
    expected = F.conv1d(silence_first, layer.conv.weight, layer.conv.bias, dilation=dilation, groups=channels).mT
    assert assign_slots(layer) == [(history, channels)]
    state: StreamState = [torch.zeros(2, history, channels)]
    with torch.inference_mode():
        whole = layer(x, None)
        streamed = torch.cat([layer(piece, state) for piece in x.split(pieces, dim=1)], dim=1)
    torch.testing.assert_close(whole, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(streamed, whole, rtol=1e-5, atol=1e-6)
    assert torch.equal(state[0], silence_first.mT[:, -history:])
