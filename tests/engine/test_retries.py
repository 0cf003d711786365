"""A file's utterance that went wrong is made anew, a listener's is not, and nothing of a rejected try is heard."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sonant
from engine.families import TOY, same, same_frames
from engine.test_streams import Refuses, wait_until_idle
from sonant import Engine, EngineConfig, FinishReason, Sampling, SpeechRequest
from sonant.engine import loop
from sonant.engine.stream import Mailbox
from sonant.errors import Aborted
from waiting import until

TEXT = "hello"
TOO_LONG = {"min_len": 1000, "inference_timesteps": 4}  # it cannot stop early, and reaches the length of a bad case


@pytest.fixture(scope="module")
def engine(tiny_voxcpm2: Path) -> Iterator[Engine]:
    with sonant.load(tiny_voxcpm2, device="cpu") as opened:
        yield opened


def speak(engine: Engine, seed: int, *, live: bool = False, **knobs: Any) -> sonant.Speech:
    return engine.stream(TEXT, seed=seed, live=live, sampling=Sampling(**{**TOO_LONG, **knobs})).result()


def test_the_third_try_is_given_out_whatever_it_came_to(engine: Engine) -> None:
    same(speak(engine, 5), speak(engine, 7, retry_badcase=False))


def test_a_listener_hears_the_first(engine: Engine) -> None:
    same(speak(engine, 5, live=True), speak(engine, 5, live=True, retry_badcase=False))


def test_what_is_short_enough_is_kept(engine: Engine) -> None:
    few = engine.speak(TEXT, seed=5, max_frames=4, sampling=Sampling(**TOO_LONG))
    assert len(few.frames) == 4
    same(few, engine.speak(TEXT, seed=5, max_frames=4, sampling=Sampling(**TOO_LONG, retry_badcase=False)))


def test_a_long_texts_parts_are_each_retried(tiny_voxcpm2: Path) -> None:
    sentences = ("hello there.", "and again.", "good bye now.")
    with sonant.load(tiny_voxcpm2, device="cpu", config=EngineConfig(segment_chars=20)) as engine:
        whole = engine.speak(" ".join(sentences), seed=5, sampling=Sampling(**TOO_LONG))
        once = Sampling(**TOO_LONG, retry_badcase=False)
        parts = [engine.speak(s, seed=5 + n + 2, sampling=once) for n, s in enumerate(sentences)]
    same_frames(whole.frames, np.concatenate([part.frames for part in parts]))
    assert whole.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2])
def test_an_abort_ends_all_tries(engine: Engine, after_s: float) -> None:
    stream = engine.stream(TEXT, seed=5, live=False, sampling=Sampling(**TOO_LONG))
    time.sleep(after_s)
    stream.abort()
    wait_until_idle(engine)
    with pytest.raises(Aborted):
        stream.result()


def test_who_had_a_row_in_time_is_not_refused_for_the_time_that_tries_take(
    opened: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_LOOK_EVERY_S", 0.0)
    opened.append(toy := TOY.open({}, EngineConfig()))
    mailbox, within_s = Mailbox(), 0.5
    speech = SpeechRequest(text=TEXT, live=False, max_frames=40, seed=5, first_audio_within_s=within_s)
    request = toy._request(replace(speech, sampling=Sampling(stop_chance=0.0)), mailbox)
    request.prompt = replace(request.prompt, bad_from=40, retries=({"stop_chance": 1.0},))
    toy.loop.post(request)
    until(lambda: request.launched)
    with toy.loop._wake:  # no step begins
        time.sleep(within_s)
    chunk = mailbox.take(20)
    assert chunk is not None and len(chunk.frames) < 40


def test_a_listener_who_cannot_be_given_what_was_held_back_is_told_once(opened: list[Engine]) -> None:
    opened.append(toy := TOY.open({}, EngineConfig(chunk_s=(0.04,))))
    sink = Refuses("push")
    speech = SpeechRequest(text=TEXT, live=False, max_frames=20, seed=5, sampling=Sampling(stop_chance=0.0))
    request = toy._request(speech, sink)
    request.prompt = replace(request.prompt, bad_from=40, retries=({"stop_chance": 1.0},))
    toy.loop.post(request)
    toy.close(drain_s=20)
    assert sink.told == ["push", "fail"]
