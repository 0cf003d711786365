"""Which files of a repository a family needs. The rest, of which there may be gigabytes, is not fetched."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

_LICENCE = ("LICENSE*", "LICENCE*")  # always fetched, since it must accompany the weights
_SHARD = re.compile(r"(.+)-\d+-of-\d+\.safetensors")


def select(paths: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The paths that match a pattern or name a licence; config.json last, since it makes the folder a checkpoint.

    Of the same weights in several forms only the one that the loaders prefer is kept: a whole file over shards, and
    safetensors over a pickle.
    """
    wanted = (*patterns, *_LICENCE)
    chosen = {path for path in paths if any(_matches(path, pattern) for pattern in wanted)}
    kept = [path for path in chosen if not _another_form(path) & chosen]
    return sorted(kept, key=lambda path: (path == "config.json", path))


def _matches(path: str, pattern: str) -> bool:
    return path.count("/") == pattern.count("/") and fnmatchcase(path, pattern)


def _another_form(path: str) -> set[str]:
    """The file that loaders would read instead of this one, if there is any."""
    if shard := _SHARD.fullmatch(path):
        return {f"{shard[1]}.safetensors"}
    if path.endswith(".safetensors.index.json"):
        return {path.removesuffix(".index.json")}
    return {f"{path.removesuffix('.pth')}.safetensors"} if path.endswith(".pth") else set()
