"""Voice stores for tests, and the files that lie in their folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from sonant.serving.voices.store_index import wanted_files
from sonant.serving.voices.voice_store import StoreOptions, VoiceRecord, VoiceStore
from sonant.voice import Voice


def store_in(folder: Path, **options: Any) -> VoiceStore:
    return VoiceStore(folder, StoreOptions(**{"consent": "asserted", **options}))


def put(store: VoiceStore, name: str = "Anna", **fields: Any) -> VoiceRecord:
    given = {"model": "m", "consent_statement": "she agreed", **fields}
    return store.add(Voice({"embedding": np.arange(64, dtype=np.float32)}, text=name), name, **given)


def files_of(store: VoiceStore) -> set[str]:
    return set(os.listdir(store.files.folder))


def wanted_of(store: VoiceStore) -> set[str]:
    with store.index.reading() as db:
        return wanted_files(db)
