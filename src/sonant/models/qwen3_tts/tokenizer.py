"""Converts text to token ids as the official package's fast Qwen2 tokenizer does, without transformers.

A client's text must never become a control token: "<|im_end|>" in it is read aloud or skipped like any other
text, where the official code would end the turn. Control tokens come from our own templates only.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from sonant.errors import BadText, CheckpointError
from sonant.models.byte_vocabulary import byte_characters
from sonant.models.published import read_json

# Qwen2's own pattern, as in the base language model's tokenizer. The official code asks transformers for
# `fix_mistral_regex`, which in some versions swaps in Mistral's pattern for local folders and splits "iPhone"
# and Thai words at other places.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PLACEHOLDER = "{text}"


class TextTokenizer:
    """Byte-level BPE from vocab.json and merges.txt; `added` are the control tokens and their ids."""

    def __init__(self, folder: Path, *, read_now: bool = True, most: int | None = None) -> None:
        """Without `read_now` the two files, which take longest to load, are read by `read` or for the first text.
        `most`: how many tokens the model has vectors for."""
        self._folder, self._most = folder, most
        self.path = folder / "tokenizer_config.json"
        self.added: Mapping[str, int] = _added_tokens(self.path)
        # The BPE itself does not know them, so that no text can spell one. Longest first, because that is how they
        # are matched officially.
        longest_first = sorted(self.added, key=len, reverse=True)
        self._control = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self._known: dict[str, list[int]] = {}
        self._templates: dict[str, list[str]] = {}
        self._reading = threading.Lock()
        self._tokenizer: Tokenizer | None = None
        if read_now:
            self.read()

    def read(self) -> Tokenizer:
        """The tokenizer; the files are read in the first call only."""
        with self._reading:
            if self._tokenizer is None:
                made = _tokenizer(self._folder)
                if self._most is not None and made.get_vocab_size() > self._most:
                    raise CheckpointError(
                        f"{self._folder / 'vocab.json'} has {made.get_vocab_size()} tokens, but config.json's "
                        f"text_vocab_size is {self._most}; get both files from one published folder"
                    )
                self._tokenizer = made
            return self._tokenizer

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        """The ids of `text`. With `specials`, for text of our own only, control tokens in it are recognised."""
        pieces = self._control.split(text) if specials else [text]
        return [i for piece in pieces for i in self._piece(piece, specials)]

    def fill(self, template: str, text: str) -> list[int]:
        """The ids of `template` with `text` in the place of "{text}"; control tokens are the template's only.

        The text is joined to the template's words before it is encoded, not after: "assistant\\n" followed by
        "\\nHello" is one run of newlines and one token. The official code encodes the whole filled template,
        whose control tokens split it into the same pieces before anything else happens to it. The ids are
        therefore equal for any text that does not itself spell a control token.
        """
        if template not in self._templates:
            self._templates[template] = self._control.split(template)
        ids: list[int] = []
        for piece in self._templates[template]:
            ids += self._piece(piece.replace(PLACEHOLDER, text)) if PLACEHOLDER in piece else self._fixed(piece)
        return ids

    def _fixed(self, piece: str) -> list[int]:
        """The ids of a template's own words, which are encoded once."""
        if piece not in self._known:
            self._known[piece] = self._piece(piece, piece in self.added)
        return self._known[piece]

    def _piece(self, piece: str, control: bool = False) -> list[int]:
        if control and piece in self.added:
            return [self.added[piece]]
        try:
            piece.encode()
        except UnicodeEncodeError as e:
            raise BadText(f"the text is not valid Unicode: {e.reason} at character {e.start}") from None
        return (self._tokenizer or self.read()).encode(piece).ids if piece else []


def _added_tokens(path: Path) -> dict[str, int]:
    entries = read_json(path).get("added_tokens_decoder")
    if not isinstance(entries, dict) or not entries:
        raise CheckpointError(f"{path} lacks 'added_tokens_decoder'")
    try:
        return {str(entry["content"]): int(i) for i, entry in entries.items()}
    except (KeyError, TypeError, ValueError) as e:
        raise CheckpointError(f"{path}: 'added_tokens_decoder' does not map ids to tokens ({e!r})") from e


def _tokenizer(folder: Path) -> Tokenizer:
    vocab_path, merges_path = folder / "vocab.json", folder / "merges.txt"
    made = Tokenizer(_bpe(vocab_path, merges_path))
    _check_whole(made, vocab_path, merges_path)
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return made


def _check_whole(made: Tokenizer, vocab_path: Path, merges_path: Path) -> None:
    """Raise if merges are missing: every token but the single bytes has one. A merges.txt cut short at the end of a
    line would be read without an error, and words would be split into pieces."""
    merged = made.get_vocab_size() - sum(made.token_to_id(byte) is not None for byte in byte_characters())
    lines = merges_path.read_bytes().splitlines()
    found = sum(1 for line in lines if line.strip() and not line.startswith(b"#version:"))
    if found < merged:
        raise CheckpointError(
            f"{merges_path} has {found} merges, fewer than the {merged} that {vocab_path.name} needs: it was perhaps "
            "cut short; fetch it again"
        )


def _bpe(vocab_path: Path, merges_path: Path) -> models.BPE:
    """Read both files in one call that makes no Python objects; if it fails, step by step, to say what is wrong."""
    with suppress(Exception):  # tokenizers raises no narrower type
        return models.BPE.from_file(str(vocab_path), str(merges_path))
    vocab = read_json(vocab_path)
    try:
        lines = merges_path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise CheckpointError(f"{merges_path} is missing: a Qwen3-TTS checkpoint folder holds it") from None
    except (OSError, UnicodeDecodeError) as e:
        raise CheckpointError(f"{merges_path} cannot be read as text: {e}") from e
    merges: list[tuple[str, str]] = []
    for line in lines:
        if not line.strip() or line.startswith("#version:"):
            continue
        pair = line.split()
        if len(pair) != 2:
            raise CheckpointError(f"{merges_path} holds {line[:80]!r}, which is not a pair of tokens")
        merges.append((pair[0], pair[1]))
    try:
        return models.BPE(vocab=vocab, merges=merges)
    except Exception as e:  # tokenizers raises no narrower type
        raise CheckpointError(f"{vocab_path} and {merges_path} do not belong together: {e}") from e
