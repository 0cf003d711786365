"""The guide shows one attention head where in the text speech is."""

from __future__ import annotations

from itertools import pairwise

import torch
from training.talker.guide import Guide, guide_batch


def test_the_guide_follows_a_steady_pace_through_the_text() -> None:
    guide = Guide(layers=(1,), weight=1.0, width=0.0, slack=1.0)
    begin, end, pad, frames = 7, 8, 9, 23
    text = torch.tensor([[0, 0, begin, *range(10, 30), end, pad, *[pad] * frames, pad]])
    codes = torch.full((1, text.shape[1], 2), -1)
    codes[0, 25 : 25 + frames, 1] = 3
    context = guide_batch(guide, text, codes, begin, end)
    guided = context.guided[0].nonzero().flatten().tolist()
    assert guided == list(range(24, 24 + frames))  # the last prompt position predicts the first frame
    near = [context.near[0, at].nonzero().flatten().tolist() for at in guided]
    assert all(3 <= key < 23 for keys in near for key in keys)
    assert near[0][0] == 3 and near[-1][-1] == 22
    assert all(a[0] <= b[0] for a, b in pairwise(near))

    looking = torch.zeros(1, text.shape[1], 1, 64)
    keys = torch.zeros_like(looking)
    for at, window in zip(guided, near, strict=True):
        looking[0, at, 0, at] = 800.0
        keys[0, window[0], 0, at] = 10.0
    context.attend(0, looking, keys, keys)
    assert context.astray == 0  # a layer that is not guided
    context.attend(1, looking, keys, keys)
    assert context.astray < 1e-3
    context.attend(1, looking, keys.roll(-2, 1), keys)
    assert context.astray > 0.1
