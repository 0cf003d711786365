"""A prompt as positions: what the prompt builder makes, and prefill packs."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from sonant.models.prompt import Ints
from sonant.models.prompt_check import BOOL, FLOAT32, INT32, check_array, check_whole, misfit
from sonant.types import Samples

PRIMER_PATCHES = 3  # that the codec hears at most
_MARK = 4  # words of a patch's digest


@dataclass(frozen=True)
class Layout:
    """Every position is a text token, or a patch of latents: one frame of a reference or of what is to be continued."""

    text: Ints  # [positions]; 0 where a patch stands
    patches: Samples  # [positions, patch_size, feat_dim] float32; zeros where text stands
    audio: np.ndarray  # [positions] bool: which of them are patches
    spoken_tokens: int  # of the text to be said, a description before it included, but not a prompt's words
    primer: Samples  # [n, patch_size, feat_dim], n ≤ 3: what the codec hears before the first frame; n = 0: nothing

    def __post_init__(self) -> None:
        positions = len(self.text)
        check_array("text", self.text, INT32, None)
        check_array("patches", self.patches, FLOAT32, positions, None, None)
        check_array("audio", self.audio, BOOL, positions)
        check_array("primer", self.primer, FLOAT32, None, *self.patches.shape[1:])
        check_whole("spoken_tokens", self.spoken_tokens)
        if len(self.primer) > PRIMER_PATCHES:
            raise misfit(f"primer has {len(self.primer)} patches, over {PRIMER_PATCHES}")

    @property
    def key_width(self) -> int:
        return 2 + _MARK

    def keys(self) -> Ints:
        """[positions, k]: equal rows from the start on mean equal keys and values in the cache."""
        marks = np.zeros((len(self.text), _MARK), np.int32)
        for at in np.flatnonzero(self.audio):
            digest = blake2b(np.ascontiguousarray(self.patches[at]).tobytes(), digest_size=4 * _MARK).digest()
            marks[at] = np.frombuffer(digest, np.int32)
        return np.concatenate([self.text[:, None], self.audio[:, None].astype(np.int32), marks], axis=1)
