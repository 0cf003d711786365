"""A store of an older Sonant is upgraded when it is opened, whoever else opens it and whenever a process dies."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from serving.test_voice_processes import Writers
from serving.voice_stores import files_of, put, store_in, wanted_of
from sonant.errors import StoreError, UnknownVoice

# Exactly as version 1 made it.
SCHEMA_1 = """
CREATE TABLE consents (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        language TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        recording TEXT NOT NULL
    );
CREATE TABLE voices (
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
    );
CREATE INDEX voices_by_consent ON voices (consent_id);
PRAGMA user_version = 1;
"""
CONSENT = f"cons_{1:024x}"
LAST_SEQ = 50  # the newest voices were deleted again


def voice_id(n: int) -> str:
    return f"voice_{n:024x}"


def keep(folder: Path, data: bytes, suffix: str) -> tuple[str, int]:
    name = f"{hashlib.sha256(data).hexdigest()}.{suffix}"
    (folder / "files" / name).write_bytes(data)
    return name, len(data)


def old_store(folder: Path, voices: int = 3) -> Path:
    """A store of version 1. Voice 0 rests on a consent, voice 1 keeps its clip, and others have a long statement."""
    (folder / "files").mkdir(parents=True)
    recording, _ = keep(folder, b"RIFF I agree", "recording")
    clip, _ = keep(folder, b"RIFF the clip", "clip")
    with sqlite3.connect(folder / "index.sqlite") as db:
        db.executescript(SCHEMA_1)
        db.execute("INSERT INTO consents VALUES (7, ?, 'Anna', 'en-US', 1700000000, ?)", (CONSENT, recording))
        for n in range(voices):
            meta = {"text": f"text {n}", "name": f"v{n}", "format": "sonant-voice"}
            tensors = {"embedding": np.full(64, n, np.float32), "codes": np.full((9, 16), n, np.int32)}
            file, size = keep(folder, save(tensors, metadata=meta), "safetensors")
            consent = (CONSENT, None) if n == 0 else (None, "she agreed " * (1 if n == 1 else 90))
            row: list[Any] = [10 + n, voice_id(n), f"v{n}", f"v{n}", 1700000000 + n, "clone", "m", 64, *consent]
            row += ["en", 1.5, file, size, clip if n == 1 else None]
            db.execute(f"INSERT INTO voices VALUES ({', '.join('?' * 15)})", row)
        db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'voices'", (LAST_SEQ,))
    db.close()
    return folder


def schema_of(folder: Path) -> tuple[int, list[str]]:
    db = sqlite3.connect(folder / "index.sqlite")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    columns = [name for _, name, *_ in db.execute("PRAGMA table_info(voices)")]
    db.close()
    return version, columns


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    made = Writers()
    yield made
    assert made.process.stdin is not None
    made.process.stdin.close()
    made.process.wait(10)


def test_nothing_is_lost_and_the_store_goes_on(tmp_path: Path) -> None:
    store = store_in(old_store(tmp_path / "old"))
    assert schema_of(tmp_path / "old") == schema_of_new(tmp_path / "new")
    records = store.list()
    assert [(r.id, r.name, r.created_at) for r in records] == [(voice_id(n), f"v{n}", 1700000000 + n) for n in range(3)]
    assert {(r.family, r.model, r.language, r.clip_s, r.broken) for r in records} == {(None, "m", "en", 1.5, False)}
    assert [(r.consent_id, r.consent_statement) for r in records[:2]] == [(CONSENT, None), (None, "she agreed ")]
    for n, record in enumerate(records):
        voice = store.load(record)
        assert (voice.text, voice.family) == (f"text {n}", None)
        assert (voice.tensors["embedding"] == n).all() and (voice.tensors["codes"] == n).all()
    clip = store.clip(records[1])
    assert clip is not None and clip.read_bytes() == b"RIFF the clip"
    (consent,) = store.consents.list()
    assert (consent.id, consent.name, consent.language) == (CONSENT, "Anna", "en-US")
    assert store.consents.recording(consent).read_bytes() == b"RIFF I agree"


def schema_of_new(folder: Path) -> tuple[int, list[str]]:
    store_in(folder)
    version, columns = schema_of(folder)
    assert version == 2 and "family" in columns and "embedding_size" not in columns
    return version, columns


def test_voices_are_added_and_deleted_after_it(tmp_path: Path) -> None:
    store = store_in(old_store(tmp_path))
    added = put(store, "new", consent_id=CONSENT)
    with store.index.reading() as db:
        assert db.execute("SELECT seq FROM voices WHERE id = ?", (added.id,)).fetchone()[0] == LAST_SEQ + 1
    store.delete(voice_id(0))
    store.delete(voice_id(1))
    with pytest.raises(UnknownVoice):
        store.get("v0")
    again = store_in(tmp_path)
    assert [r.name for r in again.list()] == ["v2", "new"] and again.load(added).text == "new"
    assert files_of(again) == wanted_of(again)


def test_servers_that_open_it_at_once_all_find_it_whole(tmp_path: Path, writers: Writers) -> None:
    for n in range(3):
        folder = old_store(tmp_path / str(n), 20)
        for _ in range(4):
            writers.start("open", folder)
        assert writers.wait() == [["opened", "20"]] * 4
        assert schema_of(folder)[0] == 2


def test_killed_at_any_statement_it_is_old_or_new_and_never_half(tmp_path: Path, writers: Writers) -> None:
    """A cache of one page makes SQLite write before the commit: the next process must roll back what is left."""
    versions, rolled_back = [1], 0
    while versions[-1] == 1:
        folder = old_store(tmp_path / str(len(versions)), 60)
        before = (folder / "index.sqlite").read_bytes()
        writers.start("die", folder, len(versions))
        writers.wait()
        touched = (folder / "index.sqlite").read_bytes() != before
        versions.append(schema_of(folder)[0])
        rolled_back += touched and versions[-1] == 1
        store = store_in(folder)
        assert [r.id for r in store.list()] == [voice_id(n) for n in range(60)] and schema_of(folder)[0] == 2
        assert not any(r.broken for r in store.list()) and store.load(store.get("v59")).text == "text 59"
        assert store.consents.get(CONSENT).name == "Anna" and files_of(store) == wanted_of(store)
    assert len(versions) > 8 and rolled_back > 3, "it was not killed in between"


def test_one_that_may_only_be_read_is_read(writers: Writers) -> None:
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to the user that root becomes
    try:
        old_store(folder / "store", 1)
        for path in (folder, folder / "store", *(folder / "store").rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        writers.start("readonly", folder / "store")
        said = [" ".join(words) for words in writers.wait()]
        assert said[:2] == ["listed v0", "loaded v0"] and said[4:] == ["still 1"]
        assert said[2].startswith("refused add the voice store cannot be written: its index has the schema 1")
        assert said[3].startswith("refused delete the voice store's index index.sqlite cannot be used")
        assert schema_of(folder / "store")[0] == 1
    finally:
        for path in (folder, folder / "store", folder / "store" / "files"):
            path.chmod(0o755)
        shutil.rmtree(folder)


def test_that_it_is_read_as_it_is_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old_store(tmp_path)
    connect = sqlite3.connect

    def read_only(database: str, *args: Any, **options: Any) -> sqlite3.Connection:
        return connect(database.replace("mode=rw", "mode=ro"), *args, **options)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "sonant.serving.voices.store_index"):
        patch.setattr(sqlite3, "connect", read_only)
        store = store_in(tmp_path)
        assert [r.family for r in store.list()] == [None] * 3 and store.load(store.get("v2")).text == "text 2"
        with pytest.raises(StoreError, match="make the folder writable"):
            put(store)
    told = [r.getMessage() for r in caplog.records if r.name.endswith("store_index")]
    assert len(told) == 1 and "older Sonant" in told[0] and "readonly" in told[0]
    store_in(tmp_path)  # opened by another server, which may write
    assert [r.name for r in store.list()] == ["v0", "v1", "v2"], "who only reads goes on"


def test_an_upgrade_that_fails_otherwise_is_no_fallback(tmp_path: Path) -> None:
    old_store(tmp_path)
    lock = sqlite3.connect(tmp_path / "index.sqlite", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        store_in(tmp_path, busy_timeout_s=0.1)
    lock.close()
    assert len(store_in(tmp_path).list()) == 3 and os.listdir(tmp_path / "files")
