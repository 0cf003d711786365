"""Sonant as an application of Ray Serve: `import_path: sonant.serving.ray_app:app` in a Serve config.

`args` there are the options of `sonant serve`, named as in its config file; `docs/serving.md` has an example.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonant import strict
from sonant.config import EngineConfig
from sonant.errors import ConfigError
from sonant.serving.cluster.cluster_options import ClusterOptions
from sonant.serving.cluster.ray_settings import DRAIN_NOTICE_S
from sonant.serving.cluster.replica import DEPLOYMENT, ReplicaSetup, SpeechReplica
from sonant.serving.options import ModelOptions, ServeOptions

if TYPE_CHECKING:
    from ray.serve import Application

logger = logging.getLogger(__name__)

_MOST_ONGOING = 100_000  # The engine's own admission decides, and tells the client why.
_LEAVE_S = 10.0
_HEALTH_S = 5.0


def app(args: dict[str, Any]) -> Application:
    """The application that a Serve config builds."""
    model, serving, engine, cluster = options_from(args)
    folder = None if model.model is None else Path(model.model)
    setup = ReplicaSetup(folder=folder, model=model, serving=serving, engine=engine)
    return application(setup, cluster)


def application(setup: ReplicaSetup, cluster: ClusterOptions) -> Application:
    from ray import serve
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    number: dict[str, Any] = {"num_replicas": cluster.least}
    if cluster.max_replicas is not None:
        policy = AutoscalingPolicy(policy_function="sonant.serving.cluster.autoscaling:replicas_wanted")
        bounds = AutoscalingConfig(
            min_replicas=cluster.least, max_replicas=cluster.max_replicas, policy=policy,
            upscale_delay_s=5.0, downscale_delay_s=300.0, metrics_interval_s=2.0, look_back_period_s=6.0,
        )  # fmt: skip
        number = {"autoscaling_config": bounds}
    deployment = serve.deployment(
        name=DEPLOYMENT,
        ray_actor_options={"num_cpus": cluster.replica_cpus, "num_gpus": _gpus(setup.model.device, cluster)},
        max_ongoing_requests=_MOST_ONGOING,
        max_queued_requests=-1,
        health_check_period_s=_HEALTH_S,
        graceful_shutdown_wait_loop_s=0.5,
        logging_config={"enable_access_log": False},  # the request log says more
        graceful_shutdown_timeout_s=setup.serving.drain_s + DRAIN_NOTICE_S + _LEAVE_S,
        **number,
    )(serve.ingress()(SpeechReplica))
    return deployment.bind(setup)


def options_from(args: Mapping[str, Any]) -> tuple[ModelOptions, ServeOptions, EngineConfig, ClusterOptions]:
    owners = (ModelOptions, ServeOptions, EngineConfig, ClusterOptions)
    names = {f.name: owner for owner in owners for f in fields(owner)}
    strict.refuse_unknown(args, names, "args of the application", ConfigError, noun="option")

    def build(owner: type) -> Any:
        own = {name: value for name, value in args.items() if names[name] is owner}
        return strict.build(owner, own, "args of the application", error=ConfigError)

    return build(ModelOptions), build(ServeOptions), build(EngineConfig), build(ClusterOptions)


def _gpus(device: str, cluster: ClusterOptions) -> float:
    if cluster.replica_gpus is not None:
        return cluster.replica_gpus
    if device != "auto":
        return 0.0 if device == "cpu" else 1.0
    import ray

    if ray.cluster_resources().get("GPU", 0.0):
        return 1.0
    logger.warning("this Ray has no GPU now, so replicas speak on CPUs; if GPUs come later, set device to cuda")
    return 0.0
