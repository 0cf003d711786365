"""Ready means warm: nobody is the first to wait for a library, an encoder or a step."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import sonant
from serving.conftest import wait_for
from sonant import Engine
from sonant.errors import EngineClosed
from sonant.serving import encode, engine_supervisor
from sonant.serving.channel import engine_port
from sonant.serving.encode import FORMATS, Encoder, open_encoder
from sonant.serving.engine_supervisor import EngineSupervisor
from sonant.serving.limits.admission import Admission
from sonant.serving.options import ServeOptions
from sonant.serving.warm_up import warm_encoders, warm_up


@pytest.fixture(params=["custom", "base", "design"])
def engine(request: pytest.FixtureRequest, tiny_checkpoints: Mapping[str, Path]) -> Iterator[Engine]:
    with sonant.load(tiny_checkpoints[request.param], device="cpu") as opened:
        yield opened


def test_warming_up_speaks(engine: Engine) -> None:
    warm_up(engine)
    assert engine.stats().steps > 0 and engine.stats().running == 0


def test_a_front_end_opens_every_encoder_before_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def watched(form: str, rate_hz: int, *, streaming: bool) -> Encoder:
        opened.append((form, streaming))
        return open_encoder(form, rate_hz, streaming=streaming)

    monkeypatch.setattr(encode, "open_encoder", watched)
    warm_encoders(24_000)
    assert set(opened) == {(form, streaming) for form in FORMATS for streaming in (True, False)}


def supervised(load: Callable[[], Engine], warm: Callable[[Engine], None]) -> EngineSupervisor:
    """A supervisor with a channel to which no front end connects."""
    folder = tempfile.TemporaryDirectory()
    supervisor = EngineSupervisor(load, Path(folder.name) / "engine", Admission(ServeOptions()), warm)
    weakref.finalize(supervisor, folder.cleanup)
    return supervisor


def test_an_engine_is_shown_only_when_it_is_warm(tiny_checkpoints: Mapping[str, Path]) -> None:
    warming, go_on = threading.Event(), threading.Event()

    def slowly(_: Engine) -> None:
        warming.set()
        assert go_on.wait(20)

    supervisor = supervised(lambda: sonant.load(tiny_checkpoints["custom"], device="cpu"), slowly)
    supervisor.start()
    assert warming.wait(20) and not supervisor.ready
    with pytest.raises(EngineClosed, match="not ready"):
        _ = supervisor.engine
    go_on.set()
    wait_for(lambda: supervisor.ready, 10)
    supervisor.close()
    assert not supervisor.ready


def test_an_engine_that_cannot_be_warmed_is_closed_and_tried_again(tiny_checkpoints: Mapping[str, Path]) -> None:
    tried: list[Engine] = []

    def at_first_not(engine: Engine) -> None:
        tried.append(engine)
        if len(tried) == 1:
            raise RuntimeError("cold")

    supervisor = supervised(lambda: sonant.load(tiny_checkpoints["custom"], device="cpu"), at_first_not)
    supervisor.start()
    wait_for(lambda: supervisor.ready, 20)
    assert len(tried) == 2
    with pytest.raises(EngineClosed):
        tried[0].stream("hello")
    supervisor.close()


class Failing:
    """As much of an engine as a supervisor uses; it fails when told to, and is part of a reference cycle."""

    def __init__(self) -> None:
        self.me, self.fail = self, threading.Event()
        self.device, self.loop = torch.device("cpu"), SimpleNamespace()

    def join(self) -> None:
        self.fail.wait(20)

    def close(self) -> None:
        self.fail.set()


class Loads:
    """Loads failing engines, and notes how many earlier ones are still held by then."""

    def __init__(self) -> None:
        self.loaded: list[weakref.ref[Failing]] = []
        self.held: list[int] = []

    def __call__(self) -> Engine:
        self.held.append(sum(one() is not None for one in self.loaded))
        engine = Failing()
        self.loaded.append(weakref.ref(engine))
        return engine  # type: ignore[return-value]


def test_an_engine_that_failed_is_given_back_before_another_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise there would have to be room for both."""
    monkeypatch.setattr(engine_supervisor, "gc", gc)
    loads = Loads()
    supervisor = supervised(loads, lambda _: None)
    supervisor.start()
    wait_for(lambda: supervisor.ready)
    supervisor.engine.fail.set()  # type: ignore[attr-defined]
    wait_for(lambda: supervisor.ready and len(loads.loaded) == 2)
    supervisor.close()
    assert loads.held == [0, 0]


def test_an_engine_that_front_ends_cannot_reach_is_given_back_and_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_supervisor, "gc", gc)
    loads = Loads()

    class Loop(asyncio.SelectorEventLoop):
        async def create_unix_server(self, *given: Any, **options: Any) -> Any:
            if len(loads.loaded) == 1:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return await super().create_unix_server(*given, **options)

    monkeypatch.setattr(engine_port, "_event_loop", Loop)
    monkeypatch.setattr(engine_supervisor.logger, "exception", lambda *_: None)  # pytest keeps what it is given
    threads = threading.active_count()
    supervisor = supervised(loads, lambda _: None)
    supervisor.start()
    wait_for(lambda: supervisor.ready)
    assert loads.held == [0, 0] and supervisor.path.exists()
    supervisor.close()
    assert threading.active_count() == threads


def test_draining_refuses_the_new_and_keeps_the_old(tiny_checkpoints: Mapping[str, Path]) -> None:
    supervisor = supervised(lambda: sonant.load(tiny_checkpoints["custom"], device="cpu"), warm_up)
    supervisor.start()
    wait_for(lambda: supervisor.ready, 20)
    stream = supervisor.engine.stream("hello the world", seed=1, max_frames=30)
    supervisor.drain()
    with pytest.raises(EngineClosed, match="shutting down"):
        _ = supervisor.engine
    assert len(stream.result().frames) > 0
    supervisor.close()
