"""A replica: one engine, and the whole API over it. Ray Serve runs as many as there are GPUs.

It gets no requests before its engine has spoken once. Requests come from Ray's proxy straight into the app, on the
event loop of this process. The proxy limits the number of connections (see `docs/scale.md`); all other limits are our
own.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from sonant.bundled import bundled_voice
from sonant.config import EngineConfig
from sonant.errors import ConfigError
from sonant.serving.cluster.at_prefix import AtPrefix
from sonant.serving.cluster.engine_child import EngineChild
from sonant.serving.cluster.listener_load import ListenerLoad
from sonant.serving.idle_memory import IdleMemory, share_arenas
from sonant.serving.observability.log_format import configure_logging
from sonant.serving.observability.merged_metrics import merged
from sonant.serving.options import ModelOptions, ServeOptions
from sonant.serving.processes.scratch import scratch_folder
from sonant.serving.processes.setup import Setup

DEPLOYMENT = "SpeechReplica"
_TICK_S = 1.0
_PAGES_S = 5.0  # for the other replicas to report their metrics

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReplicaSetup:
    """What a replica is started with; the same for all of an application."""

    folder: Path | None  # of the checkpoint, on every machine; None: the built-in voice
    model: ModelOptions
    serving: ServeOptions
    engine: EngineConfig


class SpeechReplica:
    async def __init__(self, setup: ReplicaSetup) -> None:  # type: ignore[misc]  # Ray awaits it
        self._held = ExitStack()
        try:
            await self._load(setup)
        except BaseException:
            await asyncio.to_thread(self._held.close)
            raise
        self._idle_memory = IdleMemory()
        self._ticks = asyncio.create_task(self._tick())

    async def _load(self, setup: ReplicaSetup) -> None:
        """Load, and wait until the engine has spoken. What is made is held, so that it is closed if the rest fails."""
        from sonant.models.registry import describe, load_prompter
        from sonant.serving.app import create_app
        from sonant.serving.channel.engine_link import EngineLink
        from sonant.serving.cluster.replica_edge import use_own_connections

        share_arenas()
        folder = setup.folder or bundled_voice()
        if folder is None:
            raise ConfigError("no model was given, and this build has no voice of its own: name a folder as `model`")
        configure_logging(setup.serving.log_level, setup.serving.log_format)
        use_own_connections(setup.serving)
        process = Setup(
            folder=folder, scratch=self._held.enter_context(scratch_folder()), model=setup.model,
            serving=setup.serving, engine=setup.engine, host="", port=0,
        )  # fmt: skip
        self.engine = EngineChild(process)
        self._held.callback(self.engine.close)
        self.engine.start()
        prompter = await asyncio.to_thread(load_prompter, folder, setup.engine)
        await self.engine.ready()
        self.link = EngineLink(process.channel, prompter)
        self.load = ListenerLoad(self.link, setup.serving.max_first_audio_s)
        self.app_of_replica: FastAPI = create_app(self.link, setup.serving, describe(folder), folder.name)
        self.service = self.app_of_replica.state.service
        self.service.all_metrics = self._all_metrics

    def __serve_build_asgi_app__(self) -> AtPrefix:
        return AtPrefix(self.app_of_replica)

    def check_health(self) -> None:
        """Raise if only another replica can help. While an engine is being loaded again requests are answered 503."""
        self.engine.check()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return await self.load.figures()

    async def metrics_page(self) -> tuple[str, bytes]:
        """This replica's name and metrics, for the replica that is asked for those of all."""
        from ray import serve

        return serve.get_replica_context().replica_id.unique_id, await self.service.metrics_text()

    async def _all_metrics(self) -> bytes:
        """The metrics of all replicas; of this one alone if the others cannot be asked, or one of them is too late."""
        from ray import serve
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        context = serve.get_replica_context()
        try:
            # The first call asks the controller and waits, which would hold up this loop and all that it streams.
            handle = await asyncio.to_thread(serve.get_deployment_handle, context.deployment, context.app_name)
            pages = await handle.broadcast("metrics_page").results_async(timeout_s=_PAGES_S, return_exceptions=True)
        except (TimeoutError, RayError, RayServeException) as e:
            logger.warning("/metrics is of this replica only: %s", e)
            pages = [await self.metrics_page()]
        told = dict(page for page in pages if not isinstance(page, BaseException))  # A replica that ends may raise.
        return await asyncio.to_thread(merged, told)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._idle_memory.look(self.service.in_flight.running, self.service.bodies.held_bytes, loop.time())
            await asyncio.sleep(_TICK_S)

    async def __del__(self) -> None:
        """Called by Ray after the last of its listeners has heard the end, or the time for that is up."""
        if hasattr(self, "_ticks"):
            self._ticks.cancel()
        await asyncio.to_thread(self._held.close)
