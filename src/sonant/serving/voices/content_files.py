"""Files named by the SHA-256 of their content: whole or absent, and never changed.

Invariant: a file gets its name, or loses it, only under the index's write lock. So no process can index a file that
another is removing, and a named file without a row is either about to vanish or the leftover of a crash.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sonant.errors import StoreError
from sonant.serving.voices.store_index import StoreIndex, wanted_files

logger = logging.getLogger(__name__)

NAMED = re.compile(r"[0-9a-f]{64}\.[a-z]+")
_STAGED = re.compile(r"\.[0-9a-f]{16}\.part")


class Lost(StoreError):
    """The file is gone or damaged, and will not come back by itself."""


class ContentFiles:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def staging(self, index: StoreIndex) -> Iterator[Staging]:
        """Write files under temporary names. If the block fails they are removed, published or not."""
        with self._guarded(index, Staging(self.folder)) as staging:
            yield staging

    @contextmanager
    def _guarded(self, index: StoreIndex, staging: Staging) -> Iterator[Staging]:
        try:
            yield staging
        except BaseException:
            staging.discard()
            if staging.published:
                self.release(index, staging.published)  # They stay if the row is there after all.
            raise

    def path(self, name: str) -> Path:
        """The file of that name, after a check that its content still has the hash in the name, else `Lost`. What may
        pass, such as too many open files, is another `StoreError`."""
        path = self.folder / name
        try:
            found = _sha256(path)
        except FileNotFoundError:
            raise Lost(f"{name} is missing") from None
        except OSError as e:
            raise StoreError(f"{name} cannot be read: {e.strerror}") from e
        if found != name.partition(".")[0]:
            raise Lost(f"{name} is damaged: its content is no longer what was stored")
        return path

    def intact(self, name: str, size: int) -> bool:
        """Whether the file is there and of the right size: a cheap check, for lists."""
        try:
            return (self.folder / name).stat().st_size == size
        except OSError:
            return False

    def release(self, index: StoreIndex, names: Collection[str]) -> None:
        """Remove those of the files that no row needs. Call it when the row that did is gone for good: in the other
        order a crash could leave a row without its file.
        """
        try:
            with index.writing() as db:
                for name in set(names) - wanted_files(db):
                    (self.folder / name).unlink(missing_ok=True)
        except (StoreError, OSError) as e:  # The caller has not failed, since the row is gone.
            logger.warning("files that nobody needs stay until the store is next opened: %s", e)

    def collect(self, index: StoreIndex, age_s: float) -> None:
        """Remove our files that no row needs. Young ones stay: another process may be about to publish them."""
        try:
            with index.writing() as db:
                self._remove_unwanted(wanted_files(db), age_s)
        except (StoreError, OSError) as e:  # Voices can still be read, on a read-only disk for example.
            logger.warning("leftovers in the voice store were not collected: %s", e)

    def _remove_unwanted(self, wanted: Collection[str], age_s: float) -> None:
        removed, youngest = 0, time.time() - age_s
        try:
            for entry in list(os.scandir(self.folder)):
                ours = NAMED.fullmatch(entry.name) or _STAGED.fullmatch(entry.name)
                with suppress(FileNotFoundError):  # another process may be doing the same
                    if ours and entry.name not in wanted and entry.stat(follow_symlinks=False).st_mtime < youngest:
                        os.unlink(entry.path)
                        removed += 1
        finally:
            if removed:
                logger.info("removed %d leftover files from the voice store", removed)

    def any_named(self) -> bool:
        return any(NAMED.fullmatch(name) for name in os.listdir(self.folder))


class Staging:
    """Files on disk, synced and hashed, that do not have their final names yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.published: set[str] = set()
        self._waiting: dict[str, Path] = {}  # final name → where it lies now

    def add(self, suffix: str, write: Callable[[Path], object]) -> tuple[str, int]:
        """Let `write` fill a file → the name it will have, and its size."""
        temporary = self.folder / f".{secrets.token_hex(8)}.part"
        try:
            write(temporary)
            _sync(temporary)
            name, size = f"{_sha256(temporary)}.{suffix}", temporary.stat().st_size
        except OSError as e:
            with suppress(OSError):
                temporary.unlink()
            raise StoreError(f"the voice store cannot be written: {e.strerror or e}") from e
        self._waiting[name] = temporary
        return name, size

    def publish(self) -> None:
        """Give the files their names, durably. Under the write lock."""
        try:
            for name in list(self._waiting):
                os.replace(self._waiting[name], self.folder / name)
                del self._waiting[name]
                self.published.add(name)
            _sync(self.folder)
        except OSError as e:
            raise StoreError(f"the voice store cannot be written: {e.strerror or e}") from e

    def discard(self) -> None:
        for temporary in self._waiting.values():
            with suppress(OSError):
                temporary.unlink()
        self._waiting.clear()


def make_folder(folder: Path) -> None:
    """Make a folder that only this user can read, since voices and consents are personal data. Its entry survives a
    power cut."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in missing:
        _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
