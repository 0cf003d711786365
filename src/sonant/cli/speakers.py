"""The speakers of a dialogue as given to `say`: each in words, from a saved voice, or from a clip."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sonant.errors import BadAudio, ConfigError
from sonant.voice import Voice

if TYPE_CHECKING:
    from sonant.engine.engine import Engine

HELP = (
    "voice of what follows [SPEAKER0] in the text; repeat it for [SPEAKER1] and so on. WHO is text=DESCRIPTION, in "
    "words; voice=FILE, saved by --save-voice; clone=CLIP, an audio file; or clone=CLIP:ITS WORDS, for a closer "
    "clone (default: one voice)"
)


@dataclass(frozen=True)
class Asked:
    """One speaker; exactly one of the first three fields is set."""

    description: str | None = None
    file: str | None = None
    clip: str | None = None
    clip_text: str | None = None

    def found(self, engine: Engine) -> str | Voice:
        if self.description is not None:
            return self.description
        if self.file is not None:
            return Voice.load(self.file)
        assert self.clip is not None
        try:
            return engine.clone(self.clip, self.clip_text)
        except BadAudio as e:
            raise BadAudio(f"--speaker clone={self.clip}: {e}") from e


def parse(given: Iterable[str]) -> list[Asked]:
    """Read `--speaker`, before a model is loaded, so that a mistake costs no time."""
    return [_parsed(who) for who in given]


def _parsed(who: str) -> Asked:
    kind, _, value = who.partition("=")
    if not value.strip() or kind not in ("text", "voice", "clone"):
        raise ConfigError(f"--speaker takes text=…, voice=FILE or clone=CLIP, not {who!r}")
    if kind == "text":
        return Asked(description=value)
    if kind == "voice":
        return Asked(file=value)
    clip, _, text = value.partition(":")
    return Asked(clip=clip, clip_text=text or None)
