"""A request made ready to be spoken, and who makes it so.

Nothing here imports torch: a front end lays prompts out in a process of its own, and the engine's gets them whole.
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
    """A request made ready off the step thread. Its last position is the first frame's input, not prefill's."""

    length: int
    keys: Ints  # [length, k]: what each position is made of; equal keys from 0 on mean equal KV
    staged: Mapping[str, Any]  # a value for each of the spec's `staged_numbers`
    max_frames: int
    payload: Any  # the family's own, its prompter's `layout`
    variant: int = 0  # the kind of frame step that it needs, one of the spec's
    bad_from: int | None = None  # frames: as many mean that a whole result has gone wrong, and is to be made anew …
    retries: tuple[Mapping[str, Any], ...] = ()  # … with these staged values in the place of its own, one try for each


class Prompter(Protocol):
    """The half of a family that needs neither weights nor torch. Its methods may run on any thread at once."""

    spec: SpeechSpec
    layout: type
    """The frozen dataclass that a prompt's payload is. Its fields are numpy arrays, str, bytes, int, bool, None and
    tuples of int, so that they can be sent one by one, and it refuses those that do not go together."""

    def prompt(self, request: SpeechRequest) -> Prompt:
        """Validate and lay out."""
        ...

    def check(self, prompt: Prompt) -> None:
        """Raise `BadRequest` if a prompt that came from elsewhere does not fit this model.

        What passes can do no harm to the step thread and to others' rows. Whether there is room for so many positions
        is for the engine to say.
        """
        ...
