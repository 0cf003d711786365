"""`sonant serve` on Ray: starts Ray or joins it, deploys, and takes all of it down again when it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping

from sonant.errors import ConfigError
from sonant.serving.cluster.cluster_options import LOCAL, ClusterOptions
from sonant.serving.cluster.ray_settings import ray_environment
from sonant.serving.cluster.replica import ReplicaSetup
from sonant.serving.start_check import page_address

_KEEP_ALIVE_S = 75  # as without Ray, see `server.py`

logger = logging.getLogger(__name__)


def run_on_ray(setup: ReplicaSetup, cluster: ClusterOptions) -> int:
    """Until a signal comes, or the application cannot be deployed."""
    # Ray reads these when it is imported, and its processes inherit them; what the operator has set stays.
    for name, value in ray_environment(setup.serving, cluster.route).items():
        os.environ.setdefault(name, value)
    import ray

    address = None if cluster.address == LOCAL else cluster.address
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=True, configure_logging=False)
    except ConnectionError as e:
        raise ConfigError(f"no Ray is running at {cluster.address}; `ray start --head` starts one: {e}") from None
    try:
        if address is not None:
            _check_settings(ray_environment(setup.serving, cluster.route))
        return asyncio.run(_deploy(setup, cluster))
    finally:
        ray.shutdown()


def _check_settings(wanted: Mapping[str, str]) -> None:
    """Of a Ray that others started: it works without them, but more slowly and with Ray's own limits."""
    import ray

    names = list(wanted)
    there = ray.get(ray.remote(num_cpus=0)(lambda: {name: os.environ.get(name) for name in names}).remote())
    missing = [name for name, value in wanted.items() if there[name] != value]
    if missing:
        logger.warning("this Ray was started without, or with another, %s; see deploy/ray.env", ", ".join(missing))


async def _deploy(setup: ReplicaSetup, cluster: ClusterOptions) -> int:
    from ray import serve
    from ray.serve.exceptions import RayServeException

    from sonant.serving.ray_app import application

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for what in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(what, stop.set)
    host, port = setup.serving.host, setup.serving.port
    http = {"host": host, "port": port, "keep_alive_timeout_s": _KEEP_ALIVE_S}
    await asyncio.to_thread(serve.start, http_options=http, proxy_location="EveryNode")
    deployed = asyncio.create_task(asyncio.to_thread(serve.run, application(setup, cluster), name="sonant"))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({deployed, stopped}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if deployed.done():
            deployed.result()
            logger.info("the page is at %s, with %d replicas on Ray", page_address(host, port), cluster.least)
            await stop.wait()
            logger.info("draining: %g s at most", setup.serving.drain_s)
    except RayServeException as e:
        logger.error("the replicas could not be started: %s", e)
        return 1
    finally:
        await asyncio.to_thread(serve.delete, "sonant")
        await asyncio.to_thread(serve.shutdown)
    return 0
