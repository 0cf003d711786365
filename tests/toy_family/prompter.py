"""The toy's prompter, and what a front end needs of the toy without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sonant.config import EngineConfig
from sonant.errors import UnknownVoice
from sonant.models.prompt import Ints, Prompt, seed_words
from sonant.models.prompt_check import FLOAT32, INT32, check_array, check_finite, check_ids, check_prompt, misfit
from sonant.models.speech_spec import Budget, SpeechSpec, StagedNumber
from sonant.sampling import Knob, resolve
from sonant.types import Samples, SpeechRequest
from sonant.voice import Voice
from toy_family.sizes import BYTES, CHANNELS, CLIP_RATE, DELAY, SAMPLE_RATE, SAMPLES_PER_FRAME

FAMILY = "toy"
KNOBS = (
    Knob(name="temperature", default=0.5, low=0.0, high=10.0, help="how much noise is in a latent"),
    Knob(name="refinements", default=1, choices=(1, 2), help="passes over each latent"),
    Knob(name="stop_chance", default=0.002, low=0.0, high=1.0, help="how soon it ends"),
)
_BUDGET = Budget(base_s=0.4, s_per_token=0.08)


@dataclass(frozen=True)
class Layout:
    ids: Ints  # [positions]; -1: the position has a latent
    latents: Samples  # [positions, CHANNELS]

    def __post_init__(self) -> None:
        check_array("ids", self.ids, INT32, None)
        check_array("latents", self.latents, FLOAT32, len(self.ids), CHANNELS)


def _text(text: str) -> tuple[Ints, Samples]:
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    return ids, np.zeros((len(ids), CHANNELS), np.float32)


def _latents(latents: Samples) -> tuple[Ints, Samples]:
    return np.full(len(latents), -1, np.int32), latents.astype(np.float32)


class ToyPrompter:
    layout: type = Layout

    def __init__(self, config: EngineConfig, *, context_segments: int = 0, most_speakers: int = 1) -> None:
        self.budget = _BUDGET.with_options(config)
        self.spec = SpeechSpec(
            family=FAMILY,
            sample_rate=SAMPLE_RATE,
            clip_sample_rate=CLIP_RATE,
            samples_per_frame=SAMPLES_PER_FRAME,
            frame_shape=(CHANNELS,),
            frame_dtype="float32",
            max_positions=4096,
            staged_numbers=(
                *(StagedNumber(name) for name in ("seed_low", "seed_high")),
                StagedNumber("frame_limit", low=1),
                *(StagedNumber.of(knob) for knob in KNOBS if knob.name != "refinements"),
            ),
            delay_steps=DELAY,
            variants=(1, 2),
            knobs=KNOBS,
            clones=True,
            speaks_without_voice=True,
            most_speakers=most_speakers,
            context_segments=context_segments,
        )

    def prompt(self, request: SpeechRequest) -> Prompt:
        knobs = resolve(KNOBS, request.sampling)
        pieces = [_text(s) if isinstance(s, str) else _latents(self._voice(s)) for s in request.speakers]
        pieces.append(_latents(self._voice(request.voice)))
        pieces += [piece for said in request.context for piece in (_text(said.text), _latents(said.frames))]
        pieces.append(spoken := _text(request.text))
        layout = Layout(*(np.concatenate(part) for part in zip(*pieces, strict=True)))
        frames = request.max_frames or self.budget.frames(len(spoken[0]), self.spec.frame_s)
        seed = seed_words(request.seed or 0)
        return Prompt(
            length=len(layout.ids),
            keys=np.concatenate([layout.ids[:, None], layout.latents.view(np.int32)], 1),
            staged={
                "seed_low": int(seed[0]),
                "seed_high": int(seed[1]),
                "frame_limit": frames,
                **{name: knobs[name] for name in ("temperature", "stop_chance")},
            },
            max_frames=frames,
            payload=layout,
            variant=int(knobs["refinements"]),
        )

    def check(self, prompt: Prompt) -> None:
        layout = prompt.payload
        if not isinstance(layout, Layout):
            raise misfit(f"its payload is a {type(layout).__name__}")
        check_prompt(self, prompt, len(layout.ids), 1 + CHANNELS, frame_limit=prompt.max_frames)
        check_ids("ids", layout.ids, -1, BYTES)
        check_finite("latents", layout.latents)

    def _voice(self, voice: str | Voice | None) -> Samples:
        if voice is None:
            return np.zeros((0, CHANNELS), np.float32)
        if not isinstance(voice, Voice) or voice.family != FAMILY or set(voice.tensors) != {"latents"}:
            raise UnknownVoice("the toy has no such voice; clone one")
        return voice.tensors["latents"]


def load_prompter(_: Path, options: EngineConfig) -> ToyPrompter:
    return ToyPrompter(options)
