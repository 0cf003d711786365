"""Which model and codec a command uses: as its options or the environment say, else the built-in voice."""

from __future__ import annotations

import os
from pathlib import Path

from sonant.bundled import bundled_voice
from sonant.cli.model_store import downloaded
from sonant.errors import ConfigError
from sonant.models.registry import titles

VARIABLE = "SONANT_MODEL"
CODEC_VARIABLE = "SONANT_CODEC"


def model_folder(given: str | None) -> Path:
    """`--model`, else SONANT_MODEL, else the built-in voice; an error if there is none."""
    folder = given_folder(given) or bundled_voice()
    if folder is None:
        raise ConfigError(
            "no model was given: use --model DIR (or set SONANT_MODEL) with the folder of a published "
            f"checkpoint ({titles()}), or its name once `sonant download` has fetched it; to try without one, "
            "`sonant random-model DIR` makes a model of random weights that babbles"
        )
    return folder


def given_once(place: str | None, option: str | None) -> str | None:
    """The model, for a command that takes it as MODEL or as --model."""
    if place is not None and option is not None:
        raise ConfigError("the model was given twice: as MODEL and with --model; give it once")
    return option if place is None else place


def given_codec(given: str | None) -> str | None:
    """`--codec`, else SONANT_CODEC; None: it is in the model's folder."""
    return os.environ.get(CODEC_VARIABLE) or None if given is None else given


def given_folder(given: str | None) -> Path | None:
    """`--model`, else SONANT_MODEL: a folder, or that of a checkpoint downloaded by this name; None: neither is set."""
    name = given or os.environ.get(VARIABLE)
    if not name:
        return None
    return Path(name) if _exists(Path(name)) else downloaded(name) or Path(name)


def _exists(path: Path) -> bool:
    """What cannot be looked at may be there: who opens it is told why it cannot be."""
    try:
        return path.exists()
    except OSError:
        return True
