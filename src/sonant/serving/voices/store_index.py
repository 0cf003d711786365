"""The SQLite index of a voice store: a voice exists if, and only if, it has a row here.

A rollback journal, not WAL: WAL needs memory that all processes share, so it corrupts on a folder that several
machines mount, while the rollback journal asks only for file locks. Writes are rare enough that its slower commit
does not matter. The journal file is kept between writes (PERSIST): a commit then depends on no folder entry that a
power cut could bring back, and on a full disk there is still a journal to delete voices with.

A connection lives for one transaction. That costs a fraction of a millisecond, and needs no care for threads, forks
or a restored backup.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sonant.errors import StoreError

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 2  # 1 had the size of an embedding where 2 has the family that encoded the voice
_CONSENTS = """CREATE TABLE consents (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    language TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    recording TEXT NOT NULL
)"""
_VOICES = """CREATE TABLE {table} (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    name_key TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    model TEXT NOT NULL,
    family TEXT,
    consent_id TEXT REFERENCES consents (id),
    consent_statement TEXT,
    language TEXT,
    clip_s REAL,
    file TEXT NOT NULL,
    file_bytes INTEGER NOT NULL,
    clip_file TEXT
)"""
_BY_CONSENT = "CREATE INDEX voices_by_consent ON voices (consent_id)"
_KEPT = (
    "seq, id, name, name_key, created_at, kind, model, consent_id, consent_statement, language, clip_s, file, "
    "file_bytes, clip_file"
)
# The table is written anew, since SQLite before 3.35 cannot drop a column. `sqlite_sequence` goes along, so that a
# `seq` is never given twice.
_FROM_1_TO_2 = (
    _VOICES.format(table="voices_2"),
    f"INSERT INTO voices_2 ({_KEPT}) SELECT {_KEPT} FROM voices",
    "DELETE FROM sqlite_sequence WHERE name = 'voices_2'",
    "INSERT INTO sqlite_sequence (name, seq) SELECT 'voices_2', seq FROM sqlite_sequence WHERE name = 'voices'",
    "DROP TABLE voices",
    "ALTER TABLE voices_2 RENAME TO voices",
    _BY_CONSENT,
)
_UNWRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_FULL}


class StoreIndex:
    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self.path, self.busy_timeout_s = path.resolve(), busy_timeout_s
        self.version = SCHEMA_VERSION  # of the schema in the file; older only if it could not be upgraded

    def open(self, check_new: Callable[[], None]) -> None:
        """Make the tables if there are none, after `check_new`; bring older ones up to date; refuse newer ones."""
        if self.path.exists():
            with self.reading() as db:
                version = self._known_version(db)
            if version == SCHEMA_VERSION:
                return None  # There is nothing to write, so a store on a read-only disk can be read.
            if version:
                return self._upgrade(version)
        with self._transaction("BEGIN IMMEDIATE", "rwc") as db:
            if self._known_version(db):
                return None  # Another process was first.
            check_new()
            for statement in (_CONSENTS, _VOICES.format(table="voices"), _BY_CONSENT):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        return None

    def check_current(self) -> None:
        """Raises `StoreError` if the store is still in an older schema, in which it can only be read."""
        if self.version != SCHEMA_VERSION:
            raise StoreError(
                f"the voice store cannot be written: its index has the schema {self.version} of an older Sonant and "
                "could not be upgraded; make the folder writable and start again"
            )

    def _upgrade(self, version: int) -> None:
        """Upgrade in one transaction: a crash leaves the old schema whole, and a second process finds the new one."""
        try:
            with self._transaction("BEGIN IMMEDIATE", "rw") as db:
                if self._known_version(db) == SCHEMA_VERSION:
                    return
                for statement in _FROM_1_TO_2:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        except StoreError as e:
            cause = e.__cause__
            if not isinstance(cause, sqlite3.Error) or getattr(cause, "sqlite_errorcode", 0) & 0xFF not in _UNWRITABLE:
                raise
            self.version = version
            logger.warning("the voice store is read as it is, in the schema of an older Sonant: %s", cause)
        else:
            logger.info("the voice store was upgraded from schema %d to %d", version, SCHEMA_VERSION)

    def _known_version(self, db: sqlite3.Connection) -> int:
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self.path.name} was written by a newer Sonant (schema {version}, this one knows {SCHEMA_VERSION}); "
                "upgrade, or use another folder"
            )
        return version

    def refresh(self) -> bool:
        """Have reads see what others have written by now; False: they always do."""
        return False

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._transaction("BEGIN", "rw") as db:
            yield db

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the store's write lock, across processes, from the first line on. Durable when the block has ended."""
        with self._transaction("BEGIN IMMEDIATE", "rw") as db:
            yield db

    @contextmanager
    def _transaction(self, begin: str, mode: str) -> Iterator[sqlite3.Connection]:
        try:
            # `as_uri` escapes what the URI form would read as options.
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
