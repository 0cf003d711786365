"""Models that are served elsewhere: a request that names one is redirected there, with a status that keeps its body.

Clients follow it by themselves (OpenAI's SDK does), and the sound then comes straight from there: nothing is copied
through this server. Any other name means the model that is loaded.
"""

from __future__ import annotations

from starlette.responses import RedirectResponse

from sonant.errors import ConfigError
from sonant.serving.voices.labels import label_key


class OtherModels:
    def __init__(self, given: tuple[str, ...]) -> None:
        """`given`: NAME=PLACE each, where a place is a path at this address, or another address."""
        self._places: dict[str, tuple[str, str]] = {}
        for pair in given:
            name, _, place = pair.partition("=")
            if not name.strip() or not place.startswith(("/", "http://", "https://")):
                raise ConfigError(f"another model is NAME=/path or NAME=https://address, not {pair!r}")
            self._places[label_key(name.strip())] = name.strip(), place.rstrip("/")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._places.values())

    def place(self, model: str | None) -> str | None:
        """Where the model is served; None: here."""
        _, place = self._places.get(label_key(model), (None, None)) if self._places and model else (None, None)
        return place

    def sent_on(self, model: str | None, path: str) -> RedirectResponse | None:
        place = self.place(model)
        return None if place is None else RedirectResponse(f"{place}{path}", 307)
