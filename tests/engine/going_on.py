"""A toy that speaks with context, the parts said before, and a gate that holds its prompts back."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch

from sonant import Engine, EngineConfig, Sampling, SpeechRequest
from sonant.engine.stream import SpeechStream
from toy_family.recording import WatchedToy

SENTENCES = [f"Sentence number {n} is about the world and speech." for n in range(5)]
TEXT, FRAMES = " ".join(SENTENCES), 6
OPTIONS = {"seed": 10, "sampling": Sampling(stop_chance=0.0)}


class Going(WatchedToy):
    """Takes two parts of context. It keeps every request that had some, and calls `first` before it is laid out."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        super().__init__(config, device, context_segments=2)
        self.gone_on: list[SpeechRequest] = []
        self.threads: set[str] = set()
        self.first: Callable[[SpeechRequest], None] = lambda _: None

    def before(self, request: SpeechRequest) -> SpeechRequest:
        if request.context:
            self.gone_on.append(request)
            self.threads.add(threading.current_thread().name)
            self.first(request)
        return request


class Gate:
    """Holds a prompt back: `reached` is set when it arrives, and `open` lets it go on."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, _: SpeechRequest) -> None:
        self.reached.set()
        assert self.open.wait(20)


Make = Callable[..., tuple[Engine, Going]]


def near(a: np.ndarray, b: np.ndarray) -> None:
    """Assert that latents are nearly equal: their last digits differ by batch, and each part has earlier ones as
    context."""
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-2)


def stream_of(engine: Engine, **options: object) -> SpeechStream:
    return engine.stream(TEXT, **{**OPTIONS, **options})


def feed_all(engine: Engine) -> SpeechStream:
    feed = engine.feed(SpeechRequest(text="", **OPTIONS))  # type: ignore[arg-type]
    for sentence in SENTENCES:
        feed.add(sentence)
    feed.end()
    return feed.stream


WAYS = {"live": stream_of, "file": lambda engine: stream_of(engine, live=False), "feed": feed_all}
