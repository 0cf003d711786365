"""Processes share a voice store and are killed at any moment: acknowledged voices stay, no half voice is seen."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.voice_stores import files_of, put, store_in, wanted_of

KILLING_S = 5.0


class Writers:
    """The processes of voice_writer.py."""

    def __init__(self) -> None:
        script = str(Path(__file__).with_name("voice_writer.py"))
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, script], stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self._said: list[list[str]] = []
        self._until("ready")

    def start(self, *command: object) -> int:
        self._tell(*command)
        return int(self._until("pid")[1])

    def wait(self) -> list[list[str]]:
        """Wait for all children → what they wrote since the last time."""
        self._tell("wait")
        self._until("done")
        said, self._said = self._said, []
        return said

    def _tell(self, *command: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, command)) + "\n")

    def _until(self, word: str) -> list[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if words[0] == word:
                return words
            self._said.append(words)
        raise AssertionError("voice_writer.py ended early")


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    made = Writers()
    yield made
    assert made.process.stdin is not None
    made.process.stdin.close()
    made.process.wait(10)


@pytest.mark.slow
def test_sigkill_at_any_moment_loses_nothing_acknowledged_and_shows_nothing_half(
    tmp_path: Path, writers: Writers
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    store = store_in(tmp_path, cached_voices=10**6)
    began_s = time.monotonic()
    there = {(first := put(store)).id: store.load(first).fingerprint}  # id → fingerprint, of all that must be there
    life_s = max(0.03, 8 * (time.monotonic() - began_s))  # time for a few adds, however slow the disk
    unsure: set[str] = set()  # deletions that a kill cut off: both outcomes are right
    rounds = acknowledged = unannounced = 0
    end_s = time.monotonic() + KILLING_S
    while time.monotonic() < end_s:
        pids = [writers.start("churn", tmp_path, rng.randrange(10**9), 10**6) for _ in range(2)]
        for pid in pids:
            time.sleep(rng.uniform(0, life_s))
            os.kill(pid, signal.SIGKILL)
        for word, voice_id, *rest in writers.wait():
            assert word in ("added", "deleting", "deleted"), (seed, word, voice_id, rest)
            if word == "added":
                there[voice_id] = rest[0]
                acknowledged += 1
            elif word == "deleting":
                unsure.add(voice_id)
                del there[voice_id]
            else:
                unsure.discard(voice_id)
        listed = {r.id: r for r in store.list()}
        assert there.keys() <= listed.keys(), f"acknowledged and lost, seed {seed}"
        assert not any(r.broken for r in listed.values()), f"half a voice, seed {seed}"
        loaded = {voice_id: store.load(r).fingerprint for voice_id, r in listed.items()}
        assert there.items() <= loaded.items(), f"seed {seed}"
        extra = listed.keys() - there.keys() - unsure  # durable, but not yet announced when its writer was killed
        assert len(extra) <= 2, f"seed {seed}"
        unannounced += len(extra)
        there |= {voice_id: loaded[voice_id] for voice_id in extra | (unsure & listed.keys())}
        unsure.clear()
        rounds += 1
    print(f"seed {seed}: {rounds} rounds, {acknowledged} acknowledged, {unannounced} durable but unannounced")
    assert rounds > 5 and acknowledged
    time.sleep(0.02)
    swept = store_in(tmp_path, orphan_age_s=0.01)
    assert files_of(swept) == wanted_of(swept)
    assert {r.id: swept.load(r).fingerprint for r in swept.list()} == there


def test_two_processes_add_and_delete_the_same_names_at_once(tmp_path: Path, writers: Writers) -> None:
    store = store_in(tmp_path)
    for seed in (1, 2):
        writers.start("clash", tmp_path, seed, 150)
    said = writers.wait()
    assert {words[0] for words in said} == {"added", "deleted", "refused"}
    assert len(said) == 300
    balance = sum({"added": 1, "deleted": -1, "refused": 0}[words[0]] for words in said)
    records = store.list()
    assert len(records) == balance == len({r.name for r in records})
    assert all(store.load(r) and not r.broken for r in records)
    assert files_of(store) == wanted_of(store)


def test_a_store_that_may_only_be_read_is_read(writers: Writers) -> None:
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to the user that root becomes
    try:
        put(store_in(folder))
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        writers.start("readonly", folder)
        said = [" ".join(words) for words in writers.wait()]
        assert said[:2] == ["listed Anna", "loaded Anna"]
        assert [line.split(":")[0] for line in said[2:4]] == [
            "refused add the voice store cannot be written",
            "refused delete the voice store's index index.sqlite cannot be used",
        ]
        assert said[4:] == ["still 1"]
    finally:
        folder.chmod(0o755)
        (folder / "files").chmod(0o755)
        shutil.rmtree(folder)
