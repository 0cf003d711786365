"""Converts text to token ids as transformers' fast tokenizer does by tokenizer.json, without transformers.

A client's text must never become a control token: "<|eot_id|>" in it is read aloud or skipped like any other text,
where the official code would end the turn. A prompt is therefore made of pieces: text, and control tokens by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sonant.errors import BadText, CheckpointError
from sonant.models.published import Raw, read_json


@dataclass(frozen=True)
class Control:
    """A token that no text can spell."""

    token: str


Piece = str | Control


class TextTokenizer:
    """Byte-level BPE; `ids` are those of the control tokens, by their names."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tokenizer.json"
        raw = read_json(self.path)
        self.ids: Mapping[str, int] = _added_tokens(raw, self.path)
        self._bpe = _text_only(raw, self.ids, self.path)
        self.size = 1 + max(max(self.ids.values()), max(self._bpe.get_vocab().values(), default=0))

    def encode(self, pieces: Iterable[Piece]) -> list[int]:
        """The ids of the pieces, one after the other.

        Neighbouring texts are joined before they are encoded: "\\n\\n" and a text that begins with a newline have one
        token for all three. The official code encodes the whole prompt, which its control tokens split into the same
        pieces before anything else happens to it. The ids are therefore equal for any text that spells none.
        """
        ids: list[int] = []
        for control, run in groupby(pieces, key=lambda piece: isinstance(piece, Control)):
            if control:
                ids.extend(self.ids[piece.token] for piece in run if isinstance(piece, Control))
            else:
                ids.extend(self._text("".join(piece for piece in run if isinstance(piece, str))))
        return ids

    def _text(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as e:
            shown = ascii(text[max(0, e.start - 10) : e.end + 10])
            raise BadText(f"the text is not valid Unicode at {shown}: was it decoded with errors?") from None
        ids: list[int] = self._bpe.encode(text).ids
        return ids


def _added_tokens(raw: Raw, path: Path) -> dict[str, int]:
    entries = raw.get("added_tokens")
    try:
        found = {str(entry["content"]): int(entry["id"]) for entry in entries or ()}
    except (KeyError, TypeError, ValueError) as e:
        raise CheckpointError(f"{path}: 'added_tokens' does not name tokens and ids ({e!r}); get it again") from e
    if not found:
        raise CheckpointError(f"{path} lacks 'added_tokens'; get the file that was published with this model")
    return found


def _text_only(raw: Raw, control: Mapping[str, int], path: Path) -> Tokenizer:
    """The same BPE without the control tokens, and without the processor that puts <|begin_of_text|> first."""
    try:
        model: dict[str, Any] = {**raw["model"]}
        model["vocab"] = {token: i for token, i in model["vocab"].items() if token not in control}
        bare: dict[str, Any] = {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        return Tokenizer.from_str(json.dumps({**raw, **bare, "model": model}))
    except Exception as e:  # tokenizers raises no narrower type
        raise CheckpointError(f"{path} is no tokenizer that can be read ({e!r}); get it again") from e
