"""A real server on a real socket, on the tiny checkpoint."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

import sonant
from sonant import Engine, EngineConfig, Sampling
from sonant.models.description import Description
from sonant.models.prompt import Prompter
from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint
from sonant.models.registry import describe, load_prompter
from sonant.serving import engine_supervisor
from sonant.serving.channel.engine_link import EngineLink
from sonant.serving.channel.engine_port import EnginePort
from sonant.serving.engine_supervisor import EngineSupervisor
from sonant.serving.limits.admission import Admission
from sonant.serving.options import ServeOptions
from sonant.serving.processes.one_process import one_process
from sonant.serving.server import DrainingServer
from sonant.serving.warm_up import warm_up
from sonant.types import SpeechRequest
from toy_family.model import ToyModel
from toy_family.recording import RecordingToy, WatchedToy


@dataclass(frozen=True)
class Served:
    url: str
    supervisor: EngineSupervisor
    server: DrainingServer

    @property
    def link(self) -> EngineLink:
        return self.server.service.link

    def loaded_anew(self, first: Engine) -> bool:
        """Whether another engine has taken the place of this one, and the front end has it."""
        anew = self.supervisor.ready and self.supervisor.engine is not first
        return anew and self.link.ready and self.link.restarts == self.supervisor.restarts

    @property
    def admission(self) -> Admission:
        return self.supervisor.admission

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    def post(self, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/audio/speech", json=body, timeout=60)


Serve = Callable[..., Served]


@pytest.fixture(scope="session", autouse=True)
def uncollected() -> Iterator[None]:
    """Before it is ready, a server has the garbage collected twice, which takes half a second with all that pytest has
    loaded: here it does not. test_ready.py tests with a real collector that a failed engine's memory is given back.
    """
    with pytest.MonkeyPatch.context() as patch:
        still = SimpleNamespace(collect=lambda: 0, freeze=gc.freeze, unfreeze=gc.unfreeze)
        patch.setattr(engine_supervisor, "gc", still)
        yield


@pytest.fixture(scope="session")
def tiny_checkpoints(tiny_checkpoints: Mapping[str, Path], few_codebooks: Mapping[str, Path]) -> Mapping[str, Path]:
    """In this folder, those with few codebooks: a server does the same with them at less than half the cost."""
    return {**tiny_checkpoints, **few_codebooks}


@pytest.fixture(scope="session")
def checkpoints(tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The tiny ones, and "endless": one that never stops by itself."""
    endless = tmp_path_factory.mktemp("endless") / "checkpoint"
    write_checkpoint(endless, kind="custom_voice", eos_gain=0.0, code_groups=4)
    return {**tiny_checkpoints, "endless": endless}


@contextmanager
def servers(checkpoints: Mapping[str, Path]) -> Iterator[Serve]:
    running = ExitStack()

    def start(
        checkpoint: str = "custom", engine: dict[str, Any] | None = None, warm: bool = False, **options: Any
    ) -> Served:
        roomy = {"kv_tokens": 8192} if checkpoint == "endless toy" else {}  # for thousands of frames in one row
        config = EngineConfig(**{**roomy, **(engine or {})})
        load, prompter, described = _checkpoint(checkpoint, checkpoints, config)
        serve_options = ServeOptions(port=0, log_level="warning", **options)
        made = one_process(load, prompter, serve_options, described, "tiny", warm_up if warm else lambda _: None)
        server, supervisor = running.enter_context(made)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        running.callback(_stop, server, thread)
        served = Served("", supervisor, server)
        deadline = time.monotonic() + 30
        while not (server.started and served.link.ready):
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        return replace(served, url=f"http://127.0.0.1:{port}")

    with running:
        yield start


def _stop(server: DrainingServer, thread: threading.Thread) -> None:
    server.should_exit = True
    thread.join(20)


class EndlessToy(WatchedToy):
    """Speaks until its budget ends; a frame costs a tenth of one of a tiny checkpoint."""

    def before(self, request: SpeechRequest) -> SpeechRequest:
        return replace(request, sampling=Sampling(**{"stop_chance": 0.0, **request.sampling}))


TOYS: Mapping[str, Callable[[EngineConfig, torch.device], ToyModel]] = {
    "toy": ToyModel,
    "endless toy": EndlessToy,
    "dialogue toy": partial(RecordingToy, context_segments=2, most_speakers=3),
}


def _checkpoint(
    name: str, checkpoints: Mapping[str, Path], config: EngineConfig
) -> tuple[Callable[[], Engine], Prompter, Description]:
    if name in TOYS:
        device = torch.device("cpu")
        shape = {"voices": (), "languages": (), "clones": True, "designs": False}
        described = Description("toy", "toy", "tiny", **shape, sample_rate=48_000, frame_rate=25.0)
        first = [TOYS[name](config, device)]  # The front end's prompter is its, so that tests see what is asked.
        return (
            lambda: Engine(first.pop() if first else TOYS[name](config, device), config, device, "int16"),
            first[0].prompter,
            described,
        )
    folder = checkpoints[name]
    return (
        lambda: sonant.load(folder, device="cpu", config=config, sound="int16"),
        load_prompter(folder, config),
        describe(folder),
    )


def break_engine(engine: Engine) -> None:
    """Make its next step fail, as when a device falls off."""

    def broken(*_: object) -> None:
        raise RuntimeError("the device fell off")

    engine.model.begin_frame = broken  # type: ignore[assignment, method-assign]


@pytest.fixture
def serve(checkpoints: Mapping[str, Path]) -> Iterator[Serve]:
    """`serve(api_keys=("k",), engine={"max_rows": 2})` → a running server, stopped after the test.

    "toy" is the family made for tests; "endless toy" is the cheapest that speaks on and on, at 25 frames of 1920
    samples a second; "dialogue toy" speaks with up to three speakers, and goes on from what was said before. Only a
    `warm` server has done everything that is slow the first time.
    """
    with servers(checkpoints) as start:
        yield start


@pytest.fixture(scope="module")
def serve_once(checkpoints: Mapping[str, Path]) -> Iterator[Serve]:
    """Like `serve`, but stopped after the file's last test: for tests that leave a server as they found it."""
    with servers(checkpoints) as start:
        yield start


@pytest.fixture(scope="module")
def port() -> Iterator[EnginePort]:
    """The engine's end of a channel, with nobody connected to it."""
    config, device = EngineConfig(max_rows=4, kv_tokens=4096), torch.device("cpu")
    with TemporaryDirectory() as folder, Engine(ToyModel(config, device), config, device) as engine:
        opened = EnginePort(engine, Path(folder) / "engine", Admission(ServeOptions()))
        yield opened
        opened.close()


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0, *, every_s: float = 0.005) -> None:
    """Wait until it is true. The default timeout allows for a busy machine; a test of speed passes its own."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(every_s)
