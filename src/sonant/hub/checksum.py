"""The checksums that a hub has of its files: SHA-256 of large ones, git's blob hash of the others."""

from __future__ import annotations

import hashlib
from pathlib import Path

_CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    return _digest(hashlib.sha256(), path)


def git_blob_of(path: Path) -> str:
    return _digest(hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False), path)


def _digest(found: hashlib._Hash, path: Path) -> str:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
