"""A prompt as positions: the prompt builder makes it, and prefill packs it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from sonant.models.prompt import Ints
from sonant.models.prompt_check import BOOL, FLOAT32, INT32, check_array, check_whole, misfit
from sonant.types import Samples

PRIMER_PATCHES = 3  # with which the codec is primed at most
_MARK = 4  # 32-bit words of a patch's digest


@dataclass(frozen=True)
class Layout:
    """Every position is a text token, or a patch of latents: one frame of a reference or of a clip to be continued."""

    text: Ints  # [positions]; 0 where there is a patch
    patches: Samples  # [positions, patch_size, feat_dim] float32; zeros where there is text
    audio: np.ndarray  # [positions] bool: which of them are patches
    spoken_tokens: int  # in the text to be spoken, with a description before it, but without a clip's transcript
    primer: Samples  # [n, patch_size, feat_dim], n ≤ 3: what the codec decodes before the first frame; n = 0: nothing

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
