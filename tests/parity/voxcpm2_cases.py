"""The cases that golden/voxcpm2*.npz hold, as requests to our engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from clips import reference_clip
from sonant.types import Samples

HELLO = "Hello world, this is a test."
WEATHER = "你好，世界！今天天气不错。"
MIXED = "Grüße aus Köln, 你好！"
RATE = 16_000  # the codec's own rate for clips, so that neither side resamples
MAX_FRAMES = 16  # the most patches that the official runs draw

Mode = Literal["zero", "ref", "prompt", "ref_prompt"]


@dataclass(frozen=True)
class Clip:
    """A voice's clip. With words it is continued; without words its voice is only imitated."""

    seconds: float
    words: str = ""
    backwards: bool = False  # sounds like another voice

    @property
    def name(self) -> str:
        """The name of its latents in golden/voxcpm2_vae.npz."""
        return f"{'backwards' if self.backwards else 'clip'}_{self.seconds}"

    def samples(self) -> Samples:
        samples, _ = reference_clip(self.seconds, RATE)
        return np.ascontiguousarray(samples[::-1]) if self.backwards else samples


@dataclass(frozen=True)
class VoxCase:
    """A request, the seed of its noise, and whether its sound is in the golden file."""

    name: str
    text: str
    reference: Clip | None = None  # is imitated
    prompt: Clip | None = None  # is continued; its words come unchanged before the text
    instruct: str | None = None
    flow_steps: int = 10
    cfg: float = 2.0
    max_frames: int = MAX_FRAMES
    seed: int = 0
    heard: bool = False

    @property
    def mode(self) -> Mode:
        if self.prompt is None:
            return "zero" if self.reference is None else "ref"
        return "prompt" if self.reference is None else "ref_prompt"

    @property
    def spoken(self) -> str:
        """The text to be said, with the description in front of it."""
        return self.text if self.instruct is None else f"({self.instruct}){self.text}"

    def noise(self, patches: int, patch_size: int, feat_dim: int) -> Samples:
        """Noise [patches, patch_size, feat_dim] that the flow of each patch starts from. Fewer patches get the first of
        the noise for more."""
        return np.random.default_rng(self.seed).standard_normal((patches, patch_size, feat_dim), np.float32)


NIGHT = Clip(0.64, "It was the night before.")  # four patches and no padding
MORNING = Clip(0.9, "今天天气不错。", backwards=True)
SHORT = Clip(0.3, "And so")  # two patches, fewer than can prime the codec
LONG = Clip(3.0)

CASES = (
    VoxCase("plain", HELLO, seed=3, heard=True),
    VoxCase("chinese", WEATHER),
    VoxCase("mixed", MIXED),
    VoxCase("described", "Good night.", instruct="an old man, slow and hoarse"),
    VoxCase("few_steps", HELLO, flow_steps=4, cfg=1.5, seed=3),
    VoxCase("many_steps", WEATHER, flow_steps=20),
    VoxCase("ref", "Say this in the same voice.", reference=MORNING, seed=4, heard=True),
    VoxCase("ref_described", "世界不错。", reference=NIGHT, instruct="a young woman, in a whisper"),
    VoxCase("ref_long", HELLO, reference=LONG, seed=8),
    VoxCase("prompt", "Say this in the same voice.", prompt=NIGHT, seed=5, heard=True),
    VoxCase("prompt_short", "on it goes.", prompt=SHORT, seed=1, heard=True),
    VoxCase("ref_prompt", "你好，世界！", reference=MORNING, prompt=MORNING, seed=4, heard=True),
    VoxCase("ref_prompt_two", HELLO, reference=LONG, prompt=NIGHT, seed=4),
    VoxCase("capped", HELLO, max_frames=3, heard=True),
)
MID_CASES = (
    VoxCase("plain", HELLO, max_frames=3, heard=True),
    VoxCase("ref_prompt", WEATHER, reference=LONG, prompt=MORNING, max_frames=3),
)
CLIPS = (NIGHT, MORNING, SHORT, LONG)  # those whose latents are in the golden file
