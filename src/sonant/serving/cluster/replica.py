"""A replica: one engine, and the whole API over it. Ray Serve runs as many as there are GPUs.

It is shown to nobody before its engine has spoken once. Requests come from Ray's proxy straight into the app, on the
event loop of this process; how many connections there may be is the proxy's (see `ray_settings.py`), all other limits
are our own.
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
_PAGES_S = 5.0  # for the other replicas to tell their figures

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReplicaSetup:
    """What a replica is told; the same for all of an application."""

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
        """Until its engine has spoken. What is there by then is held, so that it goes if the rest cannot come."""
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
        """Raises where only another replica can help. An engine that is being loaded again answers 503 meanwhile."""
        self.engine.check()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return await self.load.figures()

    async def metrics_page(self) -> tuple[str, bytes]:
        """This replica's name and figures, for whichever of them is asked for those of all."""
        from ray import serve

        return serve.get_replica_context().replica_id.unique_id, await self.service.metrics_text()

    async def _all_metrics(self) -> bytes:
        """Of all replicas; of this one alone where the others cannot be asked, or one of them does not answer."""
        from ray import serve
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        context = serve.get_replica_context()
        try:
            # The first time it asks the controller and waits, which this loop, and all that it streams, must not.
            handle = await asyncio.to_thread(serve.get_deployment_handle, context.deployment, context.app_name)
            pages = await handle.broadcast("metrics_page").results_async(timeout_s=_PAGES_S, return_exceptions=True)
        except (TimeoutError, RayError, RayServeException) as e:
            logger.warning("/metrics is of this replica only: %s", e)
            pages = [await self.metrics_page()]
        told = dict(page for page in pages if not isinstance(page, BaseException))  # One that is going tells nothing.
        return await asyncio.to_thread(merged, told)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._idle_memory.look(self.service.in_flight.running, self.service.bodies.held_bytes, loop.time())
            await asyncio.sleep(_TICK_S)

    async def __del__(self) -> None:
        """After the last of its listeners has heard the end, or their time is up."""
        if hasattr(self, "_ticks"):
            self._ticks.cancel()
        await asyncio.to_thread(self._held.close)
