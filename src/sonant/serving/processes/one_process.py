"""Engine and front end in one process, connected by the same channel: for small machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sonant.engine.engine import Engine
from sonant.models.description import Description
from sonant.models.prompt import Prompter
from sonant.serving.app import create_app
from sonant.serving.channel.engine_link import EngineLink
from sonant.serving.engine_supervisor import EngineSupervisor
from sonant.serving.idle_memory import keep_scratch
from sonant.serving.limits.admission import Admission
from sonant.serving.options import ServeOptions
from sonant.serving.processes.scratch import scratch_folder
from sonant.serving.server import DrainingServer, server_for
from sonant.serving.warm_up import warm_up


@contextmanager
def one_process(
    load: Callable[[], Engine],
    prompter: Prompter,
    options: ServeOptions,
    model: Description,
    model_name: str,
    warm: Callable[[Engine], None] = warm_up,
) -> Iterator[tuple[DrainingServer, EngineSupervisor]]:
    """Yield a server that is yet to be run, and the supervisor that loads its engine meanwhile."""
    keep_scratch()
    with scratch_folder() as folder:
        path = folder / "engine"
        supervisor = EngineSupervisor(load, path, Admission(options), warm)
        server = server_for(create_app(EngineLink(path, prompter), options, model, model_name), options)
        supervisor.on_fatal = server.end
        supervisor.start()
        try:
            yield server, supervisor
        finally:
            supervisor.close()  # even if uvicorn had no time to, since no thread may step while Python ends
