"""Plain rotary positions can replace the published mRoPE, since its three axes are always equal."""

from __future__ import annotations

import torch

from sonant.kernels import reference
from sonant.layers.rope import rope_tables


def interleaved_mrope(x: torch.Tensor, positions: torch.Tensor, sections: list[int], theta: float) -> torch.Tensor:
    """Rotate as published: three position axes share the frequencies, interleaved, a third for each.

    x [B, T, H, D]; positions [3, B, T].
    """
    dim = x.shape[-1]
    inverse = 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)
    angles = positions[..., None].float() * inverse  # [3, B, T, D/2]
    mixed = angles[0].clone()
    for axis in (1, 2):
        index = slice(axis, sections[axis] * 3, 3)
        mixed[..., index] = angles[axis][..., index]
    both = torch.cat([mixed, mixed], -1)[:, :, None]
    half = torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], -1)
    return x * both.cos() + half * both.sin()


def test_equal_axes_make_mrope_plain_rope() -> None:
    x = torch.randn(2, 7, 3, 128, generator=torch.Generator().manual_seed(1))
    positions = torch.randint(0, 4000, (2, 7), generator=torch.Generator().manual_seed(2))
    cos, sin = rope_tables(positions, 128, 1e6, torch.float32)
    published = interleaved_mrope(x, positions.expand(3, -1, -1), [24, 20, 20], 1e6)
    torch.testing.assert_close(reference.rotate(x, cos, sin), published, rtol=0, atol=1e-6)


def test_unequal_axes_would_differ() -> None:
    x = torch.randn(1, 1, 1, 128, generator=torch.Generator().manual_seed(1))
    cos, sin = rope_tables(torch.tensor([[5]]), 128, 1e6, torch.float32)
    other = interleaved_mrope(x, torch.tensor([[[5]], [[9]], [[5]]]), [24, 20, 20], 1e6)
    assert (reference.rotate(x, cos, sin) - other).abs().max() > 0.1
