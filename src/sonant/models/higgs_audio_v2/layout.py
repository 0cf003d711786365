"""A prompt as positions: the prompt builder makes it, and prefill packs it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sonant.models.higgs_audio_v2.config import CODEBOOKS
from sonant.models.prompt import Ints
from sonant.models.prompt_check import INT32, check_array, check_whole


@dataclass(frozen=True)
class Layout:
    """Every position is a text token, or a row of the delay pattern: one code of each codebook.

    The last position is the row of all BOS, which generation begins with.
    """

    text: Ints  # [positions]; at a row of codes the token that stands for one
    codes: Ints  # [positions, codebooks]; -1 where the position is text
    spoken_tokens: int  # in the text to be spoken, without the prompt around it

    def __post_init__(self) -> None:
        check_array("text", self.text, INT32, None)
        check_array("codes", self.codes, INT32, len(self.text), CODEBOOKS)
        check_whole("spoken_tokens", self.spoken_tokens)

    def audio(self) -> np.ndarray:
        """[positions]: which of them are rows of codes."""
        return self.codes[:, 0] >= 0

    def keys(self) -> Ints:
        """[positions, k]: equal rows from the start on mean equal keys and values in the cache."""
        return np.concatenate([self.text[:, None], self.codes], axis=1)

    @property
    def key_width(self) -> int:
        return 1 + CODEBOOKS

    def last_rows(self, count: int) -> Ints:
        """The last rows of codes before the last position, the latest last: [count, codebooks].

        If there are fewer, the first lines are -1, which is no code.
        """
        rows = self.codes[:-1][self.audio()[:-1]][-count:]
        return np.concatenate([np.full((count - len(rows), CODEBOOKS), -1, np.int32), rows])
