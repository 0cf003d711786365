"""`sonant.json`: what the voice of a folder of our own making needs of its text. Published folders have none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from sonant import strict
from sonant.errors import CheckpointError
from sonant.models.published import read_json
from sonant.models.qwen3_tts.prompt import FrontEnd
from sonant.text.normalize import normalize_english

FRONT_ENDS: Mapping[str, FrontEnd] = MappingProxyType({"english": normalize_english})
_LEAST_SEGMENT_CHARS = 20
_MOST_FRAMES_PER_TOKEN = 100


@dataclass(frozen=True)
class Manifest:
    """The file's keys, all of them optional."""

    name: str | None = None
    license: str | None = None
    text_front_end: str | None = None
    lexicon: str | None = None  # a file beside it: pronunciations of words, applied after the front end
    # The runaway guard for a voice whose tokens, characters for example, are shorter than those of published models.
    frames_per_token: float | None = None
    segment_chars: int | None = None  # longer texts are split at sentence ends: the voice was not trained on them

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        path = folder / "sonant.json"
        if not path.exists():
            return cls()
        manifest = strict.build(cls, read_json(path), str(path), error=CheckpointError)
        if wrong := manifest._out_of_range():
            raise CheckpointError(f"{path}: {wrong}")
        return manifest

    def _out_of_range(self) -> str | None:
        frames, chars = self.frames_per_token, self.segment_chars
        if frames is not None and not 0 < frames <= _MOST_FRAMES_PER_TOKEN:
            return f"frames_per_token must be a number over 0 and at most {_MOST_FRAMES_PER_TOKEN}, not {frames!r}"
        if chars is not None and chars < _LEAST_SEGMENT_CHARS:
            return f"segment_chars must be a whole number from {_LEAST_SEGMENT_CHARS} on, not {chars!r}"
        if self.text_front_end not in (None, *FRONT_ENDS):
            return f"no text_front_end {self.text_front_end!r}; this Sonant has {', '.join(FRONT_ENDS)}"
        beside = self.lexicon is None or (self.text_front_end is not None and Path(self.lexicon).name == self.lexicon)
        return None if beside else "lexicon must name a file beside it and needs a text_front_end"
