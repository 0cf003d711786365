"""Which version of a package is installed, if any, without importing it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def version_of(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
