"""A prompt as positions: what the prompt builder makes, and prefill packs."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from sonant.models.base import Ints
from sonant.types import Samples

_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Layout:
    """Every position is a text token, or a patch of latents: one frame of a reference or of what is to be continued."""

    text: Ints  # [positions]; 0 where a patch stands
    patches: Samples  # [positions, patch_size, feat_dim] float32; zeros where text stands
    audio: np.ndarray  # [positions] bool: which of them are patches
    spoken_tokens: int  # of the text to be said, a description before it included, but not a prompt's words
    primer: Samples  # [n, patch_size, feat_dim], n ≤ 3: what the codec hears before the first frame; n = 0: nothing

    def keys(self) -> Ints:
        """[positions, k]: equal rows from the start on mean equal keys and values in the cache."""
        marks = np.zeros((len(self.text), _DIGEST_BYTES // 4), np.int32)
        for at in np.flatnonzero(self.audio):
            digest = blake2b(np.ascontiguousarray(self.patches[at]).tobytes(), digest_size=_DIGEST_BYTES).digest()
            marks[at] = np.frombuffer(digest, np.int32)
        return np.concatenate([self.text[:, None], self.audio[:, None].astype(np.int32), marks], axis=1)
