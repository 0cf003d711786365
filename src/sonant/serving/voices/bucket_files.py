"""The voice store's files in a bucket, with a local folder that has a copy of each file that was used here.

Files are named by their content and never change, so a copy is valid if its hash matches. A file that another server
deleted is not asked for, since its row is gone; its copy is removed when the store is next opened here.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from sonant.errors import StoreError
from sonant.serving.voices.bucket import Bucket, keep_copy
from sonant.serving.voices.content_files import NAMED, ContentFiles, Lost, Staging
from sonant.serving.voices.store_index import StoreIndex, wanted_files

_FOLDER = "files"

logger = logging.getLogger(__name__)


class BucketFiles(ContentFiles):
    def __init__(self, folder: Path, bucket: Bucket) -> None:
        """`folder` holds the copies."""
        super().__init__(folder)
        self.bucket = bucket

    @contextmanager
    def staging(self, index: StoreIndex) -> Iterator[Staging]:
        with self._guarded(index, BucketStaging(self.folder, self.bucket)) as staging:
            yield staging

    def path(self, name: str) -> Path:
        try:
            return super().path(name)
        except StoreError:  # It was never here, or is damaged here.
            found = self.bucket.get(f"{_FOLDER}/{name}")
            if found is None:
                raise Lost(f"{name} is missing in the bucket of voices") from None
            keep_copy(self.folder / name, found[0])
            return super().path(name)

    def intact(self, name: str, size: int) -> bool:
        """Called for every voice of a list, so a file without a copy here is assumed to be in the bucket."""
        return super().intact(name, size) or not (self.folder / name).exists()

    def release(self, index: StoreIndex, names: Collection[str]) -> None:
        try:
            with index.writing() as db:
                for name in set(names) - wanted_files(db):
                    self.bucket.delete(f"{_FOLDER}/{name}")
                    (self.folder / name).unlink(missing_ok=True)
        except (StoreError, OSError) as e:  # The caller has not failed, since the row is gone.
            logger.warning("files that nobody needs stay until the store is next opened: %s", e)

    def collect(self, index: StoreIndex, age_s: float) -> None:
        """Remove copies that no row needs any more, of voices that another server deleted for example. Look into the
        bucket before its lease is taken, since there is seldom anything to collect."""
        try:
            with index.reading() as db:
                wanted = wanted_files(db)
            self._remove_unwanted(wanted, age_s)
            left = [name for name, old_s in self._kept().items() if old_s > age_s and name not in wanted]
            if left:
                self.release(index, left)
        except (StoreError, OSError) as e:
            logger.warning("leftovers in the bucket of voices were not collected: %s", e)

    def any_named(self) -> bool:
        return bool(self._kept())

    def _kept(self) -> dict[str, float]:
        """Our files in the bucket, with their ages in seconds."""
        return {name: old_s for name, old_s in self.bucket.ages(_FOLDER).items() if NAMED.fullmatch(name)}


class BucketStaging(Staging):
    def __init__(self, folder: Path, bucket: Bucket) -> None:
        super().__init__(folder)
        self.bucket = bucket

    def publish(self) -> None:
        for name, waiting in self._waiting.items():
            self.published.add(name)
            self.bucket.put(f"{_FOLDER}/{name}", waiting.read_bytes())
        super().publish()
