"""The toy's weights, and its codec as one pass over a whole utterance, to which the streamed one is compared."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sonant.layers.transformer import DecoderStack, StackShape
from toy_family.sizes import BYTES, CHANNELS, HISTORY, LOOKAHEAD, SAMPLES_PER_FRAME

HIDDEN = 32


def _stack(layers: int, heads: int, kv_heads: int) -> DecoderStack:
    return DecoderStack(StackShape(HIDDEN, 48, layers, heads, kv_heads, 16, 1e-6, 10_000.0))


class ToyModules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.text = nn.Embedding(BYTES, HIDDEN)
        self.latent_in = nn.Linear(CHANNELS, HIDDEN)
        self.base, self.residual = _stack(2, 2, 1), _stack(1, 4, 2)
        self.latent_out = nn.Linear(HIDDEN, CHANNELS)
        self.wave = nn.Parameter(torch.zeros(HISTORY + 1 + LOOKAHEAD, CHANNELS, SAMPLES_PER_FRAME))
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                drawn = torch.randn(parameter.shape, generator=generator)
                scale = 1.0 if "text" in name else 0.05 if name == "wave" else parameter.shape[-1] ** -0.5
                parameter.copy_(1 + 0.1 * drawn if "norm" in name else scale * drawn)
        self.eval().requires_grad_(False)

    def sound(self, windows: Tensor) -> Tensor:
        """Windows around each of T frames, [B, T, HISTORY + 1 + LOOKAHEAD, CHANNELS] → samples
        [B, T · SAMPLES_PER_FRAME]."""
        return torch.einsum("btwc,wcs->bts", windows, self.wave).flatten(1)

    def whole(self, frames: Tensor) -> Tensor:
        """The sound of an utterance's frames [T, CHANNELS], with nothing before and after them."""
        padded = nn.functional.pad(frames, (0, 0, HISTORY, LOOKAHEAD))
        return self.sound(padded.unfold(0, HISTORY + 1 + LOOKAHEAD, 1).transpose(1, 2)[None])[0]
