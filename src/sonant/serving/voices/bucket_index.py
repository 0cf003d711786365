"""The index of voices in a bucket: the same SQLite file, read as a copy and replaced as a whole.

It has a row for each of some thousand voices at most, so it is some hundred kilobytes, and is written rarely. A writer
takes a lease, changes a copy, and replaces the index that it read with the copy. That only succeeds if nobody else
wrote meanwhile, so a writer that lost its lease loses its change too, and gets an error. A reader's copy is a second
old at most; a voice that is not in it is looked up again in a new copy before an error says so.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sonant.errors import StoreError
from sonant.serving.voices.bucket import Bucket, Changed, Same, keep_copy
from sonant.serving.voices.store_index import StoreIndex

KEY, LEASE = "index.sqlite", "index.lease"
FRESH_S = 1.0
LEASE_S = 5.0  # a lease whose tag has not changed for so long was left behind
_LOOK_S = 0.05


class BucketIndex(StoreIndex):
    def __init__(self, bucket: Bucket, busy_timeout_s: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sonant-voices-")  # for our copy; removed with this object
        super().__init__(Path(self._folder.name) / KEY, busy_timeout_s)
        self.bucket = bucket
        self._tag: str | None = None
        self._seen_s = -FRESH_S
        self._copying, self._writer = threading.Lock(), threading.Lock()

    def open(self, check_new: Callable[[], None]) -> None:
        if self._fetch():
            return super().open(check_new)
        super().open(check_new)
        try:
            self._tag = self.bucket.put(KEY, self.path.read_bytes(), absent=True)
        except Changed:  # Another server was first.
            self._fetch()
        return None

    def refresh(self) -> bool:
        return self._fetch()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        if time.monotonic() - self._seen_s > FRESH_S:
            self._fetch()
        with super().reading() as db:
            yield db

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        with self._writer, self._lease():
            self._fetch()
            read, work = self._tag, self.path.with_name(f"{secrets.token_hex(8)}.sqlite")
            try:
                keep_copy(work, self.path.read_bytes())
                with StoreIndex(work, self.busy_timeout_s).writing() as db:
                    # A tag is of the content. Who only removes files must change it too, or whoever lost the lease to
                    # them could index a file that is gone.
                    db.execute(f"PRAGMA application_id = {secrets.randbits(31)}")
                    yield db
                tag = self._put(work.read_bytes(), read)
                with self._copying:
                    os.replace(work, self.path)
                    self._tag = tag
            finally:
                for left in (work, work.with_name(f"{work.name}-journal")):
                    left.unlink(missing_ok=True)

    def _put(self, index: bytes, read: str | None) -> str:
        """Replace the index whose tag was `read` → the new tag."""
        try:
            return self.bucket.put(KEY, index, match=read)
        except Changed:
            # Perhaps by us: if a response is lost the S3 client sends again, and is told that the index has changed.
            found = self.bucket.get(KEY)
            if found is None or found[0] != index:
                raise StoreError("another server wrote to the voice store at the same time; try again") from None
            return found[1]

    def _fetch(self) -> bool:
        """Fetch the newest copy unless we have it; False: there is no index in the bucket."""
        with self._copying:
            try:
                found = self.bucket.get(KEY, unless=self._tag)
            except Same:
                self._seen_s = time.monotonic()
                return True
            if found is None:
                return False
            keep_copy(self.path, found[0])
            self._tag, self._seen_s = found[1], time.monotonic()
            return True

    @contextmanager
    def _lease(self) -> Iterator[None]:
        tag = self._take_lease(secrets.token_bytes(16))
        try:
            yield
        finally:
            with suppress(StoreError):
                if self.bucket.tag(LEASE) == tag:
                    self.bucket.delete(LEASE)

    def _take_lease(self, mine: bytes) -> str:
        deadline_s = time.monotonic() + self.busy_timeout_s
        seen, since_s = None, 0.0
        while True:
            with suppress(Changed):
                return self.bucket.put(LEASE, mine, absent=True)
            found, now_s = self.bucket.get(LEASE), time.monotonic()
            if found is not None and found[0] == mine:  # We hold it: the response was lost.
                return found[1]
            held = None if found is None else found[1]
            if held != seen:
                seen, since_s = held, now_s
            elif held is not None and now_s - since_s > LEASE_S:
                with suppress(Changed):
                    return self.bucket.put(LEASE, mine, match=held)
            if now_s > deadline_s:
                raise StoreError("the voice store is busy; try again in a moment")
            time.sleep(_LOOK_S)
