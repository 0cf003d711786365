"""`sonant serve`: OpenAI's speech API, served by one model or several."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sonant.cli.interrupt import interrupt_waits
from sonant.cli.model_folder import given_once, model_folder
from sonant.cli.settings import CONFIG_VARIABLE, add_settings, gather, misspelt, settings_of
from sonant.config import EngineConfig
from sonant.cores import usable_cores
from sonant.errors import ConfigError
from sonant.serving.cluster.cluster_options import ClusterOptions
from sonant.serving.options import ModelOptions, ServeOptions
from sonant.serving.start_check import check_start, page_address

EXAMPLES = """
sonant serve model
sonant serve model --host 0.0.0.0 --port 8000 --api-key "$KEY" --device cuda
sonant serve model another-model
sonant serve --config sonant.toml
sonant serve model --replicas 8 --host 0.0.0.0
curl localhost:8000/v1/audio/speech -H 'content-type: application/json' -d '{"input": "Hello."}' -o hello.mp3
"""

OWNERS = {"model": ModelOptions, "server": ServeOptions, "replicas": ClusterOptions, "engine": EngineConfig}
_MANY_CORES = 8
_MOST_FRONT_ENDS = 8

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders", metavar="MODEL", nargs="*",
        help="the same as --model; of several, clients choose one by its folder's name, and each has a share of the "
        "GPU's memory",
    )  # fmt: skip
    parser.add_argument(
        "--config", metavar="FILE", type=Path,
        help="TOML file with any of the options below, each named like its environment variable, in lower case and "
        f"without SONANT_; the environment overrides the file, and the command line overrides both ({CONFIG_VARIABLE})",
    )  # fmt: skip
    for title, owner in OWNERS.items():
        add_settings(parser.add_argument_group(title), settings_of(owner))


def run(args: argparse.Namespace) -> int:
    if missing := missing_packages():
        raise ConfigError(f"serving needs {missing[0]}; install it with: pip install 'sonant[serve]'")
    from sonant.serving.limits.keys import exposure
    from sonant.serving.observability.log_format import configure_logging

    (model, options, config), cluster = read_options(args), read_cluster(args)
    configure_logging(options.log_level, options.log_format)
    for warning in exposure(options):
        logger.warning("%s", warning)
    check_start(options)
    folders = [model_folder(model.model), *map(model_folder, args.folders[1:])]
    check_names(folders)
    folder = folders[0]
    if cluster.wanted:
        if len(folders) > 1:
            raise ConfigError(
                "replicas serve one model only; start an application for each, and join them with --other-model"
            )
        return _on_ray(folder, model, options, cluster, config)
    workers = front_ends_for(usable_cores()) if options.workers is None else options.workers
    if workers == 0 and len(folders) == 1:
        return _in_one_process(folder, model, options, config)
    options, config = shared(options, config, len(folders))
    return _in_processes(folders, model, options, config, max(1, workers))


def _in_one_process(folder: Path, model: ModelOptions, options: ServeOptions, config: EngineConfig) -> int:
    with interrupt_waits():
        from sonant.engine.engine import Engine
        from sonant.loading import load as load_engine
        from sonant.loading import pick_device
        from sonant.models.registry import describe, load_prompter
        from sonant.serving.cpu_threads import use_threads
        from sonant.serving.processes.one_process import one_process

    pick_device(model.device)  # raises at once if there is no such GPU
    use_threads(model.threads, model.device)

    def load() -> Engine:
        kinds: dict[str, Any] = {"device": model.device, "dtype": model.dtype, "codec_dtype": model.codec_dtype}
        return load_engine(folder, config=config, sound="int16", **kinds)

    prompter, described = load_prompter(folder, config), describe(folder)
    with one_process(load, prompter, options, described, folder.name) as (server, supervisor):
        if options.port:
            logger.info("the page will be at %s", page_address(options.host, options.port))
        server.run()
    if supervisor.fatal is not None:
        raise supervisor.fatal
    return 0 if server.started else 1


def check_names(folders: list[Path]) -> None:
    """Models are told apart by the names of their folders."""
    names = [folder.absolute().name for folder in folders]
    if twice := [name for n, name in enumerate(names) if name in names[:n]]:
        raise ConfigError(f"two models are called {twice[0]!r}, the name that clients ask for: rename a folder")


def shared(options: ServeOptions, config: EngineConfig, models: int) -> tuple[ServeOptions, EngineConfig]:
    """Divide the GPU's memory among the models that are awake. If all of them may be, none ever has to sleep."""
    awake = models if options.awake_models is None else options.awake_models
    if awake >= models:
        options, awake = replace(options, awake_models=None), models
    return options, config if awake == 1 else replace(config, gpu_share=config.gpu_share / awake)


def _in_processes(
    folders: list[Path], model: ModelOptions, options: ServeOptions, config: EngineConfig, workers: int
) -> int:
    from sonant.serving.processes.launcher import Launcher
    from sonant.serving.processes.scratch import scratch_folder
    from sonant.serving.processes.setup import Setup
    from sonant.serving.processes.shared_port import bound

    with bound(options.host, options.port) as holder, scratch_folder() as scratch:
        host, port = holder.getsockname()[:2]
        first, *others = [folder.absolute() for folder in folders]
        setup = Setup(
            folder=first, beside=tuple(others), scratch=scratch, model=model, serving=options, engine=config,
            host=host, port=port,
        )  # fmt: skip
        return asyncio.run(Launcher(setup, workers).run())


def _on_ray(
    folder: Path, model: ModelOptions, options: ServeOptions, cluster: ClusterOptions, config: EngineConfig
) -> int:
    if find_spec("ray") is None:
        raise ConfigError("replicas need Ray Serve; install it with: pip install 'sonant[ray]'")
    if options.port == 0 or options.workers is not None:
        raise ConfigError("with replicas, --port must be a number over 0, and --workers cannot be set")
    from sonant.serving.cluster.replica import ReplicaSetup
    from sonant.serving.cluster.run import run_on_ray

    setup = ReplicaSetup(folder=folder.absolute(), model=model, serving=options, engine=config)
    return run_on_ray(setup, cluster)


def front_ends_for(cores: int) -> int:
    """Few enough that each has a core of its own beside an engine on a GPU. None on few cores: these are left to the
    engine, which is then assumed to run on the CPU."""
    return 0 if cores < _MANY_CORES else min(_MOST_FRONT_ENDS, (cores - 4) // 2)


def missing_packages() -> list[str]:
    return [name for name in ("fastapi", "uvicorn", "msgspec", "prometheus_client", "av") if find_spec(name) is None]


def read_options(args: argparse.Namespace) -> tuple[ModelOptions, ServeOptions, EngineConfig]:
    args.model = given_once(args.folders[0] if args.folders else None, args.model)
    found = _read(args)
    for warning in misspelt(settings_of(*OWNERS.values()), os.environ.keys() - {CONFIG_VARIABLE}):
        logger.warning("%s", warning)
    return ModelOptions(**found[ModelOptions]), ServeOptions(**found[ServeOptions]), EngineConfig(**found[EngineConfig])


def read_cluster(args: argparse.Namespace) -> ClusterOptions:
    return ClusterOptions(**_read(args)[ClusterOptions])


def _read(args: argparse.Namespace) -> dict[type, dict[str, Any]]:
    settings = settings_of(*OWNERS.values())
    file = args.config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    return gather(settings, args, os.environ, file)
