"""The SQLite index of a voice store: a voice exists if, and only if, it has a row here.

A rollback journal, not WAL: WAL needs memory that all processes share, so it corrupts on a folder that several
machines mount, while the rollback journal asks only for file locks. Writes are rare enough that its slower commit
does not matter. The journal file is kept between writes (PERSIST): a commit then depends on no folder entry that a
power cut could bring back, and on a full disk there is still a journal to delete voices with.

A connection lives for one transaction. That costs a fraction of a millisecond, and makes threads, forks and a
restored backup need no thought.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sonant.errors import StoreError

SCHEMA_VERSION = 1
_SCHEMA = (
    """CREATE TABLE consents (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        language TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        recording TEXT NOT NULL
    )""",
    """CREATE TABLE voices (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        name_key TEXT NOT NULL UNIQUE,
        created_at INTEGER NOT NULL,
        kind TEXT NOT NULL,
        model TEXT NOT NULL,
        embedding_size INTEGER NOT NULL,
        consent_id TEXT REFERENCES consents (id),
        consent_statement TEXT,
        language TEXT,
        clip_s REAL,
        file TEXT NOT NULL,
        file_bytes INTEGER NOT NULL,
        clip_file TEXT
    )""",
    "CREATE INDEX voices_by_consent ON voices (consent_id)",
)


class StoreIndex:
    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self.path, self.busy_timeout_s = path.resolve(), busy_timeout_s

    def open(self, check_new: Callable[[], None]) -> None:
        """Make the tables if there are none, after `check_new`; refuse an index that we cannot understand."""
        if self.path.exists():
            with self.reading() as db:
                version = _version(db)
            if version == SCHEMA_VERSION:
                return  # nothing to write, so a store on a read-only disk can be read
            if version > SCHEMA_VERSION:
                raise StoreError(
                    f"{self.path.name} was written by a newer Sonant (schema {version}, this one knows "
                    f"{SCHEMA_VERSION}); upgrade, or use another folder"
                )
        with self._transaction("BEGIN IMMEDIATE", "rwc") as db:
            if _version(db):
                return  # another process was first
            check_new()
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._transaction("BEGIN", "rw") as db:
            yield db

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The store's write lock, across processes, from the first line on. Durable when the block has ended."""
        with self._transaction("BEGIN IMMEDIATE", "rw") as db:
            yield db

    @contextmanager
    def _transaction(self, begin: str, mode: str) -> Iterator[sqlite3.Connection]:
        try:
            # as_uri escapes what the URI form would read as options
            uri = f"{self.path.as_uri()}?mode={mode}"
            with closing(sqlite3.connect(uri, self.busy_timeout_s, isolation_level=None, uri=True)) as db:
                db.row_factory = sqlite3.Row
                db.execute("PRAGMA journal_mode = PERSIST")
                db.execute("PRAGMA synchronous = FULL")
                db.execute("PRAGMA foreign_keys = ON")
                db.execute(begin)
                yield db
                db.execute("COMMIT")  # without it, closing rolls back
        except sqlite3.Error as e:
            raise StoreError(f"the voice store's index {self.path.name} cannot be used: {e}") from e


def wanted_files(db: sqlite3.Connection) -> set[str]:
    """Every file that some row needs."""
    rows = db.execute("SELECT file FROM voices UNION SELECT clip_file FROM voices UNION SELECT recording FROM consents")
    return {name for (name,) in rows if name is not None}


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])
