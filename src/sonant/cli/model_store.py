"""Where downloaded checkpoints are stored, and which of them a name means."""

from __future__ import annotations

import os
from pathlib import Path

from sonant.errors import ConfigError
from sonant.hub.download import is_whole
from sonant.hub.names import known_names, repository_of

_VARIABLE = "XDG_CACHE_HOME"


def store_folder(repository: str) -> Path:
    caches = os.environ.get(_VARIABLE) or Path.home() / ".cache"
    return Path(caches) / "sonant" / "models" / repository


def downloaded(name: str) -> Path | None:
    """The folder of a checkpoint that was downloaded by this name; None: `name` means a folder, not a checkpoint.

    Nothing is fetched: if a known name was not downloaded yet, the error says how to do it.
    """
    repository = repository_of(name)
    if repository is None:
        return None
    folder = store_folder(repository)
    if is_whole(folder):
        return folder
    if name.lower() in known_names() or name in known_names().values():
        raise ConfigError(f"{name} has not been downloaded yet; run: sonant download {name}")
    return None
