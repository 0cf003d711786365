"""Short names of published checkpoints, as the model families list them."""

from __future__ import annotations

import re

from sonant.models.registry import family_module, family_names
from sonant.strict import did_you_mean

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def known_names() -> dict[str, str]:
    """All short names, each with its repository."""
    return {name: repo for family in family_names() for name, repo in family_module(family, "hub").NAMES.items()}


def repository_of(name: str) -> str | None:
    """The repository of a short name, or `name` itself if it has a repository's form; None: neither."""
    if _REPOSITORY.fullmatch(name) and not set(name.split("/")) & {".", ".."}:
        return name
    return known_names().get(name.lower())


def suggestion(name: str) -> str:
    """A name that may have been meant, as the end of a sentence; empty if there is none like it."""
    return did_you_mean(name, known_names())
