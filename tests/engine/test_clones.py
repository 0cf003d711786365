"""A clip is encoded once, however many requests for it come later or at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from sonant import Engine, EngineConfig, Voice
from sonant.errors import BadAudio
from sonant.kernels.gpu import is_beside_steps
from sonant.types import Samples
from sonant.voice_cache import VoiceCache
from toy_family.model import ToyModel
from toy_family.sizes import CLIP_RATE


class Counting(ToyModel):
    def __init__(self) -> None:
        super().__init__(EngineConfig(), torch.device("cpu"))
        self.encoded = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def encode_voice(self, samples: Samples, text: str | None, name: str) -> Voice:
        self.encoded += 1
        assert self.go_on.wait(20)
        return super().encode_voice(samples, text, name)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(Counting(), EngineConfig(), torch.device("cpu")) as opened:
        yield opened


def clip(pitch: float = 220.0) -> tuple[np.ndarray, int]:
    return np.sin(np.arange(CLIP_RATE) * 2 * np.pi * pitch / CLIP_RATE).astype(np.float32), CLIP_RATE


def counted(engine: Engine) -> int:
    assert isinstance(engine.model, Counting)
    return engine.model.encoded


def test_the_same_clip_is_not_encoded_again(engine: Engine) -> None:
    first, again = engine.clone(clip(), "Hello.", "anna"), engine.clone(clip(), "Hello.", "ben")
    assert counted(engine) == 1
    assert (first.name, again.name, again.text) == ("anna", "ben", "Hello.")
    assert first.fingerprint == again.fingerprint


def test_what_is_computed_for_a_voice_leaves_the_steps_counters_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encoder's kernels run beside steps, and so do the codec's for the end of the clip, which the official package
    leaves in its result."""
    model, beside = engine.model, list[bool]()
    encode, opening = model.encode_voice, model.opening
    monkeypatch.setattr(model, "encode_voice", lambda *given: beside.append(is_beside_steps()) or encode(*given))
    monkeypatch.setattr(model, "opening", lambda *given: beside.append(is_beside_steps()) or opening(*given))
    engine.speak(text="hello", voice=engine.clone(clip(), "Hello."), max_frames=3)
    assert beside == [True, True] and not is_beside_steps()


def test_other_sound_or_other_words_are_another_voice(engine: Engine) -> None:
    asked = ((220.0, None), (220.0, "Hello."), (220.0, "Bye."), (330.0, None))
    voices = [engine.clone(clip(pitch), text) for pitch, text in asked]
    assert counted(engine) == 4 and len({v.fingerprint for v in voices}) == 4


def test_many_at_once_wait_for_one_encoding(engine: Engine) -> None:
    model = engine.model
    assert isinstance(model, Counting)
    model.go_on.clear()
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(engine.clone, clip()) for _ in range(8)]
        other = threads.submit(engine.clone, clip(), "other words")  # waits for an encoding of its own
        model.go_on.set()
        assert len({w.result(20).fingerprint for w in waiting}) == 1
        other.result(20)
    assert model.encoded == 2


def test_a_failure_is_told_to_all_who_wait_and_not_remembered() -> None:
    cache, tried = VoiceCache(2), threading.Event()

    def fail() -> Voice:
        tried.wait(20)
        raise BadAudio("broken")

    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(cache.get, "clip", fail) for _ in range(3)]
        tried.set()
        for one in waiting:
            with pytest.raises(BadAudio, match="broken"):
                one.result(20)
    voice = Voice({"codes": np.ones(3, np.int32)})
    assert cache.get("clip", lambda: voice) is voice


def test_only_the_latest_are_remembered() -> None:
    cache = VoiceCache(2)
    voices = {name: Voice({"codes": np.full(2, n, np.int32)}) for n, name in enumerate("abc")}
    for name in "abac":
        cache.get(name, lambda name=name: voices[name])  # type: ignore[misc]
    assert len(cache) == 2 and (cache.hits, cache.misses) == (1, 3)
    assert cache.get("a", lambda: voices["c"]) is voices["a"]
    assert cache.get("b", lambda: voices["c"]) is voices["c"]
