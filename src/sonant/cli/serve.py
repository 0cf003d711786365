"""`sonant serve`: the OpenAI speech API over one model."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from sonant.cli.model_folder import given_once, model_folder
from sonant.cli.settings import CONFIG_VARIABLE, add_settings, gather, misspelt, settings_of
from sonant.config import EngineConfig
from sonant.errors import ConfigError
from sonant.models.registry import describe
from sonant.serving.options import ModelOptions, ServeOptions
from sonant.serving.start_check import check_start, page_address

if TYPE_CHECKING:
    from sonant.engine.engine import Engine

EXAMPLES = """
sonant serve model
sonant serve model --host 0.0.0.0 --port 8000 --api-key "$KEY" --device cuda
sonant serve --config sonant.toml
curl localhost:8000/v1/audio/speech -H 'content-type: application/json' -d '{"input": "Hello."}' -o hello.mp3
"""

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="MODEL", nargs="?", help="the same as --model")
    parser.add_argument(
        "--config", metavar="FILE", type=Path,
        help="TOML with any of the options below, each named as its environment variable is, in small letters and "
        f"without SONANT_; the environment goes before the file, and the command line before both ({CONFIG_VARIABLE})",
    )  # fmt: skip
    for title, owner in (("model", ModelOptions), ("server", ServeOptions), ("engine", EngineConfig)):
        add_settings(parser.add_argument_group(title), settings_of(owner))


def run(args: argparse.Namespace) -> int:
    try:
        from sonant.load import load as load_engine
        from sonant.load import pick_device
        from sonant.serving.app import create_app
        from sonant.serving.engine_supervisor import EngineSupervisor
        from sonant.serving.server import server_for
    except ModuleNotFoundError as e:
        raise ConfigError(f"serving needs {e.name}; install it with: pip install 'sonant[serve]'") from e
    model, options, config = read_options(args)
    logging.basicConfig(level=options.log_level.upper(), format="%(levelname)s: %(name)s: %(message)s")
    check_start(options)
    folder = model_folder(model.model)
    pick_device(model.device)  # without a GPU it will not come while we wait

    def load() -> Engine:
        types = {"dtype": model.dtype, "codec_dtype": model.codec_dtype}
        return load_engine(folder, device=model.device, config=config, **types)

    app = create_app(EngineSupervisor(load), options, describe(folder), folder.name)
    server = server_for(app, options)
    if options.port:
        logger.info("the page will be at %s", page_address(options.host, options.port))
    try:
        server.run()
    finally:
        app.state.service.close()  # also when uvicorn had no time to: no thread may step while Python ends
    return 0 if server.started else 1


def read_options(args: argparse.Namespace) -> tuple[ModelOptions, ServeOptions, EngineConfig]:
    args.model = given_once(args.folder, args.model)
    settings = settings_of(ModelOptions, ServeOptions, EngineConfig)
    file = args.config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    found = gather(settings, args, os.environ, file)
    for warning in misspelt(settings, os.environ.keys() - {CONFIG_VARIABLE}):
        logger.warning("%s", warning)
    return ModelOptions(**found[ModelOptions]), ServeOptions(**found[ServeOptions]), EngineConfig(**found[EngineConfig])
