"""Server-sent events that carry sound in base64, in OpenAI's form and similar ones."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable

from sonant.bench.client.meter import BadSound


class ErrorEvent(Exception):
    """The server reported a failure inside the stream."""


class SpeechEvents:
    """Passes on the sound of each event, with the time at which the event was complete."""

    def __init__(self, sound: Callable[[bytes, float], None]) -> None:
        self.sound = sound
        self.rest = b""
        self.done = False

    def feed(self, data: bytes, at_s: float) -> None:
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):  # an event is one line, since no server splits its JSON
                self._event(line[5:].strip(), at_s)

    def _event(self, data: bytes, at_s: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        try:
            event = json.loads(data)
            kind = event.get("type", "")
            sound = event.get("audio") or event.get("delta")
            if sound and not kind.endswith("error"):
                self.sound(base64.b64decode(sound, validate=True), at_s)
        except (ValueError, TypeError, AttributeError, binascii.Error) as e:
            raise BadSound(f"an event that cannot be read ({e}): {data[:80]!r}") from e
        if kind.endswith("error") or "error" in event:
            error = event.get("error", event)
            raise ErrorEvent(str(error.get("message", error) if isinstance(error, dict) else error)[:200])
        self.done = self.done or kind.endswith("done")
