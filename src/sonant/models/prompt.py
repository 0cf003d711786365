"""A request laid out to be spoken, and the protocol of what lays it out.

Nothing here imports torch: a front end lays prompts out in its own process, and the engine's process gets them whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sonant.models.speech_spec import SpeechSpec
from sonant.types import SpeechRequest

Ints = npt.NDArray[np.int32]


def seed_words(seed: int) -> Ints:
    """A seed of 64 bits as `ops.uniforms` takes it: low word, high word."""
    return np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32).view(np.int32)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A request laid out off the step thread. Its last position is the input of the first frame, not prefill's."""

    length: int
    keys: Ints  # [length, k]: what each position is made of; equal keys from 0 on mean equal KV
    staged: Mapping[str, Any]  # a value for each of the spec's `staged_numbers`
    max_frames: int
    payload: Any  # the family's own, of its prompter's type `layout`
    variant: int = 0  # the kind of frame step that it needs, one of the spec's `variants`
    bad_from: int | None = None  # a whole result of this many frames has gone wrong and is made anew, …
    retries: tuple[Mapping[str, Any], ...] = ()  # … each time with the next of these in place of its staged values


class Prompter(Protocol):
    """The half of a family that needs neither weights nor torch. Its methods may run on several threads at once."""

    spec: SpeechSpec
    layout: type
    """The frozen dataclass of a prompt's payload. Its fields are numpy arrays, str, bytes, int, bool, None and tuples
    of int, so that they can be sent one by one, and it refuses values that do not go together."""

    def prompt(self, request: SpeechRequest) -> Prompt:
        """Validate a request and lay it out."""
        ...

    def check(self, prompt: Prompt) -> None:
        """Raise `BadRequest` if a prompt that came from elsewhere does not fit this model.

        A prompt that passes can harm neither the step thread nor others' rows. Whether there is room for its positions
        is for the engine to check.
        """
        ...
