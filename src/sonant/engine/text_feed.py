"""A text that is spoken while it is still being written.

Each piece is given when it is known to be whole (a clause, a sentence) and is spoken at once, with the voice, the
manner and the seed of the pieces before it. All of it is one stream, and one sound.
"""

from __future__ import annotations

from collections.abc import Callable

from sonant.engine.long_text import LongText
from sonant.engine.part_layout import lay_out_parts
from sonant.engine.part_sink import PartSink
from sonant.engine.request import Request, Sink
from sonant.engine.stream import SpeechStream
from sonant.errors import BadText
from sonant.text.sentences import check_text
from sonant.types import SpeechRequest

PARTS_AT_ONCE = 2  # the next is begun beside the one that plays: short clauses leave no time between them


class TextFeed:
    """Made by `Engine.feed`. `add` may be called from any thread, by one at a time; `stream` is read as any other.

    The chunks of the stream say which piece they belong to (`part`, from 0) and which is its last (`ends_part`).
    """

    def __init__(
        self,
        speech: SpeechRequest,
        whole: LongText,
        stream: SpeechStream,
        max_chars: int,
        split: Callable[[str, str], tuple[list[str], str]],
        lay_out: Callable[[SpeechRequest, int, Sink], Request],
    ) -> None:
        self.stream = stream
        self._speech, self._whole, self._max_chars = speech, whole, max_chars
        self._split, self._lay_out = split, lay_out
        self._chars = 0
        self._speaker = ""  # who spoke last, of a dialogue

    def add(self, text: str) -> None:
        """Speak `text` after what came before. Raises `BadRequest` if it cannot be spoken.

        Then nothing has changed but whose turn it is: what follows is said by the last speaker named.
        """
        check_text(text, self._max_chars)
        chars = self._chars + len(text)
        if chars > self._max_chars:
            limit = f"over the limit of {self._max_chars:,}"
            raise BadText(f"the text has grown to {chars:,} characters, {limit}; begin another")
        texts, self._speaker = self._split(text, self._speaker)
        if not texts:
            raise BadText(f"the text names {self._speaker} and nothing to say; send the words with it")
        parts = lay_out_parts(
            self._speech, self.stream.seed, texts, self._whole.parts,
            lambda part, n: self._lay_out(part, n, PartSink(self._whole, n)),
        )  # fmt: skip
        self._whole.add(parts)
        self._chars = chars
        self.stream.input_tokens += sum(p.prompt.length for p in parts)

    def end(self) -> None:
        """The text is complete; the stream ends after its last sound."""
        self._whole.end()
