"""Requests that cover all that a prompter can lay out, and a prompt as named arrays, for comparison.

Nothing here needs torch: `without_torch.py` runs it in a process that has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np

from sonant.config import EngineConfig
from sonant.models.prompt import Prompt, Prompter
from sonant.models.qwen3_tts.prompter import Qwen3TTSPrompter
from sonant.models.registry import load_prompter
from sonant.sampling import Knob, Sampling
from sonant.types import SpeechRequest, Spoken
from sonant.voice import Tensors, Voice
from toy_family.prompter import ToyPrompter

TEXT = "hello the world, speech and the user"


def open_prompter(name: str, folders: Mapping[str, Path]) -> Prompter:
    if name == "toy":
        return ToyPrompter(EngineConfig(), context_segments=2, most_speakers=3)
    return load_prompter(folders[name], EngineConfig())


def voices(prompter: Prompter) -> list[Voice]:
    """Two voices, as clips would give them in this family: one with known words, and one without."""
    spec = prompter.spec
    hidden = prompter.config.talker.hidden_size if isinstance(prompter, Qwen3TTSPrompter) else 1
    drawn = np.random.default_rng(7)
    codes = drawn.integers(0, 64, (9, *spec.frame_shape)).astype(np.int32)
    latents = drawn.normal(size=(9, *spec.frame_shape)).astype(np.float32)
    embedding = drawn.normal(size=hidden).astype(np.float32)
    with_words: Mapping[str, Tensors] = {
        "qwen3_tts": {"embedding": embedding, "codes": codes},
        "higgs_audio_v2": {"codes": codes},
        "voxcpm2": {"reference": latents, "prompt": latents[:5]},
        "toy": {"latents": latents},
    }
    tensors = with_words[spec.family]
    alone = {name: t for name, t in tensors.items() if name not in ("codes", "prompt")} or tensors
    return [Voice(tensors, "on and on", family=spec.family), Voice(alone, family=spec.family)]


def ends(knob: Knob) -> Iterator[Sampling]:
    if knob.choices or knob.kind is bool:
        values = knob.choices or (False, True)
    else:
        values = (knob.kind(knob.low), knob.kind(knob.high))
    yield from (Sampling(**{knob.name: value}) for value in values)


def requests(prompter: Prompter) -> dict[str, SpeechRequest]:
    spec = prompter.spec
    own = voices(prompter) if spec.clones else []
    usual = None if spec.speaks_without_voice else own[0]
    found = {"usual": SpeechRequest(text=TEXT, voice=usual, seed=2**64 - 1)}
    found |= {f"clone {n}": SpeechRequest(text=TEXT, voice=voice, seed=n) for n, voice in enumerate(own)}
    for knob in spec.knobs:
        # With `reference` off speech only continues a clip, so it needs one.
        voice = own[0] if own and knob.name == "reference" else usual
        for sampling in ends(knob):
            found[f"{knob.name} {sampling[knob.name]}"] = SpeechRequest(text=TEXT, voice=voice, sampling=sampling)
    if spec.family == "qwen3_tts":
        for streaming in (False, True):
            found[f"streaming {streaming}"] = SpeechRequest(text=TEXT, voice=usual, streaming_text=streaming)
    if spec.instructs:
        found["instruct"] = SpeechRequest(text=TEXT, instruct="a small room")
    if spec.most_speakers > 1:
        found["dialogue"] = SpeechRequest(text="[SPEAKER0] hello [SPEAKER1] world", speakers=(own[0], "a low voice"))
    if spec.context_segments:
        said = Spoken("before", np.ones((4, *spec.frame_shape), spec.frame_dtype))
        found["context"] = SpeechRequest(text=TEXT, context=(said, said), max_frames=3)
    return found


def flat(prompt: Prompt) -> dict[str, np.ndarray]:
    """All parts of a prompt by name; None becomes an empty array."""
    found: dict[str, object] = {f"payload.{f.name}": getattr(prompt.payload, f.name) for f in fields(prompt.payload)}
    found |= {f"staged.{name}": value for name, value in prompt.staged.items()}
    for n, retry in enumerate(prompt.retries):
        found |= {f"retry {n}.{name}": value for name, value in retry.items()}
    found |= {name: getattr(prompt, name) for name in ("length", "keys", "max_frames", "variant", "bad_from")}
    return {name: np.zeros(0) if value is None else np.asarray(value) for name, value in found.items()}
