"""Processes that use a voice store until they are killed: `python voice_writer.py`, then one command a line.

Importing takes seconds, so one process imports and forks a child for each command. Whatever a child has seen done it
writes at once, unbuffered, before it goes on.

    churn FOLDER SEED OPS   add and delete voices of its own
    clash FOLDER SEED OPS   add and delete voices whose names others use too
    readonly FOLDER         use it as a user who may read the folder but not write it
    open FOLDER             open it, and say how many voices there are
    die FOLDER STATEMENT    open it, and die before that statement of the transaction that writes its schema
    wait                    wait for all children; answers "done" after whatever they wrote
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import tempfile
from pathlib import Path

import numpy as np

from sonant.errors import SonantError, StoreError, UnknownVoice, VoiceExists
from sonant.serving.voices.voice_store import StoreOptions, VoiceStore
from sonant.voice import Voice


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # one write: lines of two children never mix


def make_voice(seed: int) -> Voice:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 99, (200, 16), dtype=np.int32)
    return Voice({"embedding": rng.standard_normal(64, dtype=np.float32), "codes": codes}, "text")


def open_store(folder: str) -> VoiceStore:
    return VoiceStore(Path(folder), StoreOptions(consent="asserted", max_voices=10**6, busy_timeout_s=60))


def churn(folder: str, seed: int, ops: int) -> None:
    rng = random.Random(seed)
    store, mine = open_store(folder), []
    for i in range(ops):
        voice_seed = rng.randrange(50)  # few contents, so that voices share files and deletes must spare them
        voice = make_voice(voice_seed)
        record = store.add(voice, f"v {seed} {i}", model="m", consent_statement="yes", clip=bytes([voice_seed]))
        say("added", record.id, voice.fingerprint)
        mine.append(record.id)
        if rng.random() < 0.6:
            gone = mine.pop(rng.randrange(len(mine)))
            say("deleting", gone)
            store.delete(gone)
            say("deleted", gone)


def clash(folder: str, seed: int, ops: int) -> None:
    rng = random.Random(seed)
    store = open_store(folder)
    for _ in range(ops):
        name = f"name {rng.randrange(4)}"
        try:
            if rng.random() < 0.5:
                store.add(make_voice(rng.randrange(3)), name, model="m", consent_statement="yes")
                say("added", name)
            else:
                store.delete(store.get(name).id)
                say("deleted", name)
        except (VoiceExists, UnknownVoice):
            say("refused", name)


def readonly(folder: str) -> None:
    if os.getuid() == 0:  # root, whom no permission stops
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    store = open_store(folder)
    (record,) = store.list()
    say("listed", record.name)
    store.load(record)
    say("loaded", record.name)
    for what, change in {
        "add": lambda: store.add(make_voice(1), "other", model="m", consent_statement="yes"),
        "delete": lambda: store.delete(record.id),
    }.items():
        try:
            change()
        except StoreError as e:
            say("refused", what, e)
    say("still", len(store.list()))


def open_and_count(folder: str) -> None:
    say("opened", len(open_store(folder).list()))


def die(folder: str, last: int) -> None:
    statements = 0

    class Dying(sqlite3.Connection):
        def execute(self, sql: str, *args: object) -> sqlite3.Cursor:
            nonlocal statements
            statements += 1 if statements or sql == "BEGIN IMMEDIATE" else 0
            if statements > last:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().execute(sql, *args)  # type: ignore[arg-type]

    connect = sqlite3.connect

    def fragile(*args: object, **options: object) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*args, **options, factory=Dying)  # type: ignore[call-overload]
        db.execute("PRAGMA cache_size = 1")  # so that pages are written before the transaction is complete
        return db

    sqlite3.connect = fragile  # type: ignore[assignment]
    open_store(folder)
    say("survived", statements)


def main() -> None:
    commands = {"churn": churn, "clash": clash, "readonly": readonly, "open": open_and_count, "die": die}
    children = []
    with tempfile.TemporaryDirectory() as folder:  # Imports once what would else be imported late, by each child.
        open_store(folder).add(make_voice(0), "first", model="m", consent_statement="yes")
    say("ready")
    while line := sys.stdin.readline():
        name, *args = line.split()
        if name == "wait":
            for child in children:
                os.waitpid(child, 0)
            children.clear()
            say("done")
            continue
        child = os.fork()
        if child == 0:
            try:
                commands[name](args[0], *map(int, args[1:]))
            except SonantError as e:
                say("failed", type(e).__name__, e)
            os._exit(0)
        children.append(child)
        say("pid", child)


if __name__ == "__main__":
    main()
