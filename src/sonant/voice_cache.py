"""Voices in memory, the least recently used dropped first; one that several request at once is made once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock

from sonant.voice import Voice


class VoiceCache:
    """Keys are names of content, so an entry can be unused but never stale."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.hits = self.misses = 0
        self._lock = Lock()
        self._voices: OrderedDict[str, Voice] = OrderedDict()
        self._being_made: dict[str, Future[Voice]] = {}

    def get(self, key: str, make: Callable[[], Voice]) -> Voice:
        """Return the voice from memory, or from `make`. That runs without the lock, so that one slow disk or clip does
        not hold up the others. What it raises is raised for all that wait for it, and not kept."""
        with self._lock:
            if key in self._voices:
                self.hits += 1
                self._voices.move_to_end(key)
                return self._voices[key]
            self.misses += 1
            awaited = self._being_made.get(key)
            if awaited is None:
                own = self._being_made[key] = Future[Voice]()
        if awaited is not None:
            return awaited.result()
        try:
            voice = make()
        except BaseException as e:
            with self._lock:
                del self._being_made[key]
            own.set_exception(e)
            raise
        with self._lock:
            del self._being_made[key]
            self._voices[key] = voice
            while len(self._voices) > self.capacity:
                self._voices.popitem(last=False)
        own.set_result(voice)
        return voice

    def drop(self, key: str) -> None:
        with self._lock:
            self._voices.pop(key, None)

    def __len__(self) -> int:
        return len(self._voices)
