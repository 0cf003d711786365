"""Decoded voices in memory, the least recently used dropped first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from sonant.voice import Voice


class VoiceCache:
    """Keys are names of content, so an entry can be unused but never stale."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.hits = self.misses = 0
        self._lock = Lock()
        self._voices: OrderedDict[str, Voice] = OrderedDict()

    def get(self, key: str, load: Callable[[], Voice]) -> Voice:
        with self._lock:
            if key in self._voices:
                self.hits += 1
                self._voices.move_to_end(key)
                return self._voices[key]
            self.misses += 1
        voice = load()  # The lock is free meanwhile: one slow disk read must not hold up the others.
        with self._lock:
            voice = self._voices.setdefault(key, voice)  # Who loaded it at the same time gets the same one.
            self._voices.move_to_end(key)
            while len(self._voices) > self.capacity:
                self._voices.popitem(last=False)
        return voice

    def drop(self, key: str) -> None:
        with self._lock:
            self._voices.pop(key, None)

    def __len__(self) -> int:
        return len(self._voices)
