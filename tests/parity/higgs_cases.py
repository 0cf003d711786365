"""The cases that golden/higgs*.npz hold, as requests to our engine. Texts are as Boson's clean-up leaves them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clips import reference_clip
from sonant.types import Samples

SUN = "The sun rises in the east."
SHORT = "Hello world."
DIALOGUE = "[SPEAKER0] Is it far?\n[SPEAKER1] No, just round the corner."
MIXED = "Grüße aus Köln, 你好!"
MAX_ROWS = 72  # the most that the official runs draw, including the row of all BOS
DELAYED_ROWS = 8  # the row of all BOS, and seven that complete no frame


@dataclass(frozen=True)
class Clip:
    """A voice's clip. Without words it is in the scene; with words it is a turn of its own."""

    seconds: float
    words: str | None = None
    backwards: bool = False  # sounds like another voice

    @property
    def name(self) -> str:
        """The name of its codes in golden/higgs_codec.npz."""
        return f"{'backwards' if self.backwards else 'clip'}_{self.seconds}"

    def samples(self) -> Samples:
        samples, _ = reference_clip(self.seconds)
        return np.ascontiguousarray(samples[::-1]) if self.backwards else samples


@dataclass(frozen=True)
class HiggsCase:
    """A request, whose `instruct` is the scene: None for the usual one, empty for none at all."""

    name: str
    text: str
    voice: Clip | None = None
    speakers: tuple[Clip | str, ...] = ()
    instruct: str | None = None
    context: tuple[tuple[str, Clip], ...] = ()  # texts and their sound, as the codes of a clip
    max_rows: int = MAX_ROWS

    @property
    def max_frames(self) -> int:
        return self.max_rows - DELAYED_ROWS


NIGHT = Clip(0.6, "It was the night before.")
MORNING = Clip(0.9, "And this is the morning after.", backwards=True)

CASES = (
    HiggsCase("plain", SUN),
    HiggsCase("noscene", SHORT, instruct=""),
    HiggsCase("scene", MIXED, instruct="A crowded hall with a long echo."),
    HiggsCase("clone", "Say this in the same voice.", voice=NIGHT),
    HiggsCase("clone_scene", "Say this in the same voice.", voice=Clip(0.6)),
    HiggsCase("clone_noscene", SHORT, voice=MORNING, instruct=""),
    HiggsCase("two_speakers", DIALOGUE, speakers=(NIGHT, MORNING)),
    HiggsCase("speakers_scene", DIALOGUE, speakers=(Clip(0.6), "an old man, slow and hoarse")),
    HiggsCase("smart", DIALOGUE),
    HiggsCase("long_clone", SUN, voice=Clip(5.0, "A long clip has many rows, and they are all in the prompt.")),
    HiggsCase("context", "And so it goes on.", voice=NIGHT, context=((SUN, MORNING),)),
    HiggsCase("capped", SUN, max_rows=24),
)
CLIPS = (Clip(0.6), Clip(0.9, backwards=True), Clip(1.7), Clip(5.0))  # those whose codes are in the golden file
