"""Sound becomes 16-bit samples on the device as in `audio.pcm`, and rows with values that are not finite are marked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.against import DEVICE, cases, kernel, random
from sonant.audio.pcm import pcm16
from sonant.kernels import reference


def sounds(rows: int, samples: int) -> torch.Tensor:
    """Sound loud enough to be clipped in places, with values half-way between two steps, and the ends of the scale."""
    sound = 0.7 * random(rows, samples)
    steps = torch.arange(samples, device=DEVICE) % 7
    sound[0] = (steps - 3 + 0.5) / 32768
    sound[-1, : min(4, samples)] = torch.tensor([1.0, -1.0, 0.99999, -0.99999], device=DEVICE)[:samples]
    return sound


@pytest.mark.parametrize(("rows", "samples"), cases((3, 1), (2, 300), (1, 2049), gpu=[(256, 1920), (16, 30_720)]))
@pytest.mark.parametrize("way", ["reference", "kernel"])
def test_it_is_what_numpy_makes_of_it(rows: int, samples: int, way: str) -> None:
    sound = sounds(rows, samples)
    made = (reference.pcm16 if way == "reference" else kernel("pcm16"))(sound)
    assert made.dtype == torch.int16 and made.shape == (rows, samples + 1)
    np.testing.assert_array_equal(made[:, :-1].cpu().numpy(), [pcm16(row) for row in sound.cpu().numpy()])
    assert (made[:, -1] == 1).all()


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("way", ["reference", "kernel"])
def test_a_row_with_what_is_no_number_is_silence_and_marked(strange: float, way: str) -> None:
    sound = sounds(3, 2500)
    sound[1, 7] = strange
    made = (reference.pcm16 if way == "reference" else kernel("pcm16"))(sound)
    assert made[:, -1].tolist() == [1, 0, 1]
    assert not made[1, :-1].any() and made[0, :-1].any() and made[2, :-1].any()
