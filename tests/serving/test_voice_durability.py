"""Whatever is full, damaged, lost or foreign: acknowledged voices stay, and no half voice is ever seen."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from serving.voice_stores import files_of, put, store_in, wanted_of
from sonant.errors import StoreError, UnknownVoice


def test_the_row_comes_after_the_synced_file_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, events = store_in(tmp_path), []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(descriptor: int) -> None:
        target = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append(("sync", "folder" if target.is_dir() else "file", len(store.list())))
        fsync(descriptor)

    def spy_replace(source: Path, target: Path) -> None:
        events.append(("name", target.suffix, len(store.list())))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    put(store)
    assert events == [("sync", "file", 0), ("name", ".safetensors", 0), ("sync", "folder", 0)]
    assert len(store.list()) == 1


def test_a_file_that_one_server_indexes_is_not_removed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = store_in(tmp_path), store_in(tmp_path)
    first = put(here, "first", clip=b"the same clip")
    replace, deleting = os.replace, Thread(target=lambda: elsewhere.delete(first.id))

    def name_then_dawdle(source: Path, target: Path) -> None:
        replace(source, target)
        if target.suffix == ".clip":
            deleting.start()
            time.sleep(0.2)  # enough for the other to delete the clip as unused, but for the write lock

    monkeypatch.setattr(os, "replace", name_then_dawdle)
    second = put(here, "second", clip=b"the same clip")
    deleting.join()
    clip = here.clip(second)
    assert clip is not None and clip.read_bytes() == b"the same clip"
    assert here.list() == (second,)


@pytest.mark.parametrize("call", ["pathlib.Path.write_bytes", "os.fsync", "os.replace"])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    store = store_in(tmp_path)
    kept = put(store, "kept")
    before = files_of(store)

    def full(path: Any, *_: object) -> None:
        if call.endswith("write_bytes"):
            with open(path, "wb") as file:
                file.write(b"the first few bytes")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(call, full)
        with pytest.raises(StoreError, match="No space left"):
            put(store, "lost")
        with pytest.raises(StoreError, match="No space left"):
            store.consents.add(b"RIFF", "en", "lost")
    assert store.list() == (kept,) and store.consents.list() == ()
    assert files_of(store) == before
    put(store, "lost")  # the store works again


def test_an_index_that_cannot_grow_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_in(tmp_path)
    put(store, "kept")
    connect = sqlite3.connect

    def full(*args: Any, **options: Any) -> sqlite3.Connection:
        db = connect(*args, **options)
        db.execute("PRAGMA max_page_count = 1")  # to SQLite this means: no more pages than there are
        return db

    monkeypatch.setattr(sqlite3, "connect", full)
    added = 0
    with pytest.raises(StoreError, match="full"):
        for added in range(100):
            put(store, f"v{added}", consent_statement="x" * 1000)
    assert len(store.list()) == 1 + added
    assert files_of(store) == wanted_of(store)
    store.delete(store.get("v0").id)  # which makes room
    put(store, f"v{added}", consent_statement="x" * 1000)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "gone"])
def test_a_damaged_voice_is_told_and_the_others_go_on(tmp_path: Path, damage: str) -> None:
    hurt, well = put(store_in(tmp_path), "hurt"), put(store_in(tmp_path), "well")
    store = store_in(tmp_path)
    path = store.files.folder / hurt.file
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"flipped": whole[:-1] + b"\xff", "cut": whole[:-9], "empty": b""}[damage])
    with pytest.raises(StoreError, match=r"'hurt' \(voice_.*delete it and upload it again"):
        store.load(store.get("hurt"))
    assert [(r.name, r.broken) for r in store.list()] == [("hurt", True), ("well", False)]
    assert store.load(well).text == "well"
    store.delete(hurt.id)
    assert store.load(put(store, "hurt")).text == "hurt"


def test_a_voice_that_cannot_be_read_just_now_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_in(tmp_path)
    record = put(store)

    def too_many(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.open", too_many)
        with pytest.raises(StoreError, match=r"Too many open files$"):
            store.load(record)
    assert not store.get("anna").broken and store.load(record).text == "Anna"


def test_a_voice_deleted_by_another_server_is_unknown_not_broken(tmp_path: Path) -> None:
    here, elsewhere = store_in(tmp_path), store_in(tmp_path)
    record = put(here)
    elsewhere.delete(record.id)
    for use in (lambda: here.get("Anna"), lambda: here.load(record), lambda: here.delete(record.id)):
        with pytest.raises(UnknownVoice):
            use()


def test_leftovers_are_collected_but_not_what_another_process_may_be_about_to_index(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    kept = put(store)
    old = {".0123456789abcdef.part", "0" * 64 + ".safetensors"}
    young = {".fedcba9876543210.part", "1" * 64 + ".clip"}
    foreign = {"notes.txt"}
    for name in old | young | foreign:
        (store.files.folder / name).write_bytes(b"x")
    for name in old | foreign | {kept.file}:
        os.utime(store.files.folder / name, (0, 0))
    assert files_of(store_in(tmp_path)) == {kept.file} | young | foreign


def test_an_index_that_is_lost_foreign_or_newer_is_refused_and_nothing_is_removed(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    record = put(store)
    os.utime(store.files.folder / record.file, (0, 0))
    index = tmp_path / "index.sqlite"
    whole = index.read_bytes()

    index.unlink()
    with pytest.raises(StoreError, match="their index is gone"):
        store_in(tmp_path)
    index.write_bytes(b"this is not a database, whatever its name says" * 99)
    with pytest.raises(StoreError, match="not a database"):
        store_in(tmp_path)
    index.write_bytes(whole)
    db = sqlite3.connect(index)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="newer Sonant"):
        store_in(tmp_path)
    index.write_bytes(whole)
    assert store_in(tmp_path).load(record).text == "Anna"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot be opened"):
        store_in(tmp_path / "file" / "voices")
