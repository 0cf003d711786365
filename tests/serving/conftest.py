"""A real server on a real socket, on the tiny checkpoint."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
import uvicorn

import sonant
from sonant import Engine, EngineConfig, Sampling
from sonant.models.description import Description
from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint
from sonant.models.registry import describe
from sonant.serving import engine_supervisor
from sonant.serving.app import create_app
from sonant.serving.engine_supervisor import EngineSupervisor
from sonant.serving.options import ServeOptions
from sonant.serving.server import server_for
from sonant.serving.warm_up import warm_up
from sonant.types import SpeechRequest
from toy_family.model import ToyModel
from toy_family.recording import RecordingToy, WatchedToy


@dataclass(frozen=True)
class Served:
    url: str
    supervisor: EngineSupervisor
    server: uvicorn.Server

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    def post(self, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/audio/speech", json=body, timeout=60)


Serve = Callable[..., Served]


@pytest.fixture(scope="session", autouse=True)
def uncollected() -> Iterator[None]:
    """A server walks over all there is, twice, before it is shown: of what pytest has loaded that takes half a second.

    Whether an engine that failed is given back is asked in test_ready.py, with a collector that works.
    """
    with pytest.MonkeyPatch.context() as patch:
        still = SimpleNamespace(collect=lambda: 0, freeze=gc.freeze, unfreeze=gc.unfreeze)
        patch.setattr(engine_supervisor, "gc", still)
        yield


@pytest.fixture(scope="session")
def tiny_checkpoints(tiny_checkpoints: Mapping[str, Path], few_codebooks: Mapping[str, Path]) -> Mapping[str, Path]:
    """In this folder those of few codebooks: a server does the same with them at less than half the cost."""
    return {**tiny_checkpoints, **few_codebooks}


@pytest.fixture(scope="session")
def checkpoints(tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The tiny ones, and "endless": one that never stops by itself."""
    endless = tmp_path_factory.mktemp("endless") / "checkpoint"
    write_checkpoint(endless, kind="custom_voice", eos_gain=0.0, code_groups=4)
    return {**tiny_checkpoints, "endless": endless}


@contextmanager
def servers(checkpoints: Mapping[str, Path]) -> Iterator[Serve]:
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(
        checkpoint: str = "custom", engine: dict[str, Any] | None = None, warm: bool = False, **options: Any
    ) -> Served:
        roomy = {"kv_tokens": 8192} if checkpoint == "endless toy" else {}  # for thousands of frames in one row
        config = EngineConfig(**{**roomy, **(engine or {})})
        load, described = _checkpoint(checkpoint, checkpoints, config)
        supervisor = EngineSupervisor(load, warm_up if warm else lambda _: None)
        serve_options = ServeOptions(port=0, log_level="warning", **options)
        server = server_for(create_app(supervisor, serve_options, described, "tiny"), serve_options)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        running.append((server, thread))
        deadline = time.monotonic() + 30
        while not (server.started and supervisor.ready):
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        return Served(f"http://127.0.0.1:{port}", supervisor, server)

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(20)


class EndlessToy(WatchedToy):
    """Speaks until its budget ends, at a tenth of what a frame of the tiny checkpoints costs."""

    def before(self, request: SpeechRequest) -> SpeechRequest:
        return replace(request, sampling=Sampling(**{"stop_chance": 0.0, **request.sampling}))


TOYS: Mapping[str, Callable[[EngineConfig, torch.device], ToyModel]] = {
    "toy": ToyModel,
    "endless toy": EndlessToy,
    "dialogue toy": partial(RecordingToy, context_segments=2, most_speakers=3),
}


def _checkpoint(
    name: str, checkpoints: Mapping[str, Path], config: EngineConfig
) -> tuple[Callable[[], Engine], Description]:
    if name in TOYS:
        model = TOYS[name]
        device = torch.device("cpu")
        shape = {"voices": (), "languages": (), "clones": True, "designs": False}
        described = Description("toy", "toy", "tiny", **shape, sample_rate=48_000, frame_rate=25.0)
        return lambda: Engine(model(config, device), config, device), described
    return lambda: sonant.load(checkpoints[name], device="cpu", config=config), describe(checkpoints[name])


def break_engine(engine: Engine) -> None:
    """Its next step fails, as when a device falls off."""

    def broken(*_: object) -> None:
        raise RuntimeError("the device fell off")

    engine.model.begin_frame = broken  # type: ignore[assignment, method-assign]


@pytest.fixture
def serve(checkpoints: Mapping[str, Path]) -> Iterator[Serve]:
    """`serve(api_keys=("k",), engine={"max_rows": 2})` → a running server, stopped after the test.

    "toy" is the family made for tests, "endless toy" the cheapest that speaks on and on: 25 frames of 1920 samples
    a second, and "dialogue toy" speaks with up to three, and goes on from what was said before. Only a
    `warm` server has done all that is slow the first time.
    """
    with servers(checkpoints) as start:
        yield start


@pytest.fixture(scope="module")
def serve_once(checkpoints: Mapping[str, Path]) -> Iterator[Serve]:
    """The same, stopped after the last test of the file: for tests that leave a server as they found it."""
    with servers(checkpoints) as start:
        yield start


def wait_for(condition: Callable[[], bool], timeout_s: float = 5.0, *, every_s: float = 0.005) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(every_s)
