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
_LOOK_S = 30.0  # for some machine of the cluster to report its settings

NAME = "sonant"  # of the application

logger = logging.getLogger(__name__)


def run_on_ray(setup: ReplicaSetup, cluster: ClusterOptions) -> int:
    """Serve until a signal comes, or the application cannot be deployed → the exit code."""
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
    """Warn if a Ray that others started lacks our settings: it works, but more slowly and with Ray's own limits."""
    import ray
    from ray.exceptions import GetTimeoutError

    names = list(wanted)
    asked = ray.remote(num_cpus=0)(lambda: {name: os.environ.get(name) for name in names}).remote()
    try:
        there = ray.get(asked, timeout=_LOOK_S)
    except GetTimeoutError:
        logger.warning("no machine of this Ray told its settings within %g s; see deploy/ray.env", _LOOK_S)
        return
    missing = [name for name, value in wanted.items() if there[name] != value]
    if missing:
        logger.warning("this Ray was started without, or with another, %s; see deploy/ray.env", ", ".join(missing))


async def _deploy(setup: ReplicaSetup, cluster: ClusterOptions) -> int:
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for what in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(what, stop.set)
    try:
        return await _until_stopped(setup, cluster, stop)
    except (RayError, RayServeException, RuntimeError) as e:  # Ray raises the last of these if a deployment failed.
        logger.error("the replicas could not be started: %s", reason_of(e))
        return 1
    finally:
        await asyncio.to_thread(serve.delete, NAME)
        await asyncio.to_thread(serve.shutdown)


async def _until_stopped(setup: ReplicaSetup, cluster: ClusterOptions, stop: asyncio.Event) -> int:
    from ray import serve

    from sonant.serving.ray_app import application

    host, port = setup.serving.host, setup.serving.port
    http = {"host": host, "port": port, "keep_alive_timeout_s": _KEEP_ALIVE_S}
    await asyncio.to_thread(serve.start, http_options=http, proxy_location="EveryNode")
    deployed = asyncio.create_task(asyncio.to_thread(serve.run, application(setup, cluster), name=NAME))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({deployed, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not deployed.done():  # Its result is of no interest, since the application is taken down.
        deployed.add_done_callback(lambda task: task.cancelled() or task.exception())
        return 0
    stopped.cancel()
    deployed.result()
    logger.info("the page is at %s, with %d replicas on Ray", page_address(host, port), cluster.least)
    await stop.wait()
    logger.info("draining: %g s at most", setup.serving.drain_s)
    return 0


def reason_of(error: Exception) -> str:
    """HAProxy's own alerts if there are any, else the whole message: the cause is somewhere inside Ray's wrapping."""
    alerts = [line.strip() for line in str(error).splitlines() if line.startswith("[ALERT]")]
    return "; ".join(alerts) or str(error)
